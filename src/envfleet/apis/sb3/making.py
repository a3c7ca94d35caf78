"""make_vec_env(): Stable-Baselines3's helper, on a pool."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from stable_baselines3.common import env_util
from stable_baselines3.common.vec_env import VecEnv, VecMonitor

from envfleet.apis.sb3.vec_env import EnvFleetVecEnv
from envfleet.autoreset import parse_mode
from envfleet.envs.families import find_python_family
from envfleet.errors import ConfigError
from envfleet.making.builders import build_env
from envfleet.making.make import Env, make_gymnasium
from envfleet.making.native_envs import find_entry
from envfleet.making.options import POOL_OPTIONS

_SAME_STEP = parse_mode("same_step")


class PoolMonitor(VecMonitor):
    """A VecMonitor whose reset_infos are the pool's: SB3's wrappers have a list of their own that stays empty."""

    venv: EnvFleetVecEnv

    @property
    def reset_infos(self) -> list[dict[str, Any]]:
        """The infos of each env's latest reset."""
        return self.venv.reset_infos

    @reset_infos.setter
    def reset_infos(self, value: list[dict[str, Any]]) -> None:
        """SB3's constructor sets it; the pool knows already."""


def make_vec_env(
    env_id: Env,
    n_envs: int | None = None,
    seed: int | None = None,
    start_index: int = 0,
    monitor_dir: str | None = None,
    wrapper_class: Callable[..., Any] | None = None,
    env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    vec_env_cls: Callable[..., VecEnv] | None = None,
    vec_env_kwargs: Mapping[str, Any] | None = None,
    monitor_kwargs: Mapping[str, Any] | None = None,
    wrapper_kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> VecEnv:
    """A monitored VecEnv of n_envs envs, as stable_baselines3.common.env_util.make_vec_env() makes it.

    env_id is all that envfleet.make() takes. An id with a native env runs native, unless a wrapper
    or a backend is named; everything else in worker processes, or in this one for a single env.
    options: those of envfleet.make() (backend, num_workers, on_error, num_envs for n_envs ...); all
    others are parameters of the env, as env_kwargs are.

    monitor_dir: native envs write one file there, since one VecMonitor watches them all; Python envs
    one each. vec_env_cls: SB3's own helper runs with this class; vec_env_kwargs are its arguments, and
    without it options of the pool.
    """
    if "num_envs" in options:
        n_envs = _one_of("n_envs", n_envs, "num_envs", options.pop("num_envs"))
    num_envs = n_envs if n_envs is not None else len(env_id) if isinstance(env_id, (list, tuple)) else 1
    pool_options = {name: options.pop(name) for name in list(options) if name in POOL_OPTIONS}
    shared = _env_kwargs(env_kwargs, options)

    def through_sb3(own_class: Callable[..., VecEnv], own_kwargs: Mapping[str, Any] | None) -> VecEnv:
        if not isinstance(shared, dict):
            raise ConfigError(
                "env_kwargs expected one dict for all Python envs, got a list; pass a list of factories as env_id"
            )
        # SB3 knows Gymnasium's ids alone.
        is_simulated = find_python_family(env_id) is not None
        return env_util.make_vec_env(
            partial(_build_env, env_id) if is_simulated else env_id,  # type: ignore[arg-type]  # an id or a callable
            num_envs,
            seed,
            start_index,
            monitor_dir,
            wrapper_class,
            shared,
            own_class,  # type: ignore[arg-type]  # any callable does, SB3 names its two classes
            None if own_kwargs is None else dict(own_kwargs),
            None if monitor_kwargs is None else dict(monitor_kwargs),
            None if wrapper_kwargs is None else dict(wrapper_kwargs),
        )

    if vec_env_cls is not None:
        if pool_options:
            raise ConfigError(
                f"options of the pool ({', '.join(sorted(pool_options))}) expected no vec_env_cls, got "
                f"{vec_env_cls!r}; pass its own options as vec_env_kwargs, or leave vec_env_cls out"
            )
        return through_sb3(vec_env_cls, vec_env_kwargs)

    pool_options.update(vec_env_kwargs or {})
    if parse_mode(pool_options.setdefault("autoreset_mode", _SAME_STEP)) is not _SAME_STEP:
        raise ConfigError(
            f"Stable-Baselines3 expects autoreset_mode='same_step', got "
            f"{pool_options['autoreset_mode']!r}; leave it out"
        )
    if _is_for_one_monitor(env_id, pool_options, wrapper_class):
        own = {"render_mode": "rgb_array", **pool_options}
        if isinstance(shared, dict) and "render_mode" in shared:
            own["render_mode"] = shared.pop("render_mode")
        if wrapper_class is not None:
            own["wrappers"] = [lambda env: wrapper_class(env, **(wrapper_kwargs or {})), *(own.get("wrappers") or ())]
        monitor = _monitor_arguments(monitor_dir, start_index, monitor_kwargs)
        vec_env = EnvFleetVecEnv(make_gymnasium(env_id, num_envs=num_envs, seed=seed, env_kwargs=shared, **own))
        vec_env.seed(seed)
        return PoolMonitor(vec_env, **monitor)

    # SB3 gives each env its time limit, its picture and its Monitor where it builds it.
    if isinstance(shared, dict):
        moved = ("render_mode", "max_episode_steps") if isinstance(env_id, str) else ("render_mode",)
        shared.update({name: pool_options.pop(name) for name in moved if name in pool_options})
    family = find_python_family(env_id)
    is_free = pool_options.get("backend", "auto") == "auto" and pool_options.get("step_timeout") is None
    if family is not None and is_free and num_envs > 1:
        pool_options["backend"] = family.python_backend
    return through_sb3(lambda env_fns: EnvFleetVecEnv(make_gymnasium(env_fns, num_envs=num_envs, **pool_options)), None)


def _build_env(env_id: str, **env_kwargs: Any) -> Any:
    """One env of an id, with pictures where it can draw them, as SB3's helper makes those of Gymnasium."""
    try:
        return build_env(env_id, **{"render_mode": "rgb_array", **env_kwargs})
    except TypeError:
        return build_env(env_id, **env_kwargs)


def _is_for_one_monitor(env_id: Env, pool_options: Mapping[str, Any], wrapper_class: Any) -> bool:
    """Whether a VecMonitor is to watch all envs: native ones, and what SB3's helper does not take."""
    if not isinstance(env_id, str):
        return isinstance(env_id, (list, tuple)) or not callable(env_id)
    backend: str = pool_options.get("backend", "auto")
    if find_entry(env_id) is None:
        return backend == "native"  # which says that there is none
    if backend == "native":
        if wrapper_class is not None:
            raise ConfigError("wrapper_class is for Python envs, got backend='native'; leave one of them out")
        return True
    return backend == "auto" and wrapper_class is None and not pool_options.get("wrappers")


def _env_kwargs(
    given: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None, others: Mapping[str, Any]
) -> dict[str, Any] | list[dict[str, Any]]:
    if isinstance(given, (list, tuple)):
        return [{**others, **own} for own in given]
    if given is not None and not isinstance(given, Mapping):
        raise ConfigError(f"env_kwargs expected a dict of parameters, got {type(given).__name__}: {given!r}")
    return {**others, **(given or {})}


def _monitor_arguments(
    monitor_dir: str | None, start_index: int, monitor_kwargs: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The arguments of a VecMonitor that does what those of a Monitor say."""
    given = dict(monitor_kwargs or {})
    arguments = {name: given.pop(name) for name in ("info_keywords",) if name in given}
    # What a VecMonitor does anyhow may be said.
    usual: dict[str, Any] = {"allow_early_resets": True, "reset_keywords": (), "override_existing": True}
    odd = [name for name, value in given.items() if name not in usual or value != usual[name]]
    if odd:
        raise ConfigError(
            f"monitor_kwargs expected info_keywords alone for a pool that one VecMonitor watches, got {odd}; "
            "name a Python backend such as backend='processes', whose envs have a Monitor each"
        )
    if monitor_dir is not None:
        os.makedirs(monitor_dir, exist_ok=True)
        arguments["filename"] = os.path.join(monitor_dir, str(start_index))
    return arguments


def _one_of(name: str, value: Any, other_name: str, other: Any) -> Any:
    if value is not None and value != other:
        raise ConfigError(f"expected {name} or {other_name}, got {name}={value!r} and {other_name}={other!r}; pass one")
    return other
