"""A pool as a Tianshou 2 BaseVectorEnv: for Collector, AsyncCollector and the trainers.

envs = make_vector_env("CartPole-v1", num_envs=8)               # synchronous: Collector
envs = make_vector_env(MyEnv, num_envs=8, wait_num=4)           # asynchronous: AsyncCollector

The Collector resets ended envs itself, so the pool has autoreset disabled. An asynchronous vector env receives one row
at a time until it has wait_num of them: Tianshou may step fewer envs at any time, which would never fill a batch of
wait_num rows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet import _native
from envfleet.apis.common.versions import check_version
from envfleet.apis.common.view import HasStats
from envfleet.apis.gymnasium import GymnasiumPool, make_gymnasium
from envfleet.building.pools import Env
from envfleet.core.batch import Batch
from envfleet.core.errors import (
    ActionError,
    ConfigError,
    DifferentSpacesError,
    EnvError,
    MissingExtraError,
    RecvTimeout,
)
from envfleet.core.infos import split_rows
from envfleet.core.option_checks import integer_option
from envfleet.core.pool import Pool
from envfleet.core.seeding import Seed, seeds_for
from envfleet.core.spaces import row_getter

try:
    import tianshou
    from tianshou.data import to_numpy
    from tianshou.env import BaseVectorEnv
except ImportError as error:
    raise MissingExtraError("tianshou", "tianshou", "the Tianshou api") from error

check_version("Tianshou", "tianshou", tianshou.__version__, "2", "3", "2.0")

Step = tuple[NDArray[Any], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], NDArray[Any]]
Spaces = tuple[gymnasium.Space[Any], gymnasium.Space[Any]]
Ids = int | list[int] | NDArray[Any] | None


class TianshouPool(HasStats, BaseVectorEnv):  # type: ignore[misc, unused-ignore]  # untyped where tianshou is not installed
    """num_envs envs as one BaseVectorEnv. Made by make_vector_env().

    Args:
        envs: The pool.
        wait_num: How many rows an asynchronous step waits for; None for all of them.
        timeout: Seconds after which an asynchronous step returns with the rows it has, at least one.
        env_spaces: The observation and action space of each env; None if they are the pool's.
    """

    # The base's constructor would make a worker for each env; everything that uses them is overridden.
    def __init__(
        self,
        envs: GymnasiumPool | Pool,
        wait_num: int | None = None,
        timeout: float | None = None,
        env_spaces: Sequence[Spaces] | None = None,
    ) -> None:
        pool = envs.pool if isinstance(envs, GymnasiumPool) else envs
        num_envs = pool.num_envs
        self.pool = pool
        self.env_num = num_envs
        self.wait_num = num_envs if wait_num is None else integer_option("wait_num", wait_num, 1, num_envs)
        self.timeout = _positive(timeout)
        self.is_async = self.wait_num < num_envs or timeout is not None
        _check_pool(pool, self.is_async)
        self._envs = envs
        self._is_native = bool(pool.spec.native_id)  # wherever it runs
        self._row_of = row_getter(pool.spec.observation_space)
        self._env_spaces = env_spaces or [(pool.spec.observation_space, pool.spec.action_space)] * num_envs
        # One per env, as in Tianshou's workers: seed() seeds each separately.
        self._action_spaces = [deepcopy(action_space) for _, action_space in self._env_spaces]
        self._in_flight = np.zeros(num_envs, dtype=np.bool_)
        self._arrived: list[Batch] = []

    # --- reset and step ----------------------------------------------------------------------

    def reset(self, env_id: Ids = None, **kwargs: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        """Reset all envs, or those of env_id; takes seed and options."""
        unknown = set(kwargs) - {"seed", "options"}
        if unknown:
            raise ConfigError(f"reset() expected the keywords seed and options, got {sorted(unknown)}; leave them out")
        ids = _as_ids(env_id)
        batch = self.pool.reset(ids, seed=kwargs.get("seed"), options=kwargs.get("options"))
        if ids is None:
            self._drop_in_flight()
        else:
            # Rows from before the reset, which an exception in a step kept from being returned.
            self._arrived = [row for row in self._arrived if row.env_id[0] not in ids]
        return self._obs(batch), self._infos(batch)

    def step(self, action: Any, id: Ids = None) -> Step:  # noqa: A002 (Tianshou's name)
        """Step these envs. If asynchronous: send the actions (None: nothing) and return what has finished."""
        if action is None and not self.is_async:
            raise ActionError(
                "step() expected actions, got None; only an asynchronous vector env (wait_num) accepts None"
            )
        actions = to_numpy(action) if hasattr(action, "detach") else action
        ids = _as_ids(id)
        if self.is_async:
            return self._step_some(actions, ids)
        return self._rows([self.pool.step(actions, self._or_all(ids))])

    def _step_some(self, actions: Any, ids: NDArray[Any] | None) -> Step:
        if actions is not None:
            sent = np.arange(self.env_num) if ids is None else ids
            if not len(sent) and not self._arrived and not self.pool.num_in_flight:
                return self._rows([self.pool.step(actions, sent)])  # nothing is in flight
            self.pool.send(actions, sent)
            self._in_flight[sent.astype(np.int64, copy=False)] = True
        deadline = None if self.timeout is None else time.monotonic() + self.timeout
        # If an env raises or a recv() is interrupted, the next step returns what is in _arrived.
        while len(self._arrived) < self.wait_num:
            if self._arrived and not self.pool.num_in_flight:
                break
            # The first row is waited for without a limit: without one there is nothing to return.
            limit = None if deadline is None or not self._arrived else max(0.0, deadline - time.monotonic())
            try:
                batch = self.pool.recv(limit)
            except RecvTimeout:
                break
            except EnvError as error:
                self._in_flight[[fault.env_id for fault in error.faults]] = False
                raise
            self._in_flight[batch.env_id] = False
            self._arrived.append(batch)
        arrived, self._arrived = self._arrived, []
        return self._rows(arrived)

    @property
    def waiting_id(self) -> list[int]:  # type: ignore[override, unused-ignore]  # no list to set
        """The envs that are in flight."""
        return [int(env_id) for env_id in np.flatnonzero(self._in_flight)]

    @property
    def ready_id(self) -> list[int]:  # type: ignore[override, unused-ignore]  # likewise
        """The envs that can be stepped or reset."""
        return [int(env_id) for env_id in np.flatnonzero(~self._in_flight)]

    # --- between steps -------------------------------------------------------------------------

    def seed(self, seed: Seed = None) -> list[Any]:
        """Seed the envs and their action spaces (an int seeds env i with seed + i), and reset the envs."""
        self.reset(seed=seed)
        seeds = seeds_for(seed, np.arange(self.env_num, dtype=np.int32), self.env_num)
        for space, own in zip(self._action_spaces, seeds, strict=True):
            space.seed(own)
        return [[own] for own in seeds]

    def get_env_attr(self, key: str, id: Ids = None) -> list[Any]:  # noqa: A002
        """Return an attribute of each of these envs."""
        ids = list(range(self.env_num)) if id is None else [int(env_id) for env_id in np.atleast_1d(id)]
        if key == "action_space":
            return [self._action_spaces[env_id] for env_id in ids]
        if key == "observation_space":
            return [self._env_spaces[env_id][0] for env_id in ids]
        if self._is_native and key in ("metadata", "spec"):
            return [self.pool.spec if key == "spec" else self.pool.spec.metadata] * len(ids)
        return list(self.pool.get_attr(key, ids))

    def set_env_attr(self, key: str, value: Any, id: Ids = None) -> None:  # noqa: A002
        """Set an attribute of each of these envs to this value."""
        ids = list(range(self.env_num)) if id is None else [int(env_id) for env_id in np.atleast_1d(id)]
        self.pool.set_attr(key, [value] * len(ids), ids)

    def render(self, **kwargs: Any) -> list[Any]:
        """Return what each env renders."""
        return list(self._envs.render() if isinstance(self._envs, GymnasiumPool) else self.pool.render_all())

    @property
    def is_closed(self) -> bool:  # type: ignore[override, unused-ignore]  # likewise
        """Whether the pool is closed."""
        return self.pool.closed

    def close(self) -> None:
        """Close the pool."""
        self.pool.close()

    # --- rows ----------------------------------------------------------------------------------

    def _drop_in_flight(self) -> None:
        self._in_flight[:] = False
        self._arrived = []

    def _or_all(self, ids: NDArray[Any] | None) -> NDArray[Any] | None:
        """Return None for all envs in order, which is a pool's fastest case."""
        return None if ids is None or np.array_equal(ids, np.arange(self.env_num)) else ids

    def _rows(self, batches: list[Batch]) -> Step:
        def joined(columns: list[NDArray[Any]]) -> NDArray[Any]:
            return columns[0] if len(columns) == 1 else np.concatenate(columns)

        return (
            joined([self._obs(batch) for batch in batches]),
            joined([batch.reward for batch in batches]),
            joined([batch.terminated for batch in batches]),
            joined([batch.truncated for batch in batches]),
            joined([self._infos(batch) for batch in batches]),
        )

    def _obs(self, batch: Batch) -> NDArray[Any]:
        """Return the observations as an array; Dict observations as an object array of dicts, as Tianshou does."""
        if isinstance(batch.obs, np.ndarray):
            return batch.obs
        return _objects([self._row_of(batch.obs, row) for row in range(len(batch))])

    def _infos(self, batch: Batch) -> NDArray[Any]:
        """Return the infos as an object array of dicts, each with its env_id."""
        ids, elapsed = batch.env_id.tolist(), batch.elapsed_step.tolist()
        own = [split_rows(batch.info, row) for row in range(len(ids))] if batch.info else [{}] * len(ids)
        return _objects([{**own[row], "env_id": ids[row], "elapsed_step": elapsed[row]} for row in range(len(ids))])


def make_vector_env(
    task_id: Env,
    *,
    num_envs: int | None = None,
    wait_num: int | None = None,
    timeout: float | None = None,
    **options: Any,
) -> TianshouPool:
    """Make a pool as Tianshou's vector env.

    Args:
        task_id: Anything that envfleet.make() accepts.
        num_envs: The number of envs; None for one, or for the length of a list of factories.
        wait_num: How many rows a step waits for, instead of batch_size; None for all of them.
        timeout: Seconds after which a step returns with the rows it has, at least one.
        **options: Options of envfleet.make().
    """
    if "batch_size" in options:
        raise ConfigError("make_vector_env() does not take batch_size; pass wait_num instead")
    options.setdefault("autoreset_mode", "disabled")
    if num_envs is None:
        num_envs = len(task_id) if isinstance(task_id, (list, tuple)) else 1
    num_envs = options["num_envs"] = integer_option("num_envs", num_envs, 1, 2**31 - 1)
    if timeout is not None or (wait_num is not None and wait_num != num_envs):
        options["batch_size"] = 1
        # Else a pool with batches of one row would have one thread.
        options.setdefault("num_workers", min(num_envs, _native.usable_cores()))
    env_spaces = None
    try:
        envs = make_gymnasium(task_id, **options)
    except DifferentSpacesError:
        # Tianshou accepts envs whose bounds differ. If more than the bounds does, this raises too.
        options["wrappers"] = [*(options.get("wrappers") or ()), _WithoutBounds]
        envs = make_gymnasium(task_id, **options)
        env_spaces = envs.pool.get_attr("own_spaces")
    try:
        return TianshouPool(envs, wait_num, timeout, env_spaces)
    except ConfigError:
        envs.close()
        raise


class _WithoutBounds(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An env whose Boxes have no bounds, so that it fits into a pool with envs that have other bounds."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.own_spaces: Spaces = (env.observation_space, env.action_space)
        self.observation_space = _without_bounds(env.observation_space)
        self.action_space = _without_bounds(env.action_space)


def _without_bounds(space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: _without_bounds(part) for key, part in space.spaces.items()})
    if not isinstance(space, spaces.Box):
        return space
    if space.dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, space.shape, space.dtype.type)
    limits = np.iinfo(space.dtype)
    return spaces.Box(int(limits.min), int(limits.max), space.shape, space.dtype.type)


def _check_pool(pool: Pool, is_async: bool) -> None:
    """Raise ConfigError if the pool cannot serve Tianshou's calls."""
    if pool.config.autoreset_mode is not AutoresetMode.DISABLED:
        raise ConfigError(
            "the Tianshou api expected autoreset_mode 'disabled', because Tianshou resets ended envs itself, "
            f"got {pool.config.autoreset_mode}; pass autoreset_mode='disabled'"
        )
    if isinstance(pool.spec.observation_space, spaces.Tuple):
        raise ConfigError(
            f"Tianshou expected an array or Dict observation space, got {pool.spec.observation_space}; "
            "wrap the env in gymnasium.wrappers.FlattenObservation, or make the space a Dict"
        )
    if isinstance(pool.spec.action_space, (spaces.Dict, spaces.Tuple)):
        raise ConfigError(
            f"Tianshou expected a non-composite action space, got {pool.spec.action_space}; "
            "wrap the env so that it accepts a Box, Discrete or MultiDiscrete"
        )
    wanted = 1 if is_async else pool.num_envs
    if pool.config.batch_size != wanted:
        how = "wait_num or timeout" if is_async else "all envs in each step"
        raise ConfigError(
            f"a Tianshou view with {how} expected a pool with batch_size={wanted}, got {pool.config.batch_size}; "
            "make_vector_env(..., wait_num=...) makes a suitable one"
        )


def _positive(timeout: float | None) -> float | None:
    if timeout is not None and not timeout > 0:
        raise ConfigError(f"timeout expected a number of seconds above 0, or None for no limit, got {timeout!r}")
    return timeout


def _as_ids(given: Ids) -> NDArray[Any] | None:
    return None if given is None else np.atleast_1d(np.asarray(given))


def _objects(values: list[Any]) -> NDArray[Any]:
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column
