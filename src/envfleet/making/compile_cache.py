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
from dataclasses import dataclass
from pathlib import Path

from envfleet.errors import CompileError

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True)
class CachedLibrary:
    """A verified library. dlopen_path: what to load while the cache is open; path: where the file is."""

    path: Path
    dlopen_path: str


class LibraryCache:
    """The libraries in one folder, by key. A context manager: it holds the folder open.

    Everything is read and written relative to the open folder, so a folder that somebody puts in its place
    after the check is never used.
    """

    def __init__(
        self,
        folder: Path,
        *,
        expected: str = "compile() expected a cache folder",
        remedy: str = "set ENVFLEET_CACHE to a folder of your own",
    ) -> None:
        """Open the folder, creating it if necessary. Raises CompileError if others can write to it, or OSError.

        expected, remedy: the beginning and the end of that CompileError's message.
        """
        self.folder = folder.absolute()
        _make_folders(self.folder)
        self._fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            reason, culprit = _untrusted_folder_reason(self.folder, os.fstat(self._fd))
            if reason:
                raise CompileError(
                    f"{expected} that only you can write to, got {self.folder}, which {reason}; "
                    f"run: chmod go-w '{culprit}' if it is yours, or {remedy}"
                )
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> LibraryCache:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._fd)

    def find(self, key: str) -> CachedLibrary | None:
        """Return the library of a key if it verifies and no input has changed since it was built, else None."""
        try:
            manifest = json.loads(self._read(f"{key}.json") or b"")
            digest = str(manifest["sha256"])
            is_current = all(own and file_digest(name) == own for name, own in manifest["inputs"].items())
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        name = _library_name(key, digest)
        if not is_current or "/" in name:
            return None
        data = self._read(name)
        return self._library(name) if data is not None and hashlib.sha256(data).hexdigest() == digest else None

    def store(self, key: str, data: bytes, inputs: Mapping[str, str]) -> CachedLibrary:
        """Store a library with the digests of the files it was built from. Raises OSError, e.g. on a full disk."""
        digest = hashlib.sha256(data).hexdigest()
        name = _library_name(key, digest)
        # The library before its manifest: a manifest never names a file that is not there yet.
        self._write(name, data)
        manifest = {"sha256": digest, "inputs": dict(inputs)}
        self._write(f"{key}.json", json.dumps(manifest, indent=1).encode())
        os.fsync(self._fd)
        return self._library(name)

    def _library(self, name: str) -> CachedLibrary:
        # By name within the verified folder, and not /proc/self/fd/<the file>: dlopen() identifies a library by its
        # path, and would return an older library for a descriptor number that is used a second time. The name
        # contains the digest, so a file that another process of this user puts there has the same contents.
        path = self.folder / name
        through_descriptor = f"/proc/self/fd/{self._fd}/{name}"
        return CachedLibrary(path, through_descriptor if os.path.exists(through_descriptor) else str(path))

    def _read(self, name: str) -> bytes | None:
        """Return the contents of a regular file that only its owner can write, else None."""
        try:
            # Neither a symbolic link nor, by waiting for a writer, a named pipe.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with open(os.open(name, flags, dir_fd=self._fd), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode) or _untrusted_reason(status):
                    return None
                return file.read()
        except OSError:
            return None

    def _write(self, name: str, data: bytes) -> None:
        temporary = f".{secrets.token_hex(8)}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            with open(os.open(temporary, flags, 0o644, dir_fd=self._fd), "wb") as file:
                os.fchmod(file.fileno(), 0o644)  # whatever the umask is
                file.write(data)
                file.flush()
                # Before the rename: after a power failure the name must not stand for an empty file.
                os.fsync(file.fileno())
            os.replace(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=self._fd)
            raise


def file_digest(path: str | os.PathLike[str]) -> str:
    """Return the digest of a file's contents, or an empty string if it cannot be read."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""


def _library_name(key: str, digest: str) -> str:
    # The digest too: dlopen() would return the older library of the same name.
    return f"{key}-{digest[:24]}.so"


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


def _untrusted_folder_reason(folder: Path, opened: os.stat_result) -> tuple[str, Path]:
    """Return why another user may have put files into a folder, and which folder lets them; empty if none can."""
    if reason := _untrusted_reason(opened):
        return reason, folder
    for path in (folder, *folder.parents):
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode) and status.st_uid not in (0, os.geteuid()):
            return f"is reached through a link, {path}, of user {status.st_uid}", folder
    for path in folder.resolve().parents:
        mode = path.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return f"every user can replace, since they can write to {path}", path
    return "", folder
