"""Shared libraries from C++ sources: built with the machine's compiler, and cached.

envfleet.compile() builds users' envs with it; families and apis build what was not shipped for an installed version.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from envfleet.core.errors import CompileError
from envfleet.core.installation import installed_folder
from envfleet.envs.compile_cache import LibraryCache, file_digest

# No contraction into fused multiply-adds: a rollout must not depend on the machine that built the env.
_FLAGS = ("-std=c++20", "-ffp-contract=off", "-fPIC", "-shared", "-fvisibility=hidden")
_FAST_FLAGS = ("-O3", "-DNDEBUG")
_DEBUG_FLAGS = ("-O1", "-g", "-fno-omit-frame-pointer", "-DENVFLEET_DEBUG", "-D_GLIBCXX_ASSERTIONS")
# gcc calls functions of the SDK (guarded_rows.h) before each access to memory.
_CHECK_FLAGS = (
    *("-DENVFLEET_CHECK_ACCESSES", "-fsanitize=kernel-address", "--param=asan-instrumentation-with-call-threshold=0"),
    *("--param=asan-stack=0", "--param=asan-globals=0"),
)
# Sanitizers of the user's that cannot be combined with that.
_OTHER_SANITIZERS = {"address", "hwaddress", "kernel-address", "kernel-hwaddress", "thread", "leak"}
_SUFFIXES = (".cc", ".cpp", ".cxx", ".c++", ".C", ".cp", ".CPP")  # for which compilers choose C++
_TIMEOUT_S = 600
_ATTEMPTS = 3
_WITHOUT_RELATIVE_PATHS = re.compile(
    r"-[OgDUmw].*|-std=.*|-f[^=]*|-W(?![apl],).*|-Wl,-[-\w]*|-pthread|-pipe|-(I|L|isystem|iquote)/.*|/.*"
)
# Environment variables that compilers read.
_COMPILER_VARIABLES = ("CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX")
# Fields of /proc/cpuinfo, on x86 and on ARM, that decide what -march=native means.
_CPU_FIELDS = (
    *("vendor_id", "cpu family", "model", "model name", "flags"),
    *("Features", "CPU implementer", "CPU architecture", "CPU variant", "CPU part"),
)


def get_include() -> Path:
    """Return the folder of the SDK's headers, for a compiler's -I."""
    return installed_folder("include")


def build(
    path: str | os.PathLike[str], *, flags: Sequence[str] = (), debug: bool = False, verbose: bool = False
) -> Path:
    """Return the shared library of a source, from the cache or newly built."""
    source = _source_file(path)
    compiler = find_compiler()
    given = [*_flags_of_environment(), *_checked_flags(flags)]
    _check_sanitizer(source, compiler, given)
    own_flags = [*_mode_flags(compiler, given, debug), *given]
    key = cache_key(source, compiler, own_flags, cpu_description())
    try:
        cache = LibraryCache(cache_folder())
        return cache.find(key) or cache.store(key, *_build(source, compiler, own_flags, verbose))
    except OSError as error:
        raise CompileError(
            f"{source.name} could not be built in the cache {cache_folder()}: {error}; "
            "set ENVFLEET_CACHE to a writable folder with enough space"
        ) from error


def _source_file(path: str | os.PathLike[str]) -> Path:
    try:
        source = Path(path).resolve()
        is_file, is_folder, exists = source.is_file(), source.is_dir(), source.exists()
    except (TypeError, ValueError, OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        raise CompileError(f"compile() expected the path of a C++ source file, got {path!r}: {error}") from error
    if not is_file:
        what = "is a folder" if is_folder else "is not a regular file" if exists else "is missing"
        raise CompileError(f"compile() expected a C++ source file, got {str(path)!r}, which {what}")
    if source.suffix not in _SUFFIXES:
        source = Path(path).absolute()  # a link to a file that is named after its contents
    if source.suffix not in _SUFFIXES:
        # The compiler would take it for a linker script.
        raise CompileError(
            f"compile() expected a C++ source file, got {str(path)!r}, whose name does not end in "
            f"{', '.join(_SUFFIXES[:-1])} or {_SUFFIXES[-1]}; rename it"
        )
    return source


def _checked_flags(flags: Sequence[str]) -> list[str]:
    if isinstance(flags, (str, bytes)):
        raise CompileError(f"compile() expected flags as a list, got the string {flags!r}; pass {flags.split()!r}")
    try:
        own = list(flags)
    except TypeError as error:
        raise CompileError(f"compile() expected flags as a list, got {flags!r}") from error
    for flag in own:
        if not isinstance(flag, (str, os.PathLike)) or "\0" in os.fsdecode(flag):
            raise CompileError(f"compile() expected each flag as a string, got {flag!r}")
    return [os.fsdecode(flag) for flag in own]


def _mode_flags(compiler: Sequence[str], flags: Sequence[str], debug: bool) -> list[str]:
    if not debug:
        return [*_FAST_FLAGS]
    is_gcc = "Free Software Foundation" in _version_of(compiler)
    return [*_DEBUG_FLAGS, *(_CHECK_FLAGS if is_gcc and not _sanitizers(flags) & _OTHER_SANITIZERS else ())]


def _sanitizers(flags: Sequence[str]) -> set[str]:
    return {name for flag in flags if flag.startswith("-fsanitize=") for name in flag.partition("=")[2].split(",")}


def _check_sanitizer(source: Path, compiler: Sequence[str], flags: Sequence[str]) -> None:
    """Raise CompileError if AddressSanitizer would end this process when the library is loaded."""
    if "address" not in _sanitizers(flags) or hasattr(ctypes.CDLL(None), "__asan_init"):
        return
    library = f"$({shlex.join(compiler)} -print-file-name=libasan.so)"
    raise CompileError(
        f"{source.name} with -fsanitize=address expected a process that was started with AddressSanitizer, got one "
        f"without; run: ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD={library} python ..."
    )


def _flags_of_environment() -> list[str]:
    given = os.environ.get("CXXFLAGS", "")
    try:
        return shlex.split(given)
    except ValueError as error:
        raise CompileError(f"CXXFLAGS expected flags as a shell splits them, got {given!r}: {error}") from error


def find_compiler() -> list[str]:
    """Return the command of the C++ compiler: CXX, else the first of c++, g++, clang++. Raises CompileError."""
    if chosen := os.environ.get("CXX"):
        try:
            command = shlex.split(chosen)
        except ValueError:
            command = []
        if not command or shutil.which(command[0]) is None:
            raise CompileError(f"CXX expected a compiler on the PATH, got {chosen!r}; correct or unset it")
        return command
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    raise CompileError("compile() expected a C++ compiler (c++, g++ or clang++), found none; install one, or set CXX")


def cache_key(source: Path, compiler: Sequence[str], flags: Sequence[str], cpu: str) -> str:
    """Return the name of a build in the cache. The files that the compiler reads are in its manifest instead."""
    program = shutil.which(compiler[0]) or compiler[0]
    parts = [str(source), *_FLAGS, *flags, os.path.realpath(program), *compiler, _version_of(compiler), cpu]
    parts += [f"{name}={os.environ.get(name, '')}" for name in _COMPILER_VARIABLES]
    searched = [entry for name in _COMPILER_VARIABLES if name in os.environ for entry in os.environ[name].split(":")]
    # A link may point elsewhere later, and gcc lists files of system folders by their real path.
    parts += [os.path.realpath(entry) for entry in (str(source), *_paths_in(flags), *searched)]
    if not all(map(_WITHOUT_RELATIVE_PATHS.fullmatch, (*compiler[1:], *flags))) or not all(
        map(os.path.isabs, searched)
    ):
        try:
            parts.append(os.getcwd())
        except OSError as error:
            raise CompileError(
                "compile() expected a working directory for the relative paths in its flags, got one that was deleted; "
                "change to another one, or use absolute paths"
            ) from error
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]
    return f"{source.stem}-{digest}"


def cpu_description(cpuinfo: str = "/proc/cpuinfo") -> str:
    """Return the architecture and the CPU's features: -march=native depends on them."""
    lines: list[str] = []
    with contextlib.suppress(OSError), open(cpuinfo, errors="replace") as file:
        for line in file:
            name = line.partition(":")[0].strip()
            if not name and lines:
                break  # all processors are alike
            if name in _CPU_FIELDS:
                lines.append(" ".join(line.split()))
    return "\n".join([sys.platform, platform.machine(), *lines])


def _build(source: Path, compiler: list[str], flags: list[str], verbose: bool) -> tuple[bytes, dict[str, str]]:
    """Compile a source, and return the library with the digest of every file that it was built from."""
    # Not in the cache: a build that is killed leaves nothing there.
    with tempfile.TemporaryDirectory(prefix="env-build-") as scratch:
        built, depfile = Path(scratch, "env.so"), Path(scratch, "env.d")
        base = [*compiler, *_FLAGS, *flags, f"-I{get_include()}", *_folder_of_target(source)]
        base += ["-MT", "env", "-MF", str(depfile), str(source)]
        _run(source, [*base, "-M"])  # if this fails, the build below fails too, and reports the command
        before = _contents(source, depfile, flags)
        for _ in range(_ATTEMPTS):
            command = [*base, "-MD", "-o", str(built)]
            if verbose:
                print(shlex.join(command), file=sys.stderr)
            result = _run(source, command)
            if result.returncode != 0 or not built.is_file():
                # The exit code is 0 whatever happened if SIGCHLD is ignored: see subprocess.Popen.
                has_failed = result.returncode != 0 or result.stderr.strip()
                what = "does not compile" if has_failed else "was compiled, but the compiler wrote no library"
                code = f" (exit code {result.returncode})" if result.returncode != 0 else ""
                raise CompileError(
                    f"{source.name} {what}{code}.\n\n{result.stderr.strip()}\n\nThe command was: {shlex.join(command)}"
                )
            if verbose and result.stderr:
                print(result.stderr, file=sys.stderr)
            # If a file was saved while the compiler ran, the library may contain either version.
            after = _contents(source, depfile, flags)
            if after == before:
                return built.read_bytes(), {path: contents.sha256 for path, contents in after.items()}
            before = after
    raise CompileError(
        f"{source.name} expected headers that do not change while it compiles, but one changed in each of {_ATTEMPTS} "
        "attempts; compile it again after they are saved"
    )


def _folder_of_target(source: Path) -> list[str]:
    """Return the flag for headers next to the file that a link points to; the compiler looks next to the link."""
    folder = source.resolve().parent
    return [] if folder == source.parent else ["-iquote", str(folder)]


def run_program(command: Sequence[str], timeout_s: float = _TIMEOUT_S) -> subprocess.CompletedProcess[str]:
    """Run a program without input, and return its output as text."""
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
    )


def _run(source: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return run_program(command)
    except subprocess.TimeoutExpired as error:
        raise CompileError(f"{source.name} did not compile within {_TIMEOUT_S} s: {shlex.join(command)}") from error


class _Contents(NamedTuple):
    sha256: str
    changed_ns: int  # detects a file that was changed and changed back


def _contents(source: Path, depfile: Path, flags: Sequence[str]) -> dict[str, _Contents]:
    """Return the current contents of every file that a build reads."""
    paths = {source, *_dependencies(depfile), *_files_named_in(flags)}
    found = {}
    for path in sorted(paths):
        changed_ns = path.stat().st_ctime_ns if path.exists() else 0
        found[str(path)] = _Contents(file_digest(path), changed_ns)
    return found


def _dependencies(depfile: Path) -> list[Path]:
    """Return every file that the preprocessor read, including those of the SDK and the system."""
    if not depfile.is_file():
        return []
    listed = os.fsdecode(depfile.read_bytes()).partition(":")[2].replace("\\\n", " ")
    # Names are escaped for make: a space as "\\ ", a dollar as "$$", a hash as "\\#".
    names = re.findall(r"(?:\\[ #]|[^\s])+", listed)
    plain = [name.replace("\\ ", " ").replace("\\#", "#").replace("$$", "$") for name in names]
    # Not resolved: a link that points elsewhere later must count as a change.
    return [Path(name).absolute() for name in plain]


def _files_named_in(flags: Sequence[str]) -> list[Path]:
    """Return the libraries, response files and linker scripts that a build reads."""
    paths = _paths_in(flags)
    libraries = [following if own == "-l" else own[2:] for own, following in pairwise((*flags, "")) if own[:2] == "-l"]
    names = [f"lib{name}{suffix}" for name in libraries for suffix in (".so", ".a")]
    paths += [os.path.join(folder, name) for folder in paths for name in names]
    return [Path(path).absolute() for path in paths if os.path.isfile(path)]


def _paths_in(flags: Sequence[str]) -> list[str]:
    """Return the files and folders that the flags name."""
    parts = (re.sub("^-(I|L|isystem|iquote|idirafter)", "", part) for flag in flags for part in re.split("[,=@]", flag))
    return [part for part in parts if os.path.exists(part)]


def _version_of(compiler: Sequence[str]) -> str:
    try:
        return run_program([*compiler, "--version"]).stdout
    except OSError as error:
        raise CompileError(
            f"the compiler {shlex.join(compiler)} cannot be run: {error}; set CXX to another one"
        ) from error


class NoHomeFolderError(CompileError):
    """The user has no home folder, and no variable names another folder for the cache."""


def cache_folder() -> Path:
    """Return the folder of compile()'s cache. Raises NoHomeFolderError."""
    if chosen := os.environ.get("ENVFLEET_CACHE"):
        return Path(chosen)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base, "envfleet")
    try:
        return Path.home() / ".cache" / "envfleet"
    except RuntimeError as error:  # a container with a user that it does not know
        raise NoHomeFolderError(
            "compile() expected a home folder for its cache, got a user without one; set ENVFLEET_CACHE or HOME"
        ) from error
