"""The handlers through which XLA programs step pools: found or built for the installed jaxlib, and registered once.

headers of the installed jaxlib -> the library that was built against that version of XLA's interface -> jax.ffi
"""

from __future__ import annotations

import ctypes
import re
import threading
from pathlib import Path

from envfleet import _native
from envfleet.apis.common.versions import check_version
from envfleet.core.errors import CompileError, MissingExtraError
from envfleet.core.installation import installed_folder
from envfleet.envs.compiler import build

try:
    import jax
except ImportError as error:
    raise MissingExtraError("jax", "jax", "the jax api") from error

check_version("jax", "jax", jax.__version__, "0.5", None, "0.10.2 and 0.11.2")

OPERATIONS = ("step", "send", "recv")

_lock = threading.Lock()
_loaded: ctypes.CDLL | None = None


def interface_version(include: str | Path) -> str:
    """Return the version of XLA's foreign function interface that the headers in this folder declare."""
    header = Path(include, "xla", "ffi", "api", "c_api.h")
    try:
        text = header.read_text()
    except OSError as error:
        raise CompileError(f"the jax api expected XLA's headers in the installed jaxlib, got none: {error}") from error
    numbers = [re.search(rf"#define XLA_FFI_API_{part}\s+(\d+)", text) for part in ("MAJOR", "MINOR")]
    if None in numbers:
        raise CompileError(f"the jax api expected the version of XLA's interface in {header}, found none; update jax")
    return ".".join(number.group(1) for number in numbers if number is not None)


def load() -> ctypes.CDLL:
    """Register the handlers with jax, and return their library. Raises CompileError with the reason."""
    global _loaded
    with _lock:
        if _loaded is None:
            _loaded = _load()
        return _loaded


def _load() -> ctypes.CDLL:
    include = jax.ffi.include_dir()
    version = interface_version(include)
    shipped = installed_folder("xla") / f"libenvfleet_xla-{version}.so"
    if shipped.is_file():
        return _register(str(shipped))
    try:
        return _register(str(build(installed_folder("xla") / "handlers.cc", flags=[f"-I{include}"])))
    except CompileError as error:
        raise CompileError(
            f"the handlers for XLA could not be built for jaxlib with XLA's interface {version}: {error}"
        ) from error


def _register(path: str) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(path)
        start = library.envfleet_xla_start
    except (OSError, AttributeError) as error:
        raise CompileError(f"the handlers for XLA cannot be loaded from {path}: {error}") from error
    start.argtypes, start.restype = (ctypes.c_void_p,), ctypes.c_bool
    if not start(_native.xla_pool_functions()):
        raise CompileError(f"the handlers for XLA in {path} are of another version of envfleet; reinstall envfleet")
    for operation in OPERATIONS:
        for platform, suffix in (("cpu", "cpu"), ("CUDA", "cuda")):
            handler = jax.ffi.pycapsule(getattr(library, f"envfleet_{operation}_{suffix}"))
            jax.ffi.register_ffi_target(f"envfleet_{operation}", handler, platform=platform)
    return library
