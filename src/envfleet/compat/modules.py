"""Module trees under other packages' names: put into sys.modules by install(), removed by uninstall()."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from envfleet.core.aliases import forget_alias, record_alias
from envfleet.core.errors import CallOrderError


class AliasModule(ModuleType):
    """A module in the place of another package's.

    It is pickled as the call that installs it: an env's class may have `gym` or `envpool` among its globals, and the
    worker that unpickles the class needs the same module.
    """

    def __init__(self, name: str, names: Mapping[str, Any], installer: str, doc: str) -> None:
        super().__init__(name, doc)
        self.__dict__.update(names)
        public = [name for name in names if not name.startswith("_")]
        if public:  # a module with __getattr__ defines its own
            self.__all__ = public
        # Without a spec, importlib.util.find_spec(name) raises instead of finding it.
        self.__spec__ = ModuleSpec(name, loader=None, is_package=True)
        self.__path__: list[str] = []
        self._envfleet_installer = installer

    def __reduce__(self) -> tuple[Any, ...]:
        return _imported, (self._envfleet_installer, self.__name__)

    def __repr__(self) -> str:
        return f"<module {self.__name__!r} (envfleet's, from {self._envfleet_installer})>"


# For in_worker of install_tree(), where install() takes old_gym. The stand-in for gym is recorded by its own installer:
# a worker gets it only if this process uses it.
WITHOUT_GYM = {"old_gym": False}


def installed(root: str, installer: str) -> ModuleType | None:
    """Return the module that this installer has installed, or None. Raise if another module has that name."""
    there = sys.modules.get(root)
    if there is None or (isinstance(there, AliasModule) and there._envfleet_installer == installer):
        return there
    raise CallOrderError(
        f"{installer}.install() expected that {root!r} is not imported yet, got "
        f"{getattr(there, '__file__', None) or repr(there)}; call install() before its first import, "
        "or use that module without install()"
    )


def install_tree(
    root: str, members: Mapping[str, Mapping[str, Any]], installer: str, doc: str, in_worker: Mapping[str, Any]
) -> ModuleType:
    """Put root and its submodules into sys.modules. members: the names in each module, by its path below root ("").

    If this installer has installed it before, nothing changes. Another module of that name is refused: code that has
    imported it would keep using it.

    in_worker: the keyword arguments with which workers of this process call the installer's install().
    """
    there = installed(root, installer)
    if there is not None:
        return there
    for path, names in members.items():
        name = f"{root}.{path}" if path else root
        sys.modules[name] = AliasModule(name, names, installer, doc)
    for path in members:
        if path:
            parent, _, last = f"{root}.{path}".rpartition(".")
            setattr(sys.modules[parent], last, sys.modules[f"{root}.{path}"])
    record_alias(installer, in_worker)
    return sys.modules[root]


def remove_tree(root: str, installer: str) -> bool:
    """Remove what install_tree() installed, and nothing else; return True if there was anything."""
    ours = [
        name
        for name, module in sys.modules.items()
        if (name == root or name.startswith(f"{root}.")) and getattr(module, "_envfleet_installer", None) == installer
    ]
    for name in ours:
        del sys.modules[name]
    if ours:
        forget_alias(installer)
    return bool(ours)


def is_available(name: str) -> bool:
    """Return whether a module of that name is imported or can be."""
    if name in sys.modules:
        return sys.modules[name] is not None
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _imported(installer: str, name: str) -> ModuleType:
    """Unpickle an AliasModule: the real module if this process has one, else the alias."""
    if name not in sys.modules and not is_available(name):
        import_module(installer).install()
    return import_module(name)
