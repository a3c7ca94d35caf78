"""The registry of envpool_wrapper's envs: a file that keeps the import path of each across processes.

The file is envpool_wrap.json in ENVFLEET_DATA, else in envfleet of the user's data folder
(XDG_DATA_HOME, else ~/.local/share). Classes of a notebook have no import path: they are registered in this
process only.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from envfleet.core.errors import ConfigError, EnvfleetError
from envfleet.core.files import new_file

_live: dict[str, type] = {}


@dataclass(frozen=True)
class ImportPath:
    """The import path of a class: its module, and the folder that has to be on sys.path."""

    module: str
    folder: str
    file: str
    class_name: str

    def load(self) -> type:
        """Import the class."""
        from envfleet.compat import envpool_protocol

        envpool_protocol.install()  # the file has the original import lines
        found: Any = _module_of(self)
        for name in self.class_name.split("."):
            found = getattr(found, name, None)
        if not isinstance(found, type):
            raise ConfigError(
                f"{self.file} expected to define the class {self.class_name}, found none; define it at the top "
                "level of the file, not under `if __name__ == '__main__':`, and register it again if it has moved"
            )
        return found


def registry_file() -> Path:
    """Return the path of the registry file."""
    if chosen := os.environ.get("ENVFLEET_DATA"):
        return Path(chosen, "envpool_wrap.json")
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base, "envfleet", "envpool_wrap.json")


def task_id_of(cls: type) -> str:
    """Return the task id of a class."""
    return f"{cls.__name__}_wrap"


def remember(cls: type) -> ImportPath | None:
    """Register a class for this process and, by its import path, for others. Return the path, or None without one."""
    path = import_path_of(cls)
    _live[task_id_of(cls)] = cls
    if path is not None:
        with _locked():
            kept = _read()
            kept[task_id_of(cls)] = path
            _write(kept)
    return path


def forget(task_id: str) -> bool:
    """Remove an id from this process and from the file; return True if it was there."""
    was_live = _live.pop(task_id, None) is not None
    if not registry_file().exists():
        return was_live
    with _locked():
        kept = _read()
        was_kept = kept.pop(task_id, None) is not None
        _write(kept)
    return was_live or was_kept


def known_ids() -> list[str]:
    """Return all ids, of this process and of the file."""
    return sorted({*_live, *_read()})


def find(task_id: str) -> type | ImportPath | None:
    """Return the class or import path of an id. A class of this process takes precedence over the file."""
    return _live.get(task_id) or _read().get(task_id)


def import_path_of(cls: type) -> ImportPath | None:
    """Return the import path of a class, or None if it was defined in a function or at a prompt."""
    module = sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None)
    if file is None or "<" in cls.__qualname__ or not os.path.isfile(file):
        return None
    path = Path(file).resolve()
    name = path.stem if cls.__module__ == "__main__" else cls.__module__
    spec = getattr(module, "__spec__", None)
    if cls.__module__ == "__main__" and spec is not None and spec.name:  # python -m package.module
        name = spec.name.removesuffix(".__main__")
    folder = path.parent
    depth = name.count(".") + (path.name == "__init__.py")
    for _ in range(depth):
        folder = folder.parent
    return ImportPath(name, str(folder), str(path), cls.__qualname__)


def _module_of(path: ImportPath) -> Any:
    loaded = sys.modules.get(path.module)
    if loaded is not None and _is_from(loaded, path.file):
        return loaded
    if not os.path.isfile(path.file):
        raise ConfigError(
            f"{path.class_name} was registered from {path.file}, which no longer exists; register it again, "
            f"or remove it: envfleet.compat.envpool_protocol.forget('{path.class_name}_wrap')"
        )
    if path.folder not in sys.path:
        sys.path.append(path.folder)
    if loaded is None:
        with contextlib.suppress(ImportError):
            spec = importlib.util.find_spec(path.module)
            if spec is not None and spec.origin and os.path.samefile(spec.origin, path.file):
                return importlib.import_module(path.module)
    # Another module has that name: this one gets a different one.
    name = f"envfleet_{hashlib.sha256(path.file.encode()).hexdigest()[:12]}_{Path(path.file).stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path.file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _is_from(module: Any, file: str) -> bool:
    own = getattr(module, "__file__", None)
    return own is not None and os.path.exists(own) and os.path.exists(file) and os.path.samefile(own, file)


def _read() -> dict[str, ImportPath]:
    file = registry_file()
    try:
        kept = json.loads(file.read_text())
        return {task_id: ImportPath(**fields) for task_id, fields in kept["envs"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise EnvfleetError(
            f"{file} cannot be read as a list of registered envs ({error}); delete it and register your envs again"
        ) from error


def _write(kept: dict[str, ImportPath]) -> None:
    file = registry_file()
    text = json.dumps(
        {"version": 1, "envs": {task_id: asdict(path) for task_id, path in sorted(kept.items())}}, indent=2
    )
    # A concurrent reader sees the old file or the new one, never a part.
    with new_file(file) as path:
        path.write_text(text + "\n")


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    file = registry_file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise EnvfleetError(
            f"{file} cannot be written ({error}); set ENVFLEET_DATA to a folder that you may write to"
        ) from error
