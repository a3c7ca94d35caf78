"""What the constructors are given, as a pool that suits TorchRL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import PassiveEnvChecker

from envfleet.apis.view import PoolView
from envfleet.errors import ConfigError
from envfleet.making.make import make_pool, make_spec
from envfleet.pool import Pool


@dataclass(frozen=True)
class PoolSource:
    """A pool, whether it was made here, and what opens it again after close(): collectors close the env
    that they were given, and GymEnv goes on after that. Raises PoolClosedError for a pool that was passed in."""

    pool: Pool
    is_ours: bool
    reopen: Callable[[], Pool]


def pool_for(
    env: Any,
    num_envs: int | None,
    create_env_kwargs: Mapping[str, Any] | None,
    disable_env_checker: bool,
    options: Mapping[str, Any],
) -> PoolSource:
    """The pool of these arguments."""
    if isinstance(env, (Pool, PoolView)):
        pool = env.pool if isinstance(env, PoolView) else env
        given = {**(create_env_kwargs or {}), **options}
        if given:
            raise ConfigError(
                f"expected no options beside a pool, got {', '.join(sorted(given))}; pass them to make_pool()"
            )
        if num_envs is not None and num_envs != pool.num_envs:
            raise ConfigError(f"num_envs expected {pool.num_envs}, as the pool has, got {num_envs}; leave it out")
        return PoolSource(pool, False, partial(_reset_pool_of, env))
    if create_env_kwargs is not None and not isinstance(create_env_kwargs, Mapping):
        raise ConfigError(f"create_env_kwargs expected a dict, got {type(create_env_kwargs).__name__}")
    asked = {**(create_env_kwargs or {}), **options}
    if num_envs is not None:
        asked["num_envs"] = num_envs
    asked.setdefault("autoreset_mode", AutoresetMode.SAME_STEP)
    if not disable_env_checker:
        asked = with_env_checker(env, asked)
    make = partial(make_pool, env, **asked)
    return PoolSource(make(), True, make)


def with_env_checker(env: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with Gymnasium's PassiveEnvChecker around Python envs. Native envs are checked by envfleet's
    own tests, and a wrapper would make them Python envs."""
    deciding = {name: options[name] for name in ("backend", "wrappers") if name in options}
    if make_spec(env, **deciding).native_id:
        return dict(options)
    return {**options, "wrappers": [PassiveEnvChecker, *(options.get("wrappers") or ())]}


def _reset_pool_of(envs: Pool | PoolView) -> Pool:
    """A view in EnvPool's dialect opens again by itself when it is reset; the others raise."""
    envs.reset()  # type: ignore[union-attr]  # every view that has a pool has it
    return envs.pool if isinstance(envs, PoolView) else envs


def check_owns_arrays(pool: Pool) -> None:
    """Tensors share the batch's memory, so it has to be theirs."""
    if not pool.config.copy:
        raise ConfigError("the torchrl api expected a pool with copy=True, got copy=False; leave it out")
