"""LibraryCache: the shared libraries that compile() built, verified before anything loads them.

A cached library is code that will run in the caller's process. It is loaded only if its folder and its
files can be written by their owner alone, and if its bytes have the digest that was stored with it.
Whatever does not verify is reported as missing, so that compile() builds it again.

Several processes may use one cache at once: every file is written under a temporary name and renamed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from envfleet.core.errors import CompileError

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class LibraryCache:
    """The libraries in one folder, by key."""

    def __init__(
        self,
        folder: Path,
        *,
        expected: str = "compile() expected a cache folder",
        remedy: str = "set ENVFLEET_CACHE to a folder of your own",
    ) -> None:
        """Create the folder if necessary. Raises CompileError if others can write to it, or OSError.

        expected, remedy: the beginning and the end of that CompileError's message.
        """
        self.folder = folder.absolute()
        _make_folders(self.folder)
        if reason := _untrusted_reason(self.folder.stat()):
            raise CompileError(
                f"{expected} that only you can write to, got {self.folder}, which {reason}; "
                f"run: chmod go-w '{self.folder}' if it is yours, or {remedy}"
            )

    def find(self, key: str) -> Path | None:
        """Return the library of a key if it verifies and no input has changed since it was built, else None."""
        try:
            manifest = json.loads(_read(self.folder / f"{key}.json") or b"")
            digest = str(manifest["sha256"])
            is_current = all(own and file_digest(name) == own for name, own in manifest["inputs"].items())
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        library = self._library(key, digest)
        data = _read(library) if is_current else None
        return library if data is not None and hashlib.sha256(data).hexdigest() == digest else None

    def store(self, key: str, data: bytes, inputs: Mapping[str, str]) -> Path:
        """Store a library with the digests of the files it was built from. Raises OSError, e.g. on a full disk."""
        digest = hashlib.sha256(data).hexdigest()
        library = self._library(key, digest)
        # The library before its manifest: a manifest never names a file that is not there yet.
        _replace(library, data)
        _replace(self.folder / f"{key}.json", json.dumps({"sha256": digest, "inputs": dict(inputs)}, indent=1).encode())
        return library

    def _library(self, key: str, digest: str) -> Path:
        # With the digest: dlopen() identifies a library by its path, and would return the older one of the same name.
        return self.folder / f"{key}-{digest[:24]}.so"


def file_digest(path: str | os.PathLike[str]) -> str:
    """Return the digest of a file's contents, or an empty string if it cannot be read."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""


def _read(path: Path) -> bytes | None:
    """Return the contents of a regular file, and no link, that only its owner can write, else None."""
    try:
        status = path.lstat()
        return path.read_bytes() if stat.S_ISREG(status.st_mode) and not _untrusted_reason(status) else None
    except OSError:
        return None


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.chmod(0o644)  # whatever the umask is
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _make_folders(folder: Path) -> None:
    for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        with contextlib.suppress(FileExistsError):
            missing.mkdir(0o755)


def _untrusted_reason(status: os.stat_result) -> str:
    """Return why a file or folder may have been changed by another user; empty if it cannot have been."""
    if status.st_uid not in (0, os.geteuid()):
        return f"belongs to user {status.st_uid}"
    if status.st_mode & _WRITABLE_BY_OTHERS:
        return f"other users can write to (mode {stat.S_IMODE(status.st_mode):03o})"
    return ""
