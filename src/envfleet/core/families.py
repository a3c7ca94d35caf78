"""FAMILIES: every family of env ids that envfleet knows, and lookups in it.

Every Family that a module of one package defines is known: nothing lists these modules.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from envfleet.core.family import Family

_PACKAGE = "envfleet.families"


def _found() -> tuple[Family, ...]:
    """Return the families that the package's modules define, in the order of the modules' names."""
    modules = [import_module(own.name) for own in iter_modules(import_module(_PACKAGE).__path__, f"{_PACKAGE}.")]
    return tuple(own for module in modules for own in vars(module).values() if isinstance(own, Family))


FAMILIES = _found()


def native_family(native_id: str) -> Family:
    """Return the family of a native env. The env of a plug-in is a family by itself."""
    return next((family for family in FAMILIES if native_id in family.native_ids), Family("plug-in", (native_id,)))


def find_python_family(env_id: object) -> Family | None:
    """Return the family whose Python envs include this id, or None."""
    if not isinstance(env_id, str):
        return None
    return next((family for family in FAMILIES if env_id in family.python_ids()), None)


def python_family_ids() -> set[str]:
    """Return the ids of every family's Python envs."""
    return {env_id for family in FAMILIES for env_id in family.python_ids()}
