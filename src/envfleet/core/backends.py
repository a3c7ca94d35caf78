"""Backend: what runs the envs of a pool, described by what it can do; and the registry of backends.

building/backends.py registers those of envfleet. Everything else asks a backend what it can do, never which one it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envfleet.core.errors import ConfigError

if TYPE_CHECKING:
    from envfleet.core.executor import Executor
    from envfleet.core.options import PoolConfig

AUTO = "auto"  # no backend: make() chooses one
_registered: dict[str, Backend] = {}


def _refuse(*_: object) -> tuple[Executor, PoolConfig]:
    raise ConfigError(
        "expected a backend that runs such envs, got one that does not; "
        "give its Backend make_python for envs in Python, make_native for envs in C++"
    )


@dataclass(frozen=True)
class Backend:
    """What runs the envs of a pool.

    make_python(env_builders, make_spec, config, params), make_native(native_id, spec, config, params, make_renderer,
    plugin): return an executor, and the config with what the executor has resolved.
    runs_python_envs: it runs envs that are Python objects. One that does not runs envs in C++ only.
    is_local: it runs on this machine. Otherwise it takes a RayConfig, and counts its workers on the cluster.
    is_parallel: several workers step envs at the same time. Otherwise the caller's thread is the only worker.
    has_processes: envs run in other processes, which may crash or be killed without harm to this one.
    """

    name: str
    make_python: Callable[..., tuple[Executor, PoolConfig]] = _refuse
    make_native: Callable[..., tuple[Executor, PoolConfig]] = _refuse
    runs_python_envs: bool = True
    is_local: bool = True
    is_parallel: bool = True
    has_processes: bool = False

    @property
    def has_threads(self) -> bool:
        """Whether its workers are threads of this process."""
        return self.is_parallel and not self.has_processes


def register_backend(backend: Backend) -> None:
    """Add a backend, which make() then knows by its name."""
    _registered[backend.name] = backend


def all_backends() -> tuple[Backend, ...]:
    """Return every backend."""
    return tuple(_registered.values())


def local_backends() -> tuple[Backend, ...]:
    """Return the backends that run on this machine."""
    return tuple(backend for backend in _registered.values() if backend.is_local)


def find_backend(name: Any) -> Backend:
    """Return a backend by its name. Raises ConfigError if there is none."""
    if not isinstance(name, str) or name not in _registered:
        raise ConfigError(f"backend expected one of {(AUTO, *_registered)}, got {name!r}")
    return _registered[name]


def runs_native_only(name: str) -> bool:
    """Return whether the backend of this name, which may be "auto", runs no Python envs."""
    return name != AUTO and not find_backend(name).runs_python_envs
