"""The options of make(): told apart from the env's parameters, checked, defaults filled in."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from envfleet import _native
from envfleet.autoreset import parse_mode
from envfleet.errors import ConfigError
from envfleet.spec import PoolConfig

POOL_OPTIONS = frozenset(field.name for field in fields(PoolConfig)) | {"seed", "backend", "env_kwargs"}
BACKENDS = ("auto", "native")
_MAX_ENVS = 2**31 - 1
_MAX_THREADS = 1024


def pool_config(env_id: str, options: Mapping[str, Any]) -> tuple[PoolConfig, Any, dict[str, Any]]:
    """(the pool's options, the seed, the env's parameters)."""
    given = dict(options)
    # The one way to a parameter of the env that is named like an option of the pool.
    env_kwargs = given.pop("env_kwargs", None) or {}
    if not isinstance(env_kwargs, Mapping):
        raise ConfigError(f"env_kwargs expected a dict of parameters, got {type(env_kwargs).__name__}: {env_kwargs!r}")
    seed = given.pop("seed", None)
    backend = given.pop("backend", "auto")
    if backend not in BACKENDS:
        raise ConfigError(f"backend expected one of {BACKENDS}, got {backend!r}")
    pool = {name: given.pop(name) for name in list(given) if name in POOL_OPTIONS}

    num_envs = integer_option("num_envs", pool.get("num_envs", 1), 1, _MAX_ENVS)
    # 0 stands for the default, as in EnvPool.
    batch_size = integer_option("batch_size", _or_default(pool.get("batch_size"), num_envs), 1, num_envs)
    num_threads = integer_option("num_threads", _or_default(pool.get("num_threads"), 0), 0, _MAX_THREADS)
    limit = pool.get("max_episode_steps")
    on_error = pool.get("on_error", "raise")
    if on_error not in ("raise", "restart"):
        raise ConfigError(f"on_error expected 'raise' or 'restart', got {on_error!r}")
    render_mode = pool.get("render_mode")
    if render_mode not in (None, "rgb_array"):
        raise ConfigError(f"render_mode expected 'rgb_array' or None, got {render_mode!r}; render() gives the frames")
    threshold = pool.get("reward_threshold")
    if threshold is not None and (isinstance(threshold, bool) or not isinstance(threshold, (int, float))):
        raise ConfigError(f"reward_threshold expected a number or None, got {threshold!r}")
    config = PoolConfig(
        num_envs=num_envs,
        batch_size=batch_size,
        num_threads=num_threads or min(batch_size, _native.usable_cores()),
        thread_affinity_offset=integer_option(
            "thread_affinity_offset", pool.get("thread_affinity_offset", -1), -1, _MAX_ENVS
        ),
        autoreset_mode=parse_mode(pool.get("autoreset_mode", "next_step")),
        max_episode_steps=None if limit is None else integer_option("max_episode_steps", limit, 1, _MAX_ENVS),
        reward_threshold=None if threshold is None else float(threshold),
        render_mode=render_mode,
        on_error=on_error,
        max_restarts=integer_option("max_restarts", pool.get("max_restarts", 100), 0, _MAX_ENVS),
        copy=bool(pool.get("copy", True)),
    )
    return config, seed, {**given, **env_kwargs}


def _or_default(value: Any, default: int) -> Any:
    return default if value is None or (isinstance(value, int) and value == 0) else value


def integer_option(name: str, value: Any, lowest: int, highest: int) -> int:
    """The value as an int within these limits, or a ConfigError that names them."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or not lowest <= number <= highest:
        raise ConfigError(f"{name} expected an integer from {lowest} to {highest}, got {value!r}")
    return number
