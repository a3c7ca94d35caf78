"""PoolWrapper: a VectorWrapper that also knows send() and recv(), partial resets and rows in any order.

A wrapper overrides process(), which is called for the rows of every call, in every autoreset mode: reset() of all or of
some envs, step(), recv(), and the rows in an EnvError.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import (
    AutoresetMode,
    VectorEnv,
    VectorObservationWrapper,
    VectorRewardWrapper,
    VectorWrapper,
)
from numpy.typing import NDArray

from envfleet.apis.gymnasium import GymnasiumPool, Step
from envfleet.core.batch import Batch
from envfleet.core.errors import ConfigError, EnvError, StateError
from envfleet.core.infos import final_obs_of, restarted_rows, with_env_info
from envfleet.core.seeding import Seed
from envfleet.core.spaces import join, leaves_of, row_getter, split

Mask = NDArray[np.bool_]


class BatchRows(NamedTuple):
    """The envs of a batch's rows and what happened to them, as arrays with one value per row.

    A row that ended in same_step mode is both stepped and first: it ends one episode and starts the next. A row that a
    partial reset did not select is neither: its env has not changed.

    Attributes:
        env_id: The env of each row.
        first: Whether the row shows the first observation of an episode.
        stepped: Whether the row is the outcome of a step, so that its reward counts.
        ended: Whether the row ended an episode, which a fault does too.
        failed: Whether the env raised. The reward means nothing then; if the env was restarted, the last observation
            repeats the one before.
        env_index: Indexes the rows' envs in an array of all envs: env_id, or a faster slice if the rows are all envs in
            order.
    """

    env_id: NDArray[np.int32]
    first: Mask
    stepped: Mask
    ended: Mask
    failed: Mask
    env_index: Any


@dataclass(frozen=True)
class WrapperState:
    """The state of a wrapper and of the env that it wraps. Can be pickled.

    Attributes:
        wrapper: The name of the wrapper's class.
        inner: The state of the wrapped env.
        own: The values of the wrapper's state_names.
    """

    wrapper: str
    inner: Any
    own: dict[str, Any]


class PoolWrapper(VectorWrapper):
    """A wrapper around a pool of envfleet.make(), or around another PoolWrapper. Override process().

    Attributes:
        state_names: The names of the attributes that process() changes. get_state() saves them.
    """

    state_names: tuple[str, ...] = ()

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        if not isinstance(env, VectorEnv) or not isinstance(env.unwrapped, GymnasiumPool):
            raise ConfigError(
                f"{type(self).__name__} expected a pool of envfleet.make(), got {type(env).__name__}; "
                "gymnasium.wrappers.vector has wrappers for other vector envs"
            )
        super().__init__(env)
        pool = env.unwrapped.pool
        self._mode: AutoresetMode = pool.config.autoreset_mode
        self._restarts = pool.config.on_error == "restart"
        self._is_async = pool.config.is_async
        self._ids = np.arange(pool.num_envs, dtype=np.int32)
        self._none = np.zeros(pool.num_envs, dtype=np.bool_)

    def process(
        self, rows: BatchRows, obs: Any, reward: NDArray[np.float64], info: dict[str, Any]
    ) -> tuple[Any, NDArray[np.float64]]:
        """Process a batch and return its observations and rewards.

        Args:
            rows: Which envs the rows belong to, and which of them start, continue and end an episode.
            obs: The observations.
            reward: The rewards; zeros for a reset.
            info: The infos. May be changed in place.
        """
        raise NotImplementedError

    # --- Gymnasium -------------------------------------------------------------------------------

    def reset(
        self, env_id: Any = None, *, seed: Seed = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all envs, those of env_id, or those of options["reset_mask"]."""
        ids = () if env_id is None else (env_id,)
        obs, info = self._process_on_error(lambda: self.env.reset(*ids, seed=seed, options=options))  # type: ignore[arg-type]  # any Mapping and Seed
        if options is not None and "reset_mask" in options:
            env_ids, first = self._ids, options["reset_mask"]
        else:
            env_ids = info["env_id"]
            first = np.ones(len(env_ids), dtype=np.bool_)
        none = self._none[: len(env_ids)]
        obs, _ = self.process(BatchRows(env_ids, first, none, none, none, env_ids), obs, np.zeros(len(env_ids)), info)
        return obs, info

    def step(self, actions: Any, env_id: Any = None, *, timeout: float | None = None) -> Step:
        """Step all envs, or those of env_id. On an asynchronous pool: send() and recv()."""
        # A Gymnasium wrapper in between accepts only actions.
        ids = () if env_id is None else (env_id,)
        limit = {} if timeout is None else {"timeout": timeout}
        step = self._process_on_error(lambda: self.env.step(actions, *ids, **limit))
        return self._processed(step, slice(None) if env_id is None and not self._is_async else None)

    # --- EnvPool -----------------------------------------------------------------------------------

    def async_reset(self, *, seed: Seed = None, options: Mapping[str, Any] | None = None) -> None:
        """Start a reset of all envs; recv() returns their rows."""
        self._inner("async_reset")(seed=seed, options=options)

    def send(self, actions: Any, env_id: Any = None) -> None:
        """Start a step of these envs without waiting for it."""
        self._inner("send")(actions, env_id)

    def recv(self, timeout: float | None = None) -> Step:
        """Receive the rows that are ready; info["env_id"] tells which envs they belong to."""
        receive = self._inner("recv")
        return self._processed(self._process_on_error(lambda: receive(timeout)))

    # --- state and life ------------------------------------------------------------------------------

    def get_state(self) -> WrapperState:
        """Return the state of every env and of the wrappers around them."""
        own = {name: copy.deepcopy(getattr(self, name)) for name in self.state_names}
        return WrapperState(type(self).__name__, self._inner("get_state")(), own)

    def set_state(self, state: WrapperState) -> None:
        """Restore a state that get_state() of the same kind of wrapper returned. Nothing changes if it raises."""
        if not isinstance(state, WrapperState) or state.wrapper != type(self).__name__:
            got = state.wrapper if isinstance(state, WrapperState) else type(state).__name__
            raise StateError(
                f"set_state() expected a state of {type(self).__name__}.get_state(), got one of {got}; "
                "save and load with the same wrapper"
            )
        self._check_own(state.own)
        own = copy.deepcopy(state.own)
        self._inner("set_state")(state.inner)
        for name, value in own.items():
            setattr(self, name, value)

    def _check_own(self, own: Any) -> None:
        """Raise StateError unless these are values of state_names, with arrays of the same shapes and dtypes."""
        if not isinstance(own, dict) or own.keys() != set(self.state_names):
            got = list(own) if isinstance(own, dict) else type(own).__name__
            raise StateError(
                f"set_state() expected a state of {type(self).__name__} with {list(self.state_names)}, got {got}; "
                "the state is damaged or of another version: save it again with get_state()"
            )
        for name in self.state_names:
            _check_arrays(name, getattr(self, name, None), own[name])

    def __getattr__(self, name: str) -> Any:
        # pool, render_tiled(), get_attr() ...: attributes that Gymnasium's VectorWrapper does not forward.
        if name.startswith("_") or name == "env":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.env, name)

    def __len__(self) -> int:
        return self.num_envs

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # The pool closes itself; VectorEnv's destructor would close it while others still use it.
        pass

    # --- rows ------------------------------------------------------------------------------------------

    def _processed(self, step: Step, env_index: slice | None = None, raised: Mask | None = None) -> Step:
        """Process the rows of a step. raised: those of envs that raised and were not restarted."""
        obs, reward, terminated, truncated, info = step
        ended = terminated | truncated
        first = info["elapsed_step"] == 0
        if self._mode is not AutoresetMode.SAME_STEP:
            # The first step of an episode may fail, and then no step has elapsed.
            first &= ~ended
        failed = restarted_rows(info) if self._restarts else None
        if failed is None:
            failed = self._none[: len(ended)]
        if raised is not None:
            failed, ended, first = failed | raised, ended | raised, first & ~raised
        env_id = info["env_id"]
        rows = BatchRows(env_id, first, ended | ~first, ended, failed, env_id if env_index is None else env_index)
        obs, reward = self.process(rows, obs, reward, info)
        return obs, reward, terminated, truncated, info

    def _process_on_error(self, call: Callable[[], Any]) -> Any:
        """Make a call. If an env raises, process the rows of the others and put them into the error."""
        try:
            return call()
        except EnvError as error:
            if error.batch is not None:
                self._process_error(error, error.batch)
            raise

    def _process_error(self, error: EnvError, batch: Batch) -> None:
        try:
            _apply_between(self.env, batch)
            self._process_batch(batch, {fault.env_id for fault in (*error.faults, *batch.faults)})
        except Exception as failure:
            # Not raised: the caller has to learn about the env first, and this may only be a consequence, such as
            # rendering an env that died.
            warnings.warn(
                f"{type(self).__name__} could not process the rows of the other envs when an env raised: "
                f"{type(failure).__name__}: {failure}",
                RuntimeWarning,
                stacklevel=4,
            )

    def _process_batch(self, batch: Batch, raised: set[int]) -> None:
        """Process the batch of an EnvError in place. raised: the ids of the envs that raised."""
        info = with_env_info({"env_id": batch.env_id, "elapsed_step": batch.elapsed_step}, batch.info)
        ended = np.flatnonzero(batch.terminated | batch.truncated)
        final = final_obs_of(batch, row_getter(self.env.single_observation_space))
        info.update(final)
        rows = batch.obs, batch.reward, batch.terminated, batch.truncated, info
        batch.obs, batch.reward, *_ = self._processed(rows, raised=np.isin(batch.env_id, list(raised)))
        if batch.final is not None:
            # As in any batch, the final observations are in batch.final and not in the info.
            values = info.pop("final_obs")[ended] if final else []
            info.pop("_final_obs", None)
            batch.final.obs = _batched(self.single_observation_space, ended, values, len(batch))
        batch.info = info

    def _inner(self, name: str) -> Any:
        if not hasattr(self.env, name):
            raise ConfigError(
                f"{name}() expected wrappers of envfleet.wrappers down to the pool, got "
                f"{type(self.env).__name__} within {type(self).__name__}; put it outermost, or use reset() and step()"
            )
        return getattr(self.env, name)


def _apply_between(env: VectorEnv[Any, Any, Any], batch: Batch) -> None:
    """Apply Gymnasium's wrappers between two of ours to the rows of an EnvError, which they have not seen."""
    if isinstance(env, PoolWrapper) or not isinstance(env, VectorWrapper):
        return
    _apply_between(env.env, batch)
    if isinstance(env, VectorObservationWrapper):
        batch.obs = env.observations(batch.obs)
    elif isinstance(env, VectorRewardWrapper):
        batch.reward = env.rewards(batch.reward)


def map_leaves(space: gymnasium.Space[Any], function: Callable[[gymnasium.Space[Any]], Any]) -> gymnasium.Space[Any]:
    """Return the space with the function applied to each leaf."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: map_leaves(part, function) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([map_leaves(part, function) for part in space.spaces])
    leaf: gymnasium.Space[Any] = function(space)
    return leaf


def _check_arrays(name: str, own: Any, saved: Any) -> None:
    """Raise StateError if a saved array differs in shape or dtype from the one that it would replace."""
    if isinstance(own, np.ndarray) and isinstance(saved, np.ndarray):
        if (own.shape, own.dtype) != (saved.shape, saved.dtype):
            raise StateError(
                f"set_state() expected {name} of shape {own.shape} and dtype {own.dtype}, got shape {saved.shape} and "
                f"dtype {saved.dtype}; make the pool and its wrappers as the saved ones were"
            )
    elif isinstance(own, (list, tuple)) and isinstance(saved, (list, tuple)):
        for position, (part, other) in enumerate(zip(own, saved, strict=False)):
            _check_arrays(f"{name}[{position}]", part, other)


def _batched(space: gymnasium.Space[Any], rows: NDArray[np.intp], values: Iterable[Any], num_rows: int) -> Any:
    """Return a batch of a space with these values in their rows; zeros and None elsewhere."""
    parts = [split(space)(value) for value in values]
    columns: list[Any] = []
    for position, leaf in enumerate(leaves_of(space)):
        is_array = leaf.kind == "array"
        column = np.zeros((num_rows, *leaf.shape), leaf.dtype) if is_array else np.full(num_rows, None, dtype=object)
        for row, own in zip(rows, parts, strict=True):
            column[row] = own[position]
        columns.append(column if is_array else tuple(column))
    return join(space)(columns)


def check_number(wrapper: PoolWrapper, name: str, value: Any) -> None:
    """Raise ConfigError unless an argument of a wrapper is a number, or an array of one number without dimensions."""
    number = value[()] if isinstance(value, np.ndarray) else value
    is_number = isinstance(number, (int, float, np.integer, np.floating)) and not isinstance(number, bool)
    if not is_number or np.isnan(number):
        raise ConfigError(f"{type(wrapper).__name__} expected a number as {name}, got {value!r}")


class FinalObservations:
    """The final observations in info["final_obs"] of a same_step batch, by leaf: read, replace, write back.

    rows: the rows of the batch that have a final observation.
    """

    def __init__(self, info: dict[str, Any], split: Callable[[Any], list[Any]]) -> None:
        self._column: NDArray[Any] | None = info.get("final_obs")
        self.rows = np.flatnonzero(info["_final_obs"]) if self._column is not None else np.zeros(0, dtype=np.intp)
        self._values = [] if self._column is None else [split(self._column[row]) for row in self.rows]

    def leaf(self, position: int) -> list[Any]:
        """Return the values of one leaf, one per row of rows."""
        return [values[position] for values in self._values]

    def replace(self, position: int, column: Any) -> None:
        """Replace the values of a leaf."""
        for values, value in zip(self._values, column, strict=True):
            values[position] = value

    def write(self, join: Callable[[list[Any]], Any]) -> None:
        """Write the replaced values into the info."""
        if self._column is not None:
            for row, values in zip(self.rows, self._values, strict=True):
                self._column[row] = join(values)
