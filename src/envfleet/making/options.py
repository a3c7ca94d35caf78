"""The options of make(): told apart from the env's parameters, checked, defaults filled in."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from envfleet import _native
from envfleet.autoreset import parse_mode
from envfleet.errors import ConfigError
from envfleet.making.ray_options import MAX_RAY_WORKERS, ray_settings, ray_sizes, refuse_ray_options
from envfleet.spec import PoolConfig

POOL_OPTIONS = frozenset(field.name for field in fields(PoolConfig)) | {"seed", "backend", "env_kwargs", "wrappers"}
PYTHON_BACKENDS = ("serial", "threads", "processes")
BACKENDS = ("auto", "native", *PYTHON_BACKENDS, "ray")
NO_LIMIT = -1  # max_episode_steps: not even the env's own, as in gymnasium.make()
_MAX_ENVS = 2**31 - 1
_MAX_WORKERS = 1024
START_METHODS = ("forkserver", "spawn", "fork")


@dataclass(frozen=True)
class Options:
    """What make() was given, sorted.

    params: the env's parameters, one dict for all envs or one for each.
    """

    config: PoolConfig
    seed: Any
    backend: str
    params: tuple[dict[str, Any], ...]
    wrappers: tuple[Callable[[Any], Any], ...] = ()
    given: frozenset[str] = frozenset()  # the pool's options that were named


def parse_options(options: Mapping[str, Any], default_num_envs: int = 1) -> Options:
    """The options of make(), checked."""
    given = dict(options)
    # The one way to a parameter of the env that is named like an option of the pool.
    env_kwargs = given.pop("env_kwargs", None)
    seed = given.pop("seed", None)
    backend = given.pop("backend", "auto")
    if backend not in BACKENDS:
        raise ConfigError(f"backend expected one of {BACKENDS}, got {backend!r}")
    wrappers = given.pop("wrappers", None) or ()
    if not isinstance(wrappers, (list, tuple)):
        raise ConfigError(f"wrappers expected a list of callables, got {type(wrappers).__name__}: {wrappers!r}")
    pool = {name: given.pop(name) for name in list(given) if name in POOL_OPTIONS}
    refuse_ray_options(backend, pool)
    config = _ray_config(pool, default_num_envs) if backend == "ray" else _pool_config(pool, default_num_envs)
    params = tuple({**given, **own} for own in _env_kwargs(env_kwargs, config.num_envs))
    return Options(config, seed, backend, params, tuple(wrappers), frozenset(pool))


def _env_kwargs(given: Any, num_envs: int) -> list[Mapping[str, Any]]:
    if given is None:
        return [{}]
    dicts = list(given) if isinstance(given, (list, tuple)) else [given]
    for own in dicts:
        if not isinstance(own, Mapping):
            raise ConfigError(f"env_kwargs expected a dict of parameters, got {type(own).__name__}: {own!r}")
    if isinstance(given, (list, tuple)) and len(dicts) != num_envs:
        raise ConfigError(
            f"env_kwargs expected a dict, or a list of {num_envs} dicts, one for each env, got a list of {len(dicts)}"
        )
    return dicts


def _ray_config(pool: Mapping[str, Any], default_num_envs: int) -> PoolConfig:
    pool = ray_sizes(pool, default_num_envs, integer_option, _MAX_ENVS)
    num_threads = integer_option("num_threads", _or_default(pool.get("num_threads"), 0), 0, _MAX_WORKERS)
    # Of what one worker does inside itself: not EnvPool's word for workers here.
    config = _pool_config({**pool, "num_threads": 0}, default_num_envs, MAX_RAY_WORKERS)
    return replace(
        config,
        num_threads=num_threads,
        envs_per_worker=pool.get("envs_per_worker"),
        placement_timeout=seconds_option("placement_timeout", pool.get("placement_timeout")) or 60.0,
        ray_direct=flag_option("ray_direct", pool.get("ray_direct", True)),
        **ray_settings(pool),
    )


def _pool_config(pool: Mapping[str, Any], default_num_envs: int, max_workers: int = _MAX_WORKERS) -> PoolConfig:
    num_envs = integer_option("num_envs", pool.get("num_envs", default_num_envs), 1, _MAX_ENVS)
    # 0 stands for the default, as in EnvPool.
    batch_size = integer_option("batch_size", _or_default(pool.get("batch_size"), num_envs), 1, num_envs)
    num_threads = integer_option("num_threads", _or_default(pool.get("num_threads"), 0), 0, _MAX_WORKERS)
    # num_threads is EnvPool's word for it.
    num_workers = integer_option("num_workers", _or_default(pool.get("num_workers"), num_threads), 0, max_workers)
    limit = pool.get("max_episode_steps")
    return PoolConfig(
        num_envs=num_envs,
        batch_size=batch_size,
        num_threads=num_threads or min(batch_size, _native.usable_cores()),
        num_workers=min(num_envs, num_workers or _native.usable_cores()),
        thread_affinity_offset=integer_option(
            "thread_affinity_offset", pool.get("thread_affinity_offset", -1), -1, _MAX_ENVS
        ),
        autoreset_mode=parse_mode(pool.get("autoreset_mode", "next_step")),
        max_episode_steps=None if limit is None else _step_limit(limit),
        reward_threshold=_number("reward_threshold", pool.get("reward_threshold")),
        render_mode=_render_mode(pool.get("render_mode")),
        on_error=choice_option("on_error", pool.get("on_error", "raise"), ("raise", "restart")),
        max_restarts=integer_option("max_restarts", pool.get("max_restarts", 100), 0, _MAX_ENVS),
        step_timeout=seconds_option("step_timeout", pool.get("step_timeout")),
        start_method=choice_option("start_method", pool.get("start_method") or "forkserver", START_METHODS),
        check_actions=bool(pool.get("check_actions", True)),
        copy=bool(pool.get("copy", True)),
        seed_envs=bool(pool.get("seed_envs", True)),
    )


def _step_limit(value: Any) -> int:
    """A number of steps, or NO_LIMIT, Gymnasium's -1."""
    if isinstance(value, numbers.Integral) and value == NO_LIMIT:
        return NO_LIMIT
    return integer_option("max_episode_steps", value, 1, _MAX_ENVS)


def choice_option(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """The value, or a ConfigError that names the choices."""
    if not isinstance(value, str) or value not in choices:
        raise ConfigError(f"{name} expected one of {choices}, got {value!r}")
    return value


def _render_mode(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"render_mode expected 'rgb_array' or None, got {value!r}; render() gives the frames")
    return value


def _number(name: str, value: Any) -> float | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
        raise ConfigError(f"{name} expected a number or None, got {value!r}")
    return None if value is None else float(value)


def seconds_option(name: str, value: Any) -> float | None:
    """A time above 0, None for no limit, or a ConfigError."""
    seconds = _number(name, value)
    if seconds is not None and not (seconds > 0 and math.isfinite(seconds)):
        raise ConfigError(f"{name} expected seconds above 0, or None for no limit, got {value!r}")
    return seconds


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


def flag_option(name: str, value: Any) -> bool:
    """The value as a bool, or a ConfigError. numpy's bools too, and EnvPool's users write 0 and 1."""
    try:
        number = operator.index(value)
    except TypeError:
        number = int(value) if type(value).__name__ in ("bool", "bool_") else -1
    if number not in (0, 1):
        raise ConfigError(f"{name} expected True or False, got {value!r}")
    return bool(number)
