"""The other packages' module names that envfleet.compat has installed in this process.

They are part of what a worker inherits from its parent, like sys.path: user code in a module is imported again in the
worker, and needs the same names there. The installers record themselves here; what starts workers passes
installed_aliases() on, and each worker calls install_inherited() before it loads any user code.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

# (a module that has install(), the keyword arguments of that function in a worker), in the order of installation.
InstalledAliases = tuple[tuple[str, dict[str, Any]], ...]

# By the name that user code imports. Also of those that are not installed: see missing_alias_remedy().
_INSTALLERS = {
    "RayEnvWrapper": "envfleet.compat.ray_env_wrapper",
    "env_wrappers": "envfleet.compat.env_wrappers",
    "envpool": "envfleet.compat.envpool",
    "envpool_protocol": "envfleet.compat.envpool_protocol",
    "envpool_wrap": "envfleet.compat.envpool_protocol",
    "gym": "envfleet.compat.gym_stand_in",
}

_installed: dict[str, dict[str, Any]] = {}


def record_alias(installer: str, arguments: Mapping[str, Any]) -> None:
    """Record that this module's install() has installed its names. arguments: for the same call in a worker."""
    _installed[installer] = dict(arguments)


def forget_alias(installer: str) -> None:
    """Record that this module's names have been removed."""
    _installed.pop(installer, None)


def installed_aliases() -> InstalledAliases:
    """Return what a worker of this process has to install."""
    return tuple(_installed.items())


def install_inherited(aliases: InstalledAliases) -> None:
    """Install in this process what its parent has installed. Workers of this process inherit it in turn."""
    for installer, arguments in aliases:
        import_module(installer).install(**arguments)


def missing_alias_remedy(error: BaseException | None) -> str | None:
    """Return the remedy for a failed import of a name that envfleet could install, else None."""
    name = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
    installer = _INSTALLERS.get(name) if isinstance(name, str) else None
    if installer is None:
        return None
    package = "stand-in for gym" if name == "gym" else f"alias {name!r}"
    remedy = (
        f"for envfleet's {package}, call {installer}.install() before this call (it reaches all workers), "
        "or run the script with `python -m envfleet.compat`"
    )
    return f"install gym, or {remedy}" if name == "gym" else remedy
