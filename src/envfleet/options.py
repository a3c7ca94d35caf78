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
_MAX_ENVS = 2**31 - 1
_MAX_THREADS = 1024


def pool_config(env_id: str, options: Mapping[str, Any]) -> tuple[PoolConfig, Any, dict[str, Any]]:
    """(the pool's options, the seed, the env's parameters)."""
    given = dict(options)
    # The one way to a parameter of the env that is named like an option of the pool.
    env_kwargs = dict(given.pop("env_kwargs", None) or {})
    seed = given.pop("seed", None)
    given.pop("backend", None)
    pool = {name: given.pop(name) for name in list(given) if name in POOL_OPTIONS}

    num_envs = _integer("num_envs", pool.get("num_envs", 1), 1, _MAX_ENVS)
    batch_size = _integer("batch_size", pool.get("batch_size") or num_envs, 1, num_envs)
    num_threads = _integer("num_threads", pool.get("num_threads") or 0, 0, _MAX_THREADS)
    limit = pool.get("max_episode_steps")
    on_error = pool.get("on_error", "raise")
    if on_error not in ("raise", "restart"):
        raise ConfigError(f"on_error expected 'raise' or 'restart', got {on_error!r}")
    render_mode = pool.get("render_mode")
    if render_mode not in (None, "rgb_array"):
        raise ConfigError(f"render_mode expected 'rgb_array' or None, got {render_mode!r}; render() gives the frames")
    threshold = pool.get("reward_threshold")
    config = PoolConfig(
        num_envs=num_envs,
        batch_size=batch_size,
        num_threads=num_threads or min(batch_size, _native.usable_cores()),
        thread_affinity_offset=_integer(
            "thread_affinity_offset", pool.get("thread_affinity_offset", -1), -1, _MAX_ENVS
        ),
        autoreset_mode=parse_mode(pool.get("autoreset_mode", "next_step")),
        max_episode_steps=None if limit is None else _integer("max_episode_steps", limit, 1, _MAX_ENVS),
        reward_threshold=None if threshold is None else float(threshold),
        render_mode=render_mode,
        on_error=on_error,
        max_restarts=_integer("max_restarts", pool.get("max_restarts", 100), 0, _MAX_ENVS),
        copy=bool(pool.get("copy", True)),
    )
    return config, seed, {**given, **env_kwargs}


def _integer(name: str, value: Any, lowest: int, highest: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or not lowest <= number <= highest:
        raise ConfigError(f"{name} expected an integer from {lowest} to {highest}, got {value!r}")
    return number
