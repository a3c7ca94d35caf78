"""Names to specs to pools: make(), register(), list_all_envs().

make(env, ...) -> spec -> Pool -> the api that env_type names
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import gymnasium
import numpy as np

from envfleet.envs.family import Family
from envfleet.envs.pixels import wants_pixels
from envfleet.envs.simulators import find_simulator, simulated_ids
from envfleet.errors import CompileError, ConfigError, UnknownEnvError
from envfleet.executors.base import Executor
from envfleet.making.gymnasium_ids import publish
from envfleet.making.native_envs import (
    Entry,
    family_of_native,
    find_entry,
    load_entry,
    native_executor,
    native_ids,
    registered,
    resolve,
    takes_params,
    unregistered_ids,
)
from envfleet.making.options import Options, integer_option, parse_options
from envfleet.making.python_envs import auto_backend, check_known, opens_windows, python_executor, python_spec
from envfleet.pool import Pool
from envfleet.rendering import check_screen
from envfleet.seeding import seeds_for
from envfleet.spec import EnvSpec

if TYPE_CHECKING:
    from envfleet.apis.dm import DmPool
    from envfleet.apis.gym import GymPool
    from envfleet.apis.gymnasium import GymnasiumPool
    from envfleet.apis.pettingzoo import AgentsPool, PlayerRowsPool

# What make() takes: an id, a class, a factory, or a list of factories, one for each env.
Env = str | Callable[..., Any] | Sequence[Callable[[], Any]]


def list_all_envs() -> list[str]:
    """Every native id and every simulator's, sorted. make() takes any id of Gymnasium besides."""
    return sorted(native_ids() | simulated_ids())


def family_of(env: Env) -> Family:
    """The family of an env; Python envs draw themselves and most belong to none."""
    entry = find_entry(env)
    if entry is not None:
        return family_of_native(entry.native_id)
    simulator = find_simulator(env)
    if simulator is None:
        return Family("python", (), opens_windows=True)
    return Family(simulator.family, (), opens_windows=simulator.opens_windows)


def register(
    env_id: str,
    base: str,
    *,
    max_episode_steps: int | None = None,
    reward_threshold: float | None = None,
    **params: Any,
) -> None:
    """Gives a known env a new id with other defaults.

    >>> register("LongCartPole-v0", "CartPole-v1", max_episode_steps=10_000)
    """
    if not isinstance(env_id, str) or gymnasium.envs.registration.ENV_ID_RE.fullmatch(env_id) is None:
        raise ConfigError(f"register() expected an id such as 'MyEnv-v0' (letters, digits and _:.-), got {env_id!r}")
    if max_episode_steps is not None:
        max_episode_steps = integer_option("max_episode_steps", max_episode_steps, 1, 2**31 - 1)
    if env_id in unregistered_ids():
        raise ConfigError(f"register() expected a new id, {env_id!r} is a native env; choose another name")
    origin = find_entry(base)
    if origin is None:
        raise UnknownEnvError(
            f"register() expected the id of a native env as base, got {base!r}; "
            "Python envs are registered with gymnasium.register()"
        )
    entry = Entry(
        origin.native_id,
        {**origin.params, **params},
        origin.max_episode_steps if max_episode_steps is None else max_episode_steps,
        origin.reward_threshold if reward_threshold is None else reward_threshold,
    )
    # Raises here, not at the first make(), when the defaults are wrong.
    resolve(env_id, entry, parse_options({}))
    registered[env_id] = entry
    publish([env_id])


def make_spec(task_id: Env, **options: Any) -> EnvSpec:
    """What make() would build. Of a Python env one is built, asked and closed: only it knows its spaces."""
    entry, backend, parsed = _choose(task_id, options)
    num_envs = parsed.config.num_envs
    seeds_for(parsed.seed, np.arange(num_envs, dtype=np.int32), num_envs)  # raises when it is none
    if entry is not None:
        return resolve(str(task_id), entry, parsed)[0]
    return python_spec(task_id, backend, parsed)


def make_pool(task_id: Env, **options: Any) -> Pool:
    """The bare pool; what make() wraps in an api."""
    entry, backend, parsed = _choose(task_id, options)
    num_envs = parsed.config.num_envs
    seeds_for(parsed.seed, np.arange(num_envs, dtype=np.int32), num_envs)  # before anything is built
    executor: Executor
    if entry is not None:
        executor, config = native_executor(str(task_id), entry, parsed)
    else:
        executor, config = python_executor(task_id, backend, parsed)
    try:
        return Pool(executor, config, parsed.seed)
    except BaseException:  # Ctrl-C at this moment would leave its workers without a pool to close them
        executor.close()
        raise


def _choose(env: Env, options: dict[str, Any]) -> tuple[Entry | None, str, Options]:
    """The native env, if that is what runs; the backend; the options."""
    entry = find_entry(env)
    if entry is None:
        check_known(env)
    parsed = parse_options(options, len(env) if isinstance(env, (list, tuple)) and env else 1)
    backend = parsed.backend
    # Of each worker of a cluster.
    runs_on = (parsed.config.inner_backend or "auto") if backend == "ray" else backend
    if wants_pixels(env, parsed.params):
        if runs_on == "native":
            raise ConfigError("from_pixels draws in Python workers, got backend='native'; leave backend out")
        entry = None
    if entry is not None and not takes_params(entry, parsed.params):
        if runs_on == "native":
            raise ConfigError(f"{env} in C++ does not take all of these parameters; leave backend='native' out")
        entry = None
    if entry is not None and (runs_on == "native" or (runs_on == "auto" and not parsed.wrappers)):
        if parsed.wrappers:
            raise ConfigError("wrappers are for Python envs, got backend='native'; name another backend or none")
        if parsed.config.render_mode == "human":
            check_screen()
        if _is_loaded(env, entry, runs_on):
            return entry, "ray" if backend == "ray" else "native", parsed
    if runs_on == "native":
        raise ConfigError(f"backend='native' expected an env in C++, got {env!r}, which has none; leave backend out")
    if entry is not None:
        check_known(env)  # a native id may have no Python twin
    if parsed.config.render_mode == "human" and not opens_windows(env, parsed):
        check_screen()
    if backend == "auto":
        backend = auto_backend(env, parsed.config)
    return None, backend, parsed


def _is_loaded(env: Env, entry: Entry, backend: str) -> bool:
    """Whether the engine has the env; where it cannot be built here, a warning tells why Python runs it."""
    try:
        load_entry(entry)
    except CompileError as error:
        if backend == "native":
            raise
        warnings.warn(f"{env} runs as a Python env, several times slower: {error}", stacklevel=6)
        return False
    return True


@overload
def make(task_id: Env, env_type: Literal["gymnasium"] = "gymnasium", **options: Any) -> GymnasiumPool: ...
@overload
def make(task_id: Env, env_type: Literal["gym"], **options: Any) -> GymPool: ...
@overload
def make(task_id: Env, env_type: Literal["dm"], **options: Any) -> DmPool: ...


def make(task_id: Env, env_type: str = "gymnasium", **options: Any) -> GymnasiumPool | GymPool | DmPool:
    """A pool of num_envs envs behind the API that env_type names.

    task_id is a native id, any id of Gymnasium, a class, a factory, or a list of factories, one for
    each env. Options of the pool are the fields of envfleet.spec.PoolConfig (num_envs, batch_size,
    num_workers ...), seed, backend, env_kwargs and wrappers; all others are parameters of the env.
    A native env takes a list of num_envs values for each, a Python env a list of dicts as env_kwargs.
    """
    if env_type == "gymnasium":
        return make_gymnasium(task_id, **options)
    if env_type == "gym":
        return make_gym(task_id, **options)
    if env_type == "dm":
        return make_dm(task_id, **options)
    raise ConfigError(f"env_type expected 'gymnasium', 'gym' or 'dm', got {env_type!r}")


def make_gymnasium(task_id: Env, **options: Any) -> GymnasiumPool:
    """A pool as a gymnasium.vector.VectorEnv."""
    from envfleet.apis.gymnasium import GymnasiumPool

    return GymnasiumPool(make_pool(task_id, **options), family_of(task_id))


def make_gym(task_id: Env, *, gym_reset_return_info: bool = False, **options: Any) -> GymPool:
    """A pool in the old gym's API: obs = reset(); obs, rew, done, info = step(action)."""
    from envfleet.apis.gym import GymPool

    return GymPool(make_gymnasium(task_id, **options), gym_reset_return_info)


def make_dm(task_id: Env, **options: Any) -> DmPool:
    """A pool in dm_env's API: TimeSteps of arrays."""
    from envfleet.apis.dm import DmPool

    return DmPool(make_pool(task_id, **options))


def make_pettingzoo(env: Any, **options: Any) -> AgentsPool | PlayerRowsPool:
    """Parallel multi-agent envs of PettingZoo in a pool; see envfleet.apis.pettingzoo."""
    from envfleet.apis.pettingzoo import make_pettingzoo as make_players

    pool: AgentsPool | PlayerRowsPool = make_players(env, **options)
    return pool
