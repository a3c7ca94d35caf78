"""A C++ env from one file: compile() builds it, load_plugin() takes one that is built."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from envfleet import _native
from envfleet.errors import CompileError, ConfigError
from envfleet.native_envs import plugin_files
from envfleet.registry import make_spec

# No contraction into fused multiply-adds: a rollout must not depend on the machine that built the env.
_FLAGS = ("-std=c++20", "-O3", "-DNDEBUG", "-ffp-contract=off", "-fPIC", "-shared", "-fvisibility=hidden")
_TIMEOUT_S = 600


def get_include() -> Path:
    """The folder to give to a compiler's -I: the SDK's headers, as they are in this installation."""
    return Path(_native.__file__).resolve().parent / "include"


def compile(path: str | os.PathLike[str], *, flags: Sequence[str] = (), verbose: bool = False) -> list[str]:  # noqa: A001 (the name users expect)
    """Builds a C++ env with the machine's compiler, registers its ids and returns them.

    The result is kept in a cache (ENVFLEET_CACHE, or envfleet in the user's cache folder),
    keyed by the source, the headers it includes, the compiler and the flags: a second call
    loads in milliseconds. The compiler is CXX, else c++, g++ or clang++; CXXFLAGS is added.
    """
    return load_plugin(build(path, flags=flags, verbose=verbose))


def build(path: str | os.PathLike[str], *, flags: Sequence[str] = (), verbose: bool = False) -> Path:
    """What compile() loads: the shared library of a source, from the cache or built."""
    source = Path(path).resolve()
    if not source.is_file():
        what = "a folder" if source.is_dir() else "not there"
        raise CompileError(f"compile() expected a C++ source file, got {str(path)!r}, which is {what}")
    if isinstance(flags, str):
        raise CompileError(f"compile() expected flags as a list, got the string {flags!r}; pass {flags.split()!r}")
    compiler = find_compiler()
    all_flags = [*_FLAGS, *shlex.split(os.environ.get("CXXFLAGS", "")), *flags]
    # The folder too: an equal file elsewhere may include other headers of the same names.
    parts: list[bytes | str] = [
        str(source.parent),
        source.read_bytes(),
        *_sdk_contents(),
        _version_of(compiler),
        *all_flags,
    ]
    key = _digest(parts)
    folder = cache_folder()
    manifest = folder / f"{source.stem}-{key}.json"
    library = _cached_library(manifest)
    if library is None:
        try:
            library = _build(source, compiler, all_flags, manifest, verbose)
        except OSError as error:
            raise CompileError(
                f"{source.name} could not be built in the cache {folder}: {error}; "
                "set ENVFLEET_CACHE to a folder that you may write to"
            ) from error
    return library


def load_plugin(path: str | os.PathLike[str]) -> list[str]:
    """Loads a shared library whose source includes envfleet/env.h; registers and returns its ids."""
    built_in = set(_native.built_in_ids())
    try:
        ids = _native.load_plugin(str(Path(path).resolve()))
    except RuntimeError as error:
        raise CompileError(f"{path} cannot be loaded as an env: {error}") from error
    plugin_files.update(dict.fromkeys(ids, Path(path).resolve()))
    for env_id in ids:
        if env_id in built_in:
            warnings.warn(f"{env_id} now stands for the env in {path}, no longer for the built-in one", stacklevel=3)
        try:
            make_spec(env_id)
        except (ConfigError, ValueError) as error:
            raise CompileError(f"{env_id} in {path} loads, but cannot describe itself: {error}") from error
    return ids


def find_compiler() -> list[str]:
    """The command that compile() runs: CXX, else the first of c++, g++, clang++. Raises CompileError."""
    if chosen := os.environ.get("CXX"):
        try:
            command = shlex.split(chosen)
        except ValueError:
            command = []
        if not command or shutil.which(command[0]) is None:
            raise CompileError(f"CXX names the compiler {chosen!r}, which is not on the PATH; unset it or correct it")
        return command
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    raise CompileError("compile() found no C++ compiler (c++, g++, clang++); install one, or name it in CXX")


def _build(source: Path, compiler: list[str], flags: list[str], manifest: Path, verbose: bool) -> Path:
    manifest.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=manifest.parent, prefix="build-") as scratch:
        built, depfile = Path(scratch, "env.so"), Path(scratch, "env.d")
        command = [
            *compiler,
            *flags,
            f"-I{get_include()}",
            "-MMD",
            "-MT",
            "env",
            "-MF",
            str(depfile),
            str(source),
            "-o",
            str(built),
        ]
        if verbose:
            print(shlex.join(command), file=sys.stderr)
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise CompileError(f"{source.name} did not compile within {_TIMEOUT_S} s: {shlex.join(command)}") from error
        if result.returncode != 0 or not built.is_file():
            raise CompileError(
                f"{source.name} does not compile (exit code {result.returncode}).\n\n{result.stderr.strip()}\n\n"
                f"The command was: {shlex.join(command)}"
            )
        if verbose and result.stderr:
            print(result.stderr, file=sys.stderr)
        included = _dependencies(depfile, source)
        # A name of its own for every build: the loader would give back an old one of the same name.
        library = manifest.with_name(f"{manifest.stem}-{_digest([built.read_bytes()])}.so")
        os.replace(built, library)
        hashes = {str(path): _digest([path.read_bytes()]) for path in included}
        note = Path(scratch, "manifest.json")
        note.write_text(json.dumps({"library": library.name, "included": hashes}, indent=1))
        os.replace(note, manifest)
    return library


def _cached_library(manifest: Path) -> Path | None:
    """The library of an earlier build, if what it included is as it was."""
    try:
        note: dict[str, Any] = json.loads(manifest.read_text())
        library = manifest.with_name(note["library"])
        unchanged = all(_digest([Path(name).read_bytes()]) == own for name, own in note["included"].items())
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return library if unchanged and library.is_file() else None


def _dependencies(depfile: Path, source: Path) -> list[Path]:
    """The author's own headers: what the compiler read besides the source and the SDK."""
    sdk = get_include()
    listed = depfile.read_text().split(":", 1)[1].replace("\\\n", " ")
    # make's way of writing names: a space as "\\ ", a dollar as "$$", a hash as "\\#".
    names = re.findall(r"(?:\\[ #]|[^\s])+", listed)
    plain = [name.replace("\\ ", " ").replace("\\#", "#").replace("$$", "$") for name in names]
    resolved = [Path(name).resolve() for name in plain]
    return [path for path in resolved if path != source and not path.is_relative_to(sdk)]


def _sdk_contents() -> list[bytes]:
    return [header.read_bytes() for header in sorted(get_include().rglob("*.h"))]


def _version_of(compiler: list[str]) -> str:
    return subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False).stdout


def cache_folder() -> Path:
    """Where compile() keeps what it built."""
    if chosen := os.environ.get("ENVFLEET_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "envfleet")


def _digest(parts: Iterable[bytes | str]) -> str:
    state = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.hexdigest()[:24]
