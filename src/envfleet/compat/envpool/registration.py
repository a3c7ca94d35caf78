"""EnvPool's make(), make_gym() ..., list_all_envs() and register(), and the registry of its task ids."""

from __future__ import annotations

from typing import Any

import envfleet.building.registry as envs
from envfleet.building.pools import Env
from envfleet.compat.envpool.env_spec import EnvPoolSpec
from envfleet.compat.envpool.families import classes_for, env_class_of
from envfleet.compat.envpool.gym_envpools import GymEnvPool, GymnasiumEnvPool
from envfleet.compat.envpool.player_pools import make_player_pool, wants_players
from envfleet.core.errors import ConfigError

_POOL_KINDS = {"gym": "GymEnvPool", "gymnasium": "GymnasiumEnvPool", "dm": "DMEnvPool"}

base_path = ""


class EnvRegistry:
    """Every task id, as EnvPool's registry has them: specs, envpools, and the functions of the module."""

    @property
    def specs(self) -> dict[str, tuple[str, str, dict[str, Any]]]:
        """The module and name of each task's spec class, with the gen_config() arguments that select the task."""
        return {
            task_id: (f"envpool.{own.module}", f"{own.name}EnvSpec", {"task_id": task_id, "base_path": base_path})
            for task_id in list_all_envs()
            if (own := env_class_of(task_id)) is not None
        }

    @property
    def envpools(self) -> dict[str, dict[str, tuple[str, str]]]:
        """The module and name of each task's pool class, by env_type."""
        return {
            task_id: {
                env_type: (f"envpool.{own.module}", f"{own.name}{kind}") for env_type, kind in _POOL_KINDS.items()
            }
            for task_id in list_all_envs()
            if (own := env_class_of(task_id)) is not None
        }

    def make(self, task_id: Env, env_type: str = "gym", **options: Any) -> Any:
        """Make a pool with EnvPool's API."""
        if env_type not in _POOL_KINDS:
            raise ConfigError(f"env_type expected 'gym', 'gymnasium' or 'dm', got {env_type!r}")
        if wants_players(options):
            return make_player_pool(task_id, env_type, options)
        spec = classes_for(task_id, "EnvSpec").of_task(task_id, options)
        return classes_for(task_id, _POOL_KINDS[env_type])(spec)

    def make_gym(self, task_id: Env, **options: Any) -> GymEnvPool:
        """Make a pool with the API of the gym package; see envfleet.compat.envpool.gym_module."""
        pool: GymEnvPool = self.make(task_id, "gym", **options)
        return pool

    def make_gymnasium(self, task_id: Env, **options: Any) -> GymnasiumEnvPool:
        """Make a pool with Gymnasium's API: (obs, info) and 5-tuples."""
        pool: GymnasiumEnvPool = self.make(task_id, "gymnasium", **options)
        return pool

    def make_dm(self, task_id: Env, **options: Any) -> Any:
        """Make a pool with dm_env's API."""
        return self.make(task_id, "dm", **options)

    def make_spec(self, task_id: Env, **options: Any) -> EnvPoolSpec:
        """Return the spec of the pool that make() would build."""
        spec: EnvPoolSpec = classes_for(task_id, "EnvSpec").of_task(task_id, options)
        _ = spec.env_spec  # raises for invalid options
        return spec

    def list_all_envs(self) -> list[str]:
        """Return every task id of envfleet. make() also takes any id of Gymnasium."""
        return envs.list_all_envs()

    def register(self, task_id: str, *args: Any, **kwargs: Any) -> None:
        """Call envfleet.register(task_id, base, ...). EnvPool's form, for C++ classes, is refused."""
        if "import_path" in kwargs or "spec_cls" in kwargs or len(args) > 1:
            raise ConfigError(
                f"register({task_id!r}, ...) expected a known id as base, got the classes of an env built for EnvPool; "
                "port it with envfleet.compile(), or pass a Python env's class to make()"
            )
        envs.register(task_id, *args, **kwargs)


registry = EnvRegistry()
make = registry.make
make_gym = registry.make_gym
make_gymnasium = registry.make_gymnasium
make_dm = registry.make_dm
make_spec = registry.make_spec
list_all_envs = registry.list_all_envs
register = registry.register
