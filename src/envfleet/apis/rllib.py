"""Pools in RLlib: an env creator for gym_env_vectorize_mode="vector_entry_point".

from envfleet.apis import rllib

rllib.register("fleet-cartpole", "CartPole-v1")
config = (
    PPOConfig()
    .environment("fleet-cartpole")
    .env_runners(gym_env_vectorize_mode="vector_entry_point", num_envs_per_env_runner=64)
)

Each EnvRunner then has one pool of num_envs_per_env_runner envs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gymnasium.vector import AutoresetMode

from envfleet.apis.common.versions import check_version
from envfleet.apis.gymnasium import GymnasiumPool, make_gymnasium
from envfleet.building.pools import Env
from envfleet.core.autoreset import parse_mode
from envfleet.core.errors import ConfigError, MissingExtraError

Creator = Callable[[Mapping[str, Any]], GymnasiumPool]


def vector_entry_point(task_id: Env, **options: Any) -> Creator:
    """Return the env creator that RLlib calls with its env_config to make the pool of an EnvRunner.

    Options are those of envfleet.make(), without num_envs; RLlib's env_config overrides them.
    """
    _check_options(options)

    def make_vector_env(config: Mapping[str, Any]) -> GymnasiumPool:
        merged = {**options, **config}
        if "num_envs" not in config:
            raise ConfigError(
                "a pool in RLlib expected num_envs, got none; set "
                '.env_runners(gym_env_vectorize_mode="vector_entry_point", num_envs_per_env_runner=...)'
            )
        _check_options({key: value for key, value in merged.items() if key != "num_envs"})
        return make_gymnasium(task_id, **merged)

    return make_vector_env


def register(name: str, task_id: Env, **options: Any) -> None:
    """Register an env under a name for RLlib's .environment(name); options as in vector_entry_point()."""
    try:
        import ray
        from ray.tune.registry import register_env
    except ImportError as error:
        raise MissingExtraError("ray[rllib]", "rllib", "the RLlib api") from error
    check_version("RLlib", "ray[rllib]", ray.__version__, "2.60", None, "2.60")
    register_env(name, vector_entry_point(task_id, **options))


def _check_options(options: Mapping[str, Any]) -> None:
    mode = parse_mode(options.get("autoreset_mode", "next_step"))
    if mode is not AutoresetMode.NEXT_STEP:
        raise ConfigError(
            "RLlib expected autoreset_mode 'next_step', because it treats the row after an end as a reset, "
            f"got {mode}; leave it out"
        )
    if "num_envs" in options:
        raise ConfigError(
            "num_envs is set by RLlib: use .env_runners(num_envs_per_env_runner=...) and leave it out here"
        )
    if options.get("batch_size"):
        raise ConfigError("RLlib steps all envs at once and does not support batch_size; leave it out")
