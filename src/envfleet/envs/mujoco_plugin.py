"""The plug-in that contains the MuJoCo envs: found or built for the installed MuJoCo, and loaded once.

libmujoco of the user's wheel -> the plug-in that was built against that version -> the engine
"""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import gymnasium

from envfleet import _native
from envfleet.core.errors import CompileError, MissingExtraError
from envfleet.core.installation import installed_folder
from envfleet.envs.compiler import build

_lock = threading.Lock()
_loaded: ctypes.CDLL | None = None


@dataclass(frozen=True)
class MujocoInstallation:
    """An installed MuJoCo: its version, library and headers."""

    version: str
    library: Path
    include: Path


def installed_mujoco() -> MujocoInstallation:
    """Return the MuJoCo of this Python, without importing it. Raises MissingExtraError."""
    spec = find_spec("mujoco")
    for folder in map(Path, (spec and spec.submodule_search_locations) or ()):
        for library in sorted(folder.glob("libmujoco.so.*")):
            return MujocoInstallation(library.name.removeprefix("libmujoco.so."), library, folder / "include")
    raise MissingExtraError("mujoco", "mujoco", "a MuJoCo env")


def asset_folder() -> Path:
    """Return the folder of Gymnasium's XML files."""
    return Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets"


def load() -> ctypes.CDLL:
    """Register the MuJoCo envs and return the plug-in. Raises MissingExtraError, or CompileError with the reason."""
    global _loaded
    with _lock:
        if _loaded is not None:
            return _loaded
        mujoco = installed_mujoco()
        # First: the plug-in refers to it by its soname alone, and uses the library that is already in memory.
        try:
            ctypes.CDLL(str(mujoco.library))
        except OSError as error:
            raise CompileError(f"MuJoCo's library cannot be loaded: {error}; reinstall mujoco") from error
        plugin = installed_folder("plugins") / f"libenvfleet_mujoco-{mujoco.version}.so"
        _loaded = _load(str(plugin if plugin.is_file() else _built(mujoco)), mujoco)
        return _loaded


def _load(plugin: str, mujoco: MujocoInstallation) -> ctypes.CDLL:
    library = _start(plugin, mujoco)
    try:
        _native.load_plugin(plugin, may_block=False)
    except RuntimeError as error:
        raise CompileError(f"the MuJoCo envs cannot be loaded from {plugin}: {error}") from error
    return library


def _start(plugin: str, mujoco: MujocoInstallation) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(plugin)
        start = library.envfleet_mujoco_start
    except (OSError, AttributeError) as error:
        raise CompileError(f"the MuJoCo envs cannot be loaded from {plugin}: {error}") from error
    start.argtypes, start.restype = (ctypes.c_char_p,), ctypes.c_int
    if other := start(str(asset_folder()).encode()):
        raise CompileError(
            f"the MuJoCo envs expected the library that they were built against, got {mujoco.library} of version "
            f"{other}; reinstall mujoco"
        )
    return library


def flags_for(mujoco: MujocoInstallation) -> list[str]:
    """Return the compiler flags for the plug-in's source."""
    # Flags come before the source: a linker that drops libraries which no earlier file needs would drop it.
    return [f"-I{mujoco.include}", "-Wl,--no-as-needed", str(mujoco.library)]


def _built(mujoco: MujocoInstallation) -> Path:
    """Build the plug-in for a MuJoCo version for which none is shipped."""
    try:
        return build(installed_folder("plugins") / "mujoco" / "all.cc", flags=flags_for(mujoco))
    except CompileError as error:
        message = f"the native MuJoCo envs could not be compiled for MuJoCo {mujoco.version}: {error}"
        raise CompileError(message) from error
