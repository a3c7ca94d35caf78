"""The plug-in with the Procgen envs, and the library of the installed procgen package that it opens.

The package is found, not imported: importing it needs gym and gym3, and it pins a numpy older than 2.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from envfleet import _native
from envfleet.core.errors import CompileError, MissingExtraError, UnsupportedVersionError
from envfleet.core.installation import installed_folder

_INSTALL = "pip install --no-deps procgen-mirror==0.10.7"
_PYTHONS = ((3, 11), (3, 12))  # for which procgen-mirror has wheels

_lock = threading.Lock()
_is_loaded = False


@dataclass(frozen=True)
class ProcgenInstallation:
    """The files of an installed procgen package."""

    library: Path
    assets: Path


def installed_procgen() -> ProcgenInstallation:
    """Return the procgen of this Python, without importing it. Raises an ImportError or CompileError with a remedy."""
    spec = find_spec("procgen")
    if spec is None:
        if sys.version_info[:2] not in _PYTHONS:
            raise UnsupportedVersionError(
                "Procgen expected Python 3.11 or 3.12, for which procgen-mirror has wheels, got Python "
                f"{sys.version_info.major}.{sys.version_info.minor}; use one of these"
            )
        hint = f"which installs numpy<2; to keep a newer numpy run: {_INSTALL}"
        raise MissingExtraError("procgen-mirror", "procgen", "a Procgen env", hint)
    for folder in map(Path, spec.submodule_search_locations or ()):
        for name in ("libenv.so", "libenv.dylib"):
            library = folder / "data" / "prebuilt" / name
            if library.is_file():
                return ProcgenInstallation(library, folder / "data" / "assets")
    raise CompileError(
        f"the package procgen expected its library in data/prebuilt, got none in {spec.submodule_search_locations}; "
        f"run: {_INSTALL}"
    )


def check_assets(procgen: ProcgenInstallation) -> None:
    """Raise CompileError if an image of the package is missing: the library would end the process."""
    root = procgen.assets.parents[2]
    for name in ("procgen-mirror", "procgen"):
        try:
            files = metadata.distribution(name).files or ()
        except metadata.PackageNotFoundError:
            continue
        images = [root / file for file in files if file.suffix == ".png" and file.parts[:2] == ("procgen", "data")]
        missing = [str(image) for image in images if not image.is_file()]
        if not images or missing:
            raise CompileError(
                f"the package {name} expected its {len(images)} images, got {len(images) - len(missing)}; "
                f"{missing[0] if missing else procgen.assets} is missing; run: {_INSTALL} --force-reinstall"
            )
        return


def load() -> None:
    """Open Procgen's library and register the envs, once per process. Raises an ImportError or CompileError."""
    global _is_loaded
    with _lock:
        if _is_loaded:
            return
        procgen = installed_procgen()
        check_assets(procgen)
        plugin = installed_folder("plugins") / "libenvfleet_procgen.so"
        try:
            start = ctypes.CDLL(str(plugin)).envfleet_procgen_start
        except (OSError, AttributeError) as error:
            raise CompileError(
                f"the Procgen envs cannot be loaded from {plugin}: {error}; reinstall envfleet"
            ) from error
        start.argtypes, start.restype = (ctypes.c_char_p, ctypes.c_char_p), ctypes.c_char_p
        reason = start(os.fsencode(procgen.library), os.fsencode(f"{procgen.assets}{os.sep}"))
        if reason is not None:
            raise CompileError(
                f"Procgen's library cannot be used: {os.fsdecode(reason)}; if a system library is missing, install it "
                f"(Debian: apt-get install libgl1 libglib2.0-0), otherwise run: {_INSTALL}"
            )
        try:
            _native.load_plugin(str(plugin), may_block=False)
        except RuntimeError as error:
            raise CompileError(
                f"the Procgen envs cannot be loaded from {plugin}: {error}; reinstall envfleet"
            ) from error
        _is_loaded = True
