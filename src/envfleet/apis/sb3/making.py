"""make_vec_env(): Stable-Baselines3's helper function on a pool."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
from stable_baselines3.common import env_util
from stable_baselines3.common.vec_env import VecEnv, VecMonitor
from stable_baselines3.common.vec_env.patch_gym import _patch_env

from envfleet.apis.gymnasium import make_gymnasium
from envfleet.apis.sb3.vec_env import EnvFleetVecEnv
from envfleet.building.builders import build_env
from envfleet.building.native_envs import find_entry
from envfleet.building.pools import Env
from envfleet.building.python_envs import check_known, raise_for_wrong_arguments, warn_of_misspelt_options
from envfleet.core.autoreset import parse_mode
from envfleet.core.backends import AUTO, runs_native_only
from envfleet.core.errors import ConfigError, EnvError
from envfleet.core.families import find_python_family
from envfleet.core.option_checks import NO_LIMIT
from envfleet.core.options import POOL_OPTIONS

_SAME_STEP = parse_mode("same_step")


class PoolMonitor(VecMonitor):
    """A VecMonitor with the pool's reset_infos: those of SB3's own wrappers stay empty."""

    venv: EnvFleetVecEnv

    @property
    def reset_infos(self) -> list[dict[str, Any]]:
        """The infos of each env's latest reset."""
        return self.venv.reset_infos

    @reset_infos.setter
    def reset_infos(self, value: list[dict[str, Any]]) -> None:
        """Ignore the value: SB3's constructor sets it, and the pool keeps its own."""


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
    *,
    num_envs: int | None = None,
    **options: Any,
) -> VecEnv:
    """Make a monitored VecEnv of n_envs envs, as stable_baselines3.common.env_util.make_vec_env() does.

    An id with a native env runs natively, unless a wrapper or a backend is given. All other envs run in worker
    processes, or in this process if there is only one.

    Args:
        env_id: Anything that envfleet.make() accepts.
        n_envs: The number of envs; None for one, or for the length of a list of factories.
        seed: Env i gets seed + i; None for fresh entropy.
        start_index: The number of the first env in the names of monitor files.
        monitor_dir: The folder of the monitor files. Native envs write one file, because one VecMonitor watches them
            all; Python envs write one each.
        wrapper_class: Wraps each env.
        env_kwargs: Parameters of the env.
        vec_env_cls: Have SB3's own helper make the envs with this class and vec_env_kwargs.
        vec_env_kwargs: Without vec_env_cls, options of the pool.
        monitor_kwargs: Arguments of the monitor.
        wrapper_kwargs: Arguments of wrapper_class.
        num_envs: envfleet's name for n_envs.
        **options: Options of envfleet.make(), such as backend, num_workers and on_error. All others are parameters of
            the env, like env_kwargs.
    """
    if num_envs is not None and n_envs not in (None, num_envs):
        raise ConfigError(f"expected n_envs or num_envs, got n_envs={n_envs!r} and num_envs={num_envs!r}; pass one")
    if num_envs is None:
        num_envs = n_envs if n_envs is not None else len(env_id) if isinstance(env_id, (list, tuple)) else 1
    if isinstance(env_id, str) and find_entry(env_id) is None:
        check_known(env_id)  # SB3 looks ids up in the factories that it makes: the error would come from a worker
    pool_options = {name: options.pop(name) for name in list(options) if name in POOL_OPTIONS}
    shared = _env_kwargs(env_kwargs, options)
    if callable(env_id):
        warn_of_misspelt_options(env_id, getattr(env_id, "__name__", "the env"), options)

    def through_sb3(own_class: Callable[..., VecEnv], own_kwargs: Mapping[str, Any] | None) -> VecEnv:
        if not isinstance(shared, dict):
            raise ConfigError(
                "env_kwargs expected one dict for all Python envs, got a list; pass a list of factories as env_id"
            )
        source: Any = env_id
        if find_python_family(env_id) is not None:  # SB3 knows Gymnasium's ids only
            source = partial(_build_env, source)
        elif not isinstance(env_id, str) and pool_options.get("max_episode_steps") not in (None, NO_LIMIT):
            source = partial(_build_with_time_limit, source, pool_options["max_episode_steps"])
        return env_util.make_vec_env(
            source,
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
                f"vec_env_cls expected no pool options, got {vec_env_cls!r} with {', '.join(sorted(pool_options))}; "
                f"pass the class's options as vec_env_kwargs, or leave vec_env_cls out"
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

    # SB3 applies the time limit, the render mode and the Monitor where it builds each env.
    if isinstance(shared, dict):
        moved = ("render_mode", "max_episode_steps") if isinstance(env_id, str) else ("render_mode",)
        shared.update({name: pool_options.pop(name) for name in moved if name in pool_options})
    family = find_python_family(env_id)
    is_free = pool_options.get("backend", AUTO) == AUTO and pool_options.get("step_timeout") is None
    if family is not None and is_free and num_envs > 1:
        pool_options["backend"] = family.python_backend
    try:
        return through_sb3(
            lambda env_fns: EnvFleetVecEnv(make_gymnasium(env_fns, num_envs=num_envs, **pool_options)), None
        )
    except EnvError as error:
        # The pool sees SB3's factories, which take no arguments.
        assert isinstance(shared, dict), "through_sb3() has refused a list"
        raise_for_wrong_arguments(error, env_id, str(env_id), [shared], shared)
        raise


def _build_env(env_id: str, **env_kwargs: Any) -> Any:
    """Build one env, with render_mode="rgb_array" if it supports that, as SB3's helper does for Gymnasium ids."""
    try:
        return build_env(env_id, **{"render_mode": "rgb_array", **env_kwargs})
    except TypeError:
        return build_env(env_id, **env_kwargs)


def _build_with_time_limit(source: Callable[..., Any], max_episode_steps: int, **env_kwargs: Any) -> Any:
    """Build one env with a time limit of its own: a Monitor does not see the truncations of the pool."""
    return gymnasium.wrappers.TimeLimit(_patch_env(source(**env_kwargs)), max_episode_steps)


def _is_for_one_monitor(env_id: Env, pool_options: Mapping[str, Any], wrapper_class: Any) -> bool:
    """Return whether one VecMonitor watches all envs: native envs, and sources that SB3's helper does not accept."""
    if not isinstance(env_id, str):
        return isinstance(env_id, (list, tuple)) or not callable(env_id)
    backend: str = pool_options.get("backend", AUTO)
    if find_entry(env_id) is None:
        return runs_native_only(backend)  # which raises: there is no native env
    if runs_native_only(backend):
        if wrapper_class is not None:
            raise ConfigError("wrapper_class cannot wrap native envs, got backend='native'; leave one of them out")
        return True
    return backend == AUTO and wrapper_class is None and not pool_options.get("wrappers")


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
    """Translate the arguments of a Monitor to those of a VecMonitor."""
    given = dict(monitor_kwargs or {})
    arguments = {name: given.pop(name) for name in ("info_keywords",) if name in given}
    # Values that describe what a VecMonitor does anyway are accepted.
    defaults: dict[str, Any] = {"allow_early_resets": True, "reset_keywords": (), "override_existing": True}
    unsupported = [name for name, value in given.items() if name not in defaults or value != defaults[name]]
    if unsupported:
        raise ConfigError(
            f"monitor_kwargs expected only info_keywords for a pool with one VecMonitor, got {unsupported}; "
            "choose a Python backend such as backend='processes', which has one Monitor per env"
        )
    if monitor_dir is not None:
        os.makedirs(monitor_dir, exist_ok=True)
        arguments["filename"] = os.path.join(monitor_dir, str(start_index))
    return arguments
