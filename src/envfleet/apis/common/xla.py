"""Pools inside XLA programs: step(), send() and recv() that jax.jit, lax.scan and lax.fori_loop can trace.

A handle orders the calls: each call takes the handle that the one before returned. Native pools are stepped in C++,
without the GIL; on a GPU, batches are copied from page-locked memory on XLA's own stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet import _native
from envfleet.apis.common.xla_library import load  # first: it names the extra if jax is missing
from envfleet.core.batch import Batch, FinalRows
from envfleet.core.errors import ActionError, CallOrderError, ConfigError, EnvIdError, InputError
from envfleet.core.infos import declared_column, with_env_info
from envfleet.core.pool import Pool
from envfleet.core.spaces import Leaf, join, leaves_of, path_text, split
from envfleet.core.spec import ArraySpec

import jax  # isort: skip
import jax.numpy as jnp  # isort: skip

Arrays = Any  # a jax array, or a dict or tuple of Arrays, in the structure of a space
Step = tuple[Arrays, jax.Array, jax.Array, jax.Array, dict[str, Any]]
Functions = tuple[Any, Callable[..., Any], Callable[..., Any], Callable[..., Any]]

_HANDLE = jax.ShapeDtypeStruct((8,), np.uint8)
_ARRAY_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def xla_functions(
    pool: Pool,
    rows_of: Callable[[Batch], Any],
    fitted: Callable[[Any, Any], tuple[Any, Any]] = lambda actions, env_id: (actions, env_id),
) -> Functions:
    """Return (handle, recv, send, step), as EnvPool's xla() does.

    Args:
        pool: The pool that the functions step.
        rows_of: Converts a batch of traced arrays to what recv() and step() return.
        fitted: Converts the actions and ids of a call first.
    """
    traced = TracedPool(pool)

    def recv(handle: Any) -> Any:
        """Receive the rows that are ready, and return (handle, rows)."""
        handle, batch = traced.recv(handle)
        return handle, rows_of(batch)

    def send(handle: Any, action: Any, env_id: Any = None) -> Any:
        """Start a step of these envs (default: all), and return the handle."""
        return traced.send(handle, *fitted(action, env_id))

    def step(handle: Any, action: Any, env_id: Any = None) -> Any:
        """Step these envs (default: all), and return (handle, rows)."""
        handle, batch = traced.step(handle, *fitted(action, env_id))
        return handle, rows_of(batch)

    return traced.handle, recv, send, step


def gymnasium_rows(batch: Batch) -> Step:
    """Return a batch of traced arrays in the form of VectorEnv.step(); infos have no masks."""
    info = with_env_info({"env_id": batch.env_id, "elapsed_step": batch.elapsed_step}, batch.info)
    if batch.final is not None:
        info.update(final_obs=batch.final.obs, _final_obs=batch.terminated | batch.truncated)
    return batch.obs, batch.reward, batch.terminated, batch.truncated, info


def dm_columns(batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Return step_type and discount of a batch of traced arrays, as dm_env has them."""
    is_last = batch.terminated | batch.truncated
    step_type = jnp.where(is_last, 2, jnp.where(batch.elapsed_step == 0, 0, 1)).astype(np.int32)
    discount = jnp.where(batch.terminated, 0.0, 1.0).astype(np.float32)
    if "discount" in batch.info and batch.info["discount"].ndim == 1:
        discount = jnp.where(batch.elapsed_step == 0, discount, batch.info["discount"]).astype(np.float32)
    return step_type, discount


# --- the columns of a batch -----------------------------------------------------------------------


@dataclass(frozen=True)
class _Column:
    """One array of a batch: where it comes from, and what one row of it is."""

    source: str  # "obs", "reward" ...
    index: int  # among those of this source, in the order of the executor's own columns
    position: int  # of an obs or final_obs, among the leaves of the space; of an info, as index
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class TracedPool:
    """A pool with traced send(), recv() and step(), which return Batches of traced arrays."""

    def __init__(self, pool: Pool) -> None:
        load()
        self.pool = pool
        self._batch_size = pool.config.batch_size
        self._infos = [array for array in pool.spec.info_arrays if isinstance(array.space, _ARRAY_SPACES)]
        self._action_leaves = _action_leaves(pool.spec.action_space)
        self._split_actions = split(pool.spec.action_space, "actions")
        self._template, obs_leaves = _obs_template(pool.spec.observation_space)
        self._num_obs = len(obs_leaves)
        self._columns = self._columns_of(obs_leaves)
        calls = _Calls(pool, self._columns, self._infos, self._action_leaves)
        own_columns = [(column.source, column.index) for column in self._columns]
        self._port = _native.make_xla_port(pool.num_envs, calls, pool.native_pool(), own_columns)
        self.handle: NDArray[np.uint8] = np.frombuffer(np.int64(self._port.token).tobytes(), dtype=np.uint8)

    def step(self, handle: Any, actions: Arrays, env_ids: Any = None) -> tuple[jax.Array, Batch]:
        """Step these envs (default: all); on an asynchronous pool, send and receive."""
        arguments, ids, num_rows = self._arguments("step()", handle, actions, env_ids)
        is_async = self.pool.config.is_async
        results = self._call("step", self._batch_size if is_async else num_rows, arguments)
        return results[0], self._batch(results[1:], ids)

    def send(self, handle: Any, actions: Arrays, env_ids: Any = None) -> jax.Array:
        """Start a step of these envs (default: all)."""
        arguments, _, _ = self._arguments("send()", handle, actions, env_ids)
        return self._call("send", None, arguments)[0]

    def recv(self, handle: Any) -> tuple[jax.Array, Batch]:
        """Receive batch_size rows."""
        results = self._call("recv", self._batch_size, [_checked_handle("recv()", handle)])
        return results[0], self._batch(results[1:], None)

    def arrays_of(self, batch: Batch) -> Batch:
        """Return a batch of numpy arrays as one of jax arrays."""
        calls = _Calls(self.pool, self._columns, self._infos, self._action_leaves)
        arrays = [jnp.array(column, dtype=_jax_dtype(column.dtype)) for column in calls.columns_of(batch)]
        return self._batch(arrays, jnp.array(batch.env_id))

    def _columns_of(self, obs_leaves: Sequence[tuple[int, Leaf]]) -> list[_Column]:
        spec = self.pool.spec
        obs_indices = [_native_index(leaf, spec.observation_arrays) for _, leaf in obs_leaves]

        def obs(source: str) -> list[_Column]:
            return [
                _Column(source, index, position, leaf.shape, _handled_dtype(leaf.dtype))
                for index, (position, leaf) in zip(obs_indices, obs_leaves, strict=True)
            ]

        columns = obs("obs")
        for name, dtype in (("reward", np.float64), ("terminated", np.bool_), ("truncated", np.bool_)):
            columns.append(_Column(name, 0, 0, (), np.dtype(dtype)))
        columns.append(_Column("elapsed_step", 0, 0, (), np.dtype(np.int32)))
        if self.pool.config.is_async:  # otherwise the caller knows them
            columns.append(_Column("env_id", 0, 0, (), np.dtype(np.int32)))
        for position, array in enumerate(self._infos):
            shape = tuple(array.space.shape or ())
            index = spec.info_arrays.index(array)
            columns.append(_Column("info", index, position, shape, _handled_dtype(np.dtype(array.space.dtype))))
        if self.pool.config.autoreset_mode is AutoresetMode.SAME_STEP:
            columns += obs("final_obs")
        return columns

    def _call(self, operation: str, num_rows: int | None, arguments: Sequence[Any]) -> Sequence[jax.Array]:
        results = [_HANDLE]
        if num_rows is not None:
            results += [
                jax.ShapeDtypeStruct((num_rows, *column.shape), _jax_dtype(column.dtype)) for column in self._columns
            ]
        # A side effect: otherwise two steps with the same actions would become one.
        call = jax.ffi.ffi_call(f"envfleet_{operation}", results, has_side_effect=True, input_output_aliases={0: 0})
        handle, *others = arguments
        made = call(
            handle,
            *_apart(others),
            token=np.int64(self._port.token),
            num_leaves=np.int64(len(self._action_leaves)),
        )
        return [made[0], *_apart(made[1:])]

    def _arguments(self, call: str, handle: Any, actions: Arrays, env_ids: Any) -> tuple[list[Any], Any, int]:
        """Return the arguments of the handler, the ids and the number of rows. Raises unless they fit the pool."""
        handle = _checked_handle(call, handle)
        ids = None if env_ids is None else _checked_ids(call, env_ids, self.pool.num_envs)
        num_rows = self.pool.num_envs if ids is None else ids.shape[0]
        try:
            given = self._split_actions(actions)
        except ValueError as error:
            raise ActionError(f"{call}: {error}") from error
        leaves = [
            _checked_action(call, leaf, value, num_rows) for leaf, value in zip(self._action_leaves, given, strict=True)
        ]
        return [handle, *leaves, *([] if ids is None else [ids])], ids, num_rows

    def _batch(self, arrays: Sequence[jax.Array], ids: Any) -> Batch:
        found: dict[str, Any] = {}
        infos, obs, final_obs = {}, [], []
        for column, array in zip(self._columns, arrays, strict=True):
            if column.source == "obs":
                obs.append(array)
            elif column.source == "final_obs":
                final_obs.append(array)
            elif column.source == "info":
                infos[self._infos[column.position].name] = array
            else:
                found[column.source] = array
        env_id = found.get("env_id")
        if env_id is None:
            env_id = jnp.arange(self.pool.num_envs, dtype=np.int32) if ids is None else ids
        return Batch(
            _assembled(self._template, obs),
            found["reward"],
            found["terminated"],
            found["truncated"],
            env_id,
            found["elapsed_step"],
            infos,
            FinalRows(_assembled(self._template, final_obs), found["elapsed_step"], {}) if final_obs else None,
            (),
        )


def _apart(arrays: Sequence[jax.Array]) -> Sequence[jax.Array]:
    """Separate the arguments or results of a call from slices, on a GPU.

    XLA moves a call into a fusion with the slices that it reads or writes; in jax 0.11 it also leaves one that has a
    side effect where it was, and the envs would step twice.
    """
    if not arrays:
        return []
    separated: Sequence[jax.Array] = jax.lax.platform_dependent(
        *arrays, cuda=lambda *arrays: jax.lax.optimization_barrier(arrays), default=lambda *arrays: arrays
    )
    return separated


class _Calls:
    """What the handlers call with the GIL: any pool that is not native, and native ones when something is unusual."""

    def __init__(
        self, pool: Pool, columns: Sequence[_Column], infos: Sequence[ArraySpec], action_leaves: Sequence[Leaf]
    ) -> None:
        self._pool = pool
        self._columns = columns
        self._infos = infos
        self._action_leaves = action_leaves
        self._split_obs = split(pool.spec.observation_space)
        self._join_actions = join(pool.spec.action_space)

    def step(self, leaves: list[NDArray[Any]], env_ids: NDArray[np.int32] | None) -> list[NDArray[Any]]:
        return self.columns_of(self._pool.step(self._actions(leaves), env_ids))

    def send(self, leaves: list[NDArray[Any]], env_ids: NDArray[np.int32] | None) -> None:
        self._pool.send(self._actions(leaves), env_ids)

    def recv(self) -> list[NDArray[Any]]:
        return self.columns_of(self._pool.recv())

    def columns_of(self, batch: Batch) -> list[NDArray[Any]]:
        """Return the columns of a batch as contiguous arrays of their dtypes."""
        obs = self._split_obs(batch.obs)
        final = [] if batch.final is None else self._split_obs(batch.final.obs)
        arrays = []
        for column in self._columns:
            if column.source in ("obs", "final_obs"):
                value = (obs if column.source == "obs" else final)[column.position]
            elif column.source == "info":
                value = declared_column(batch.info, self._infos[column.position], len(batch))
            else:
                value = getattr(batch, column.source)
            arrays.append(np.ascontiguousarray(value, dtype=column.dtype))
        return arrays

    def _actions(self, leaves: list[NDArray[Any]]) -> Any:
        shaped = [
            _widened(leaf, rows.reshape((len(rows), *leaf.shape)))
            for leaf, rows in zip(self._action_leaves, leaves, strict=True)
        ]
        return self._join_actions(shaped)


def _widened(leaf: Leaf, actions: NDArray[Any]) -> NDArray[Any]:
    """Return float32 actions for a space of float64, in which a bound is still that bound."""
    if leaf.dtype != np.float64 or actions.dtype != np.float32 or not isinstance(leaf.space, spaces.Box):
        return actions
    wide = actions.astype(np.float64)
    for bound in (leaf.space.low, leaf.space.high):
        wide = np.where(actions == bound.astype(np.float32), bound, wide)
    return wide


# --- spaces ---------------------------------------------------------------------------------------


def _obs_template(space: Any) -> tuple[Any, list[tuple[int, Leaf]]]:
    """Return the structure of traced observations, and the leaves in it, with their positions in leaves_of().

    The structure has the place of an array in that list for each leaf. Texts and objects of a Dict are left out: XLA
    has no arrays of them.
    """
    kept: list[tuple[int, Leaf]] = []
    leaves = iter(enumerate(leaves_of(space)))

    def walk(own: Any, is_optional: bool) -> Any:
        if isinstance(own, spaces.Dict):
            parts = {key: walk(part, True) for key, part in own.spaces.items()}
            return {key: part for key, part in parts.items() if part is not None}
        if isinstance(own, spaces.Tuple):
            return tuple(walk(part, False) for part in own.spaces)
        position, leaf = next(leaves)
        if leaf.kind == "array":
            kept.append((position, leaf))
            return len(kept) - 1
        if not is_optional:
            raise ConfigError(
                f"the jax api expected observations of numbers, got {leaf.space} at observation{path_text(leaf.path)}; "
                "wrap the env so that its observations are arrays"
            )
        return None

    template = walk(space, False)
    if not kept:
        raise ConfigError(f"the jax api expected observations of numbers, got {space}; wrap the env")
    return template, kept


def _assembled(template: Any, arrays: Sequence[Any]) -> Any:
    if isinstance(template, dict):
        return {key: _assembled(part, arrays) for key, part in template.items()}
    if isinstance(template, tuple):
        return tuple(_assembled(part, arrays) for part in template)
    return arrays[template]


def _native_index(leaf: Leaf, arrays: Sequence[ArraySpec]) -> int:
    """Return the position of a leaf among the columns of a native env, which are in an order of their own."""
    if not leaf.path:
        return 0
    first = leaf.path[0]
    names = [array.name for array in arrays]
    return names.index(first) if first in names else int(first) if isinstance(first, int) else 0


def _action_leaves(space: Any) -> tuple[Leaf, ...]:
    leaves = leaves_of(space)
    for leaf in leaves:
        if leaf.kind != "array":
            raise ConfigError(
                f"the jax api expected actions of numbers, got {leaf.space} at action{path_text(leaf.path)}; "
                "wrap the env so that its actions are arrays"
            )
    return leaves


def _handled_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of a column: float16, which no native env has, is float32."""
    return np.dtype(np.float32) if dtype == np.float16 else dtype


def _jax_dtype(dtype: Any) -> Any:
    """Return the dtype that jax has for this one: without jax_enable_x64, float64 is float32 and int64 is int32."""
    return jax.dtypes.canonicalize_dtype(dtype)


# --- checks when traced ---------------------------------------------------------------------------


def check_not_traced(call: str) -> None:
    """Raise CallOrderError for a call in a function that jax traces."""
    if isinstance(jnp.zeros(()), jax.core.Tracer):
        raise CallOrderError(
            f"{call} expected to be called from Python, got a call in a function that jax traces, where it would run "
            "only once, while it is traced; call it outside and pass its handle to the function"
        )


def _checked_handle(call: str, handle: Any) -> Any:
    shape, dtype = getattr(handle, "shape", None), getattr(handle, "dtype", None)
    if shape != _HANDLE.shape or dtype != _HANDLE.dtype:
        got = type(handle).__name__ if shape is None else f"{dtype} of shape {shape}"
        raise CallOrderError(
            f"{call} expected the handle first, which is uint8 of shape (8,), got {got}; "
            "pass the handle that the last call returned"
        )
    return handle


def _checked_ids(call: str, env_ids: Any, num_envs: int) -> Any:
    ids = _as_array(env_ids, EnvIdError, f"{call} expected env_id as a vector of at most {num_envs} integers")
    if ids.ndim != 1 or not jnp.issubdtype(ids.dtype, jnp.integer) or ids.shape[0] > num_envs:
        raise EnvIdError(
            f"{call} expected env_id as a vector of at most {num_envs} integers, got {ids.dtype} of shape {ids.shape}"
        )
    return _as_int32(ids)


def _checked_action(call: str, leaf: Leaf, given: Any, num_rows: int) -> Any:
    """Return an action array in a dtype that the pool takes. Values are checked when the program runs."""
    where = f"actions{path_text(leaf.path)}"
    array = _as_array(given, ActionError, f"{call} expected {where} as an array of numbers")
    expected = (num_rows, *leaf.shape)
    if array.shape != expected:
        raise ActionError(f"{call} expected {where} of shape {expected}, got {array.shape}; pass one row per env")
    is_float = jnp.issubdtype(array.dtype, jnp.floating)
    is_integer = jnp.issubdtype(array.dtype, jnp.integer)
    if leaf.dtype.kind == "f":
        if not is_float:
            raise ActionError(
                f"{call} expected {where} of {leaf.dtype}, got {array.dtype}; convert them with astype({leaf.dtype})"
            )
        return array if array.dtype in (np.float32, np.float64) else array.astype(np.float32)
    if array.dtype == np.bool_ and leaf.dtype == np.bool_:
        return array
    if isinstance(leaf.space, spaces.MultiBinary) and array.dtype == np.bool_:
        return array.astype(np.int8)
    if not is_integer:
        raise ActionError(f"{call} expected {where} of integers, got {array.dtype}; convert them with astype(int)")
    if isinstance(leaf.space, (spaces.Discrete, spaces.MultiDiscrete)) and array.dtype not in (np.int32, np.int64):
        return _as_int32(array)
    return array


def _as_array(given: Any, error_type: type[InputError], expected: str) -> Any:
    """Return what was given as a jax array. Raises if it cannot be one, or if jax would change its integers."""
    if isinstance(given, jax.Array):
        return given
    own = _as_numpy(given)
    try:
        if own is None and isinstance(given, (list, tuple)):
            # One by one: jax would not check the integers next to a traced value.
            return jnp.stack([_as_array(part, error_type, expected) for part in given])
        array = jnp.asarray(given if own is None else own)
    except InputError:
        raise
    except Exception as error:
        raise error_type(f"{expected}, got {type(given).__name__}") from error
    # Without jax_enable_x64, 64-bit integers lose their upper half.
    if own is not None and own.dtype.kind in "iu" and (own.astype(array.dtype) != own).any():
        raise error_type(f"{expected}, got integers that {array.dtype} cannot hold; set jax_enable_x64 for larger ones")
    return array


def _as_numpy(given: Any) -> NDArray[Any] | None:
    """Return what was given as a numpy array, or None if numpy cannot convert it: traced values, __jax_array__()."""
    try:
        array = np.asarray(given)
    except Exception:
        return None
    return None if array.dtype == np.object_ else array


def _as_int32(array: Any) -> Any:
    """Return integers as int32; larger ones become its limits, which no space or pool contains."""
    limits, own = np.iinfo(np.int32), jnp.iinfo(array.dtype)
    if own.max > limits.max:
        array = jnp.minimum(array, limits.max)
    if own.min < limits.min:
        array = jnp.maximum(array, limits.min)
    return array.astype(np.int32)
