"""What the constructors are given, as a pool that suits TorchRL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import PassiveEnvChecker

from envfleet.apis.view import PoolView
from envfleet.errors import ConfigError
from envfleet.pool import Pool
from envfleet.registry import make_pool, make_spec


def pool_for(
    env: Any,
    num_envs: int | None,
    create_env_kwargs: Mapping[str, Any] | None,
    disable_env_checker: bool,
    options: Mapping[str, Any],
) -> tuple[Pool, bool]:
    """The pool, and whether it was made here."""
    if isinstance(env, PoolView):
        env = env.pool
    if isinstance(env, Pool):
        given = {**(create_env_kwargs or {}), **options}
        if given:
            raise ConfigError(
                f"expected no options beside a pool, got {', '.join(sorted(given))}; pass them to make_pool()"
            )
        if num_envs is not None and num_envs != env.num_envs:
            raise ConfigError(f"num_envs expected {env.num_envs}, as the pool has, got {num_envs}; leave it out")
        return env, False
    if create_env_kwargs is not None and not isinstance(create_env_kwargs, Mapping):
        raise ConfigError(f"create_env_kwargs expected a dict, got {type(create_env_kwargs).__name__}")
    asked = {**(create_env_kwargs or {}), **options}
    if num_envs is not None:
        asked["num_envs"] = num_envs
    asked.setdefault("autoreset_mode", AutoresetMode.SAME_STEP)
    # Native envs are checked by envfleet's own tests; a wrapper would make them Python envs.
    if not disable_env_checker and not make_spec(env, **asked).native_id:
        asked["wrappers"] = [PassiveEnvChecker, *(asked.get("wrappers") or ())]
    return make_pool(env, **asked), True


def check_owns_arrays(pool: Pool) -> None:
    """Tensors share the batch's memory, so it has to be theirs."""
    if not pool.config.copy:
        raise ConfigError("the torchrl api expected a pool with copy=True, got copy=False; leave it out")
