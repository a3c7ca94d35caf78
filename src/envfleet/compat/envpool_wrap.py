"""envpool_wrapper's `envpool_wrap`: the registered Python envs behind EnvPool's API.

Each call takes the id of a registered env ("MyEnv_wrap") and every option of envfleet.make(): backend
(for example "threads"), seed, max_episode_steps ...; other keywords are arguments of the env's constructor.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

import numpy as np

from envfleet.compat import envpool
from envfleet.compat.envpool.env_spec import EnvPoolSpec
from envfleet.compat.envpool.pool_mixin import EnvPoolMixin
from envfleet.compat.envpool_protocol.registry import ImportPath, find, known_ids, registry_file
from envfleet.compat.modules import is_available
from envfleet.core.errors import UnknownEnvError
from envfleet.envs.adapters import takes_env_id

__version__ = envpool.__version__

__all__ = ["EnvPoolMixin", "list_all_envs", "make", "make_dm", "make_gym", "make_gymnasium", "make_spec"]


@dataclass(frozen=True)
class _Builder:
    """Builds one env in its worker. A class with an import path is imported there instead of being pickled."""

    source: type | ImportPath
    env_id: int
    __name__: str

    def __call__(self, **kwargs: Any) -> Any:
        cls = self.source.load() if isinstance(self.source, ImportPath) else self.source
        return cls(self.env_id, **kwargs) if takes_env_id(cls) else cls(**kwargs)


def provide_envpool() -> None:
    """Install the alias `envpool`, which TorchRL's classes import, unless a module of that name is installed.

    The envpool_wrap.py that generate_envpool_wrap() writes calls it.
    """
    if not is_available("envpool"):
        envpool.install()


def list_all_envs() -> list[str]:
    """Return the ids of all registered envs."""
    return known_ids()


def make(task_id: str, env_type: str = "gym", **options: Any) -> Any:
    """Make a pool of a registered env."""
    return envpool.make(_builders(task_id, options), env_type, **options)


def make_gym(task_id: str, **options: Any) -> Any:
    """Make a pool of a registered env with gym's API."""
    return envpool.make_gym(_builders(task_id, options), **options)


def make_gymnasium(task_id: str, **options: Any) -> Any:
    """Make a pool of a registered env with Gymnasium's API."""
    return envpool.make_gymnasium(_builders(task_id, options), **options)


def make_dm(task_id: str, **options: Any) -> Any:
    """Make a pool of a registered env with dm_env's API."""
    return envpool.make_dm(_builders(task_id, options), **options)


def make_spec(task_id: str, **options: Any) -> EnvPoolSpec:
    """Return the spec of the pool that make() would build."""
    return envpool.make_spec(_builders(task_id, options), **options)


def _builders(task_id: str, options: dict[str, Any]) -> list[_Builder]:
    """Return one builder per env: the protocol's constructors take the env's id."""
    source = find(task_id)
    if source is None:
        known = list_all_envs()
        nearest = difflib.get_close_matches(str(task_id), known, n=1)
        hint = f"did you mean {nearest[0]}?" if nearest else f"registered are {', '.join(known) or 'none'}"
        raise UnknownEnvError(
            f"make() expected the id of a registered env, got {task_id!r}; {hint} "
            f"(EnvManager.register_env() registers envs in {registry_file()})"
        )
    num_envs = options.get("num_envs", 1)
    is_count = isinstance(num_envs, (int, np.integer)) and num_envs > 0
    count = int(num_envs) if is_count else 1  # make() refuses other values
    return [_Builder(source, env_id, task_id) for env_id in range(count)]
