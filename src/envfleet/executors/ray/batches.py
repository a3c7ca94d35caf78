"""Batches from the responses of several workers.

Infos travel as columns of numbers plus one pickle per row for everything else: a value that cannot be pickled is then
the fault of its own env and of no other.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from envfleet import _native
from envfleet.core.batch import Batch, Fault, FinalRows
from envfleet.core.infos import merge, merge_nested, value_as_given, value_keys
from envfleet.core.spaces import join, leaf_columns, plain_array_leaf
from envfleet.core.tracebacks import message_of
from envfleet.executors.python.snapshots import snapshot
from envfleet.executors.ray.messages import ResponseCodec, ResponseColumns

# An info key's column with the mask of the rows that have it (None: all); a nested dict has an InfoColumns instead.
InfoColumn = tuple[Any, "NDArray[np.bool_] | None"]
InfoColumns = dict[Any, InfoColumn]
# Rows of a response, or the rows of a batch where they go.
Rows = slice | NDArray[np.intp]


@dataclass(eq=False)
class Response:
    """The rows that a worker returned for a request. columns: None if they were lost with the worker.

    objects: by row, the parts without a column ("obs", "info", "final_obs", "final_info"). faults: by row. stats: the
    worker's pickled statistics and their age in nanoseconds, if it sent them.
    """

    env_ids: NDArray[np.int32]
    columns: ResponseColumns | None
    info: InfoColumns = field(default_factory=dict)
    final_info: InfoColumns = field(default_factory=dict)
    objects: dict[int, dict[str, Any]] = field(default_factory=dict)
    faults: dict[int, Fault] = field(default_factory=dict)
    stats: bytes = b""


def response_from_columns(env_ids: NDArray[np.int32], method: str, columns: ResponseColumns) -> Response:
    """Unpickle the extras of a response. Objects that cannot be unpickled here are the fault of their own env."""
    response = Response(env_ids, columns)
    if columns.extras:
        extras = pickle.loads(columns.extras)
        response.info, response.final_info, pickled_objects, response.faults, response.stats = extras
        for row, data in pickled_objects.items():
            try:
                response.objects[row] = pickle.loads(data)
            except Exception as error:
                message = f"its infos cannot be read here: {message_of(error)}; put plain values into infos"
                response.faults[row] = Fault(int(env_ids[row]), method, message, cause=error)
    return response


class LastObservations:
    """A copy of the last observation that each env delivered, for the rows of envs that fail or die with their worker.

    Zeros, and None for objects, of an env that has delivered none.
    """

    def __init__(self, codec: ResponseCodec, num_envs: int) -> None:
        self._codec = codec
        self._arrays = [np.zeros((num_envs, *leaf.shape), leaf.dtype) for leaf in codec.arrays]
        self._objects: list[Sequence[Any] | None] = [None] * num_envs

    def keep(self, response: Response) -> None:
        """Copy the observations of a response, except those of envs that failed."""
        if response.columns is None:
            return
        rows: Rows = slice(None)
        if response.faults:
            rows = np.array([row for row in range(len(response.env_ids)) if row not in response.faults], dtype=np.intp)
        for own, column in zip(self._arrays, response.columns.obs, strict=True):
            own[response.env_ids[rows]] = column[rows]
        for row, parts in response.objects.items():
            if "obs" in parts and row not in response.faults:
                self._objects[response.env_ids[row]] = _copies(parts["obs"])

    def keep_observed(self, env_id: int, values: Sequence[Any] | None) -> None:
        """Copy what one env shows now, a value per leaf. None: it has delivered nothing."""
        leaves = self._codec.leaves
        of_leaves = [0 if leaf.kind == "array" else None for leaf in leaves] if values is None else values
        arrays = [value for leaf, value in zip(leaves, of_leaves, strict=True) if leaf.kind == "array"]
        for own, value in zip(self._arrays, arrays, strict=True):
            own[env_id] = value
        objects = [value for leaf, value in zip(leaves, of_leaves, strict=True) if leaf.kind != "array"]
        self._objects[env_id] = None if values is None or not objects else _copies(objects)

    def restore(self, arrays: Sequence[NDArray[Any]], row: int, env_id: int) -> Sequence[Any] | None:
        """Write the arrays of an env's last observation into its row; return its objects."""
        for column, own in zip(arrays, self._arrays, strict=True):
            column[row] = own[env_id]
        objects = self._objects[env_id]
        return None if objects is None else _copies(objects)


def _copies(values: Sequence[Any]) -> list[Any]:
    return [snapshot(value, copies_objects=True) for value in values]


# Rows start to stop of a response go to these rows of a batch.
Piece = tuple[Response, slice, Rows]


class BatchBuilder:
    """Builds batches from pieces of responses."""

    def __init__(
        self, observation_space: gymnasium.Space[Any], codec: ResponseCodec, last_obs: LastObservations | None
    ) -> None:
        self._codec = codec
        self._last_obs = last_obs
        # Large columns reuse the memory of earlier batches, which a copy to a GPU page-locks once.
        self._memory = [_native.ArrayMemory() for _ in codec.arrays]
        self._join: Callable[[Sequence[Any]], Any] = join(observation_space)
        self._is_single_array = plain_array_leaf(codec.leaves) is not None

    def build(self, pieces: Sequence[Piece], env_ids: NDArray[np.int32]) -> Batch:
        """Return the batch of these pieces, with the rows of these envs."""
        num_rows = len(env_ids)
        # Lost rows are zeros, since no response fills them, or the last observation.
        is_complete = all(response.columns is not None for response, _, _ in pieces)
        new = np.empty if is_complete else np.zeros
        obs: list[NDArray[Any]] = [
            memory.empty((num_rows, *leaf.shape), leaf.dtype)
            for memory, leaf in zip(self._memory, self._codec.arrays, strict=True)
        ]
        if not is_complete:
            for column in obs:
                column[...] = 0
        reward, elapsed_step = new(num_rows, np.float64), new(num_rows, np.int32)
        terminated, truncated = new(num_rows, np.bool_), new(num_rows, np.bool_)
        is_plain = is_complete and not self._codec.has_finals
        for response, source, target in pieces:
            columns = response.columns
            if columns is None:
                continue
            for column, values in zip(obs, columns.obs, strict=True):
                column[target] = values[source]
            reward[target] = columns.reward[source]
            elapsed_step[target] = columns.elapsed_step[source]
            terminated[target] = columns.terminated[source]
            truncated[target] = columns.truncated[source]
            is_plain = is_plain and not columns.extras
        if is_plain and self._is_single_array:
            return Batch(obs[0], reward, terminated, truncated, env_ids, elapsed_step, {}, None, ())
        objects, faults = _by_batch_row(pieces)
        if self._last_obs is not None and faults:
            row_of = {int(env_id): row for row, env_id in enumerate(env_ids)}
            for fault in faults:
                row = row_of[fault.env_id]
                last_objects = self._last_obs.restore(obs, row, fault.env_id)
                if last_objects is not None:
                    objects[row] = {**objects.get(row, {}), "obs": last_objects}
        infos = [(response.info, source, target) for response, source, target in pieces if response.info]
        return Batch(
            self._structured_obs(obs, _part(objects, "obs"), num_rows),
            reward,
            terminated,
            truncated,
            env_ids,
            elapsed_step,
            join_infos(infos, _part(objects, "info"), num_rows),
            self._final(pieces, objects, num_rows) if self._codec.has_finals else None,
            faults,
        )

    def _final(self, pieces: Sequence[Piece], objects: Mapping[int, Mapping[str, Any]], num_rows: int) -> FinalRows:
        obs: list[NDArray[Any]] = [np.zeros((num_rows, *leaf.shape), leaf.dtype) for leaf in self._codec.arrays]
        elapsed_step = np.zeros(num_rows, np.int32)
        for response, source, target in pieces:
            columns = response.columns
            if columns is None or not len(columns.final_rows):
                continue
            chosen = (columns.final_rows >= source.start) & (columns.final_rows < source.stop)
            rows = np.arange(num_rows)[target][columns.final_rows[chosen] - source.start]
            for column, values in zip(obs, columns.final_obs, strict=True):
                column[rows] = values[chosen]
            elapsed_step[rows] = columns.final_elapsed[chosen]
        infos = [(response.final_info, source, target) for response, source, target in pieces if response.final_info]
        info = join_infos(infos, _part(objects, "final_info"), num_rows)
        return FinalRows(self._structured_obs(obs, _part(objects, "final_obs"), num_rows), elapsed_step, info)

    def _structured_obs(
        self, arrays: Sequence[NDArray[Any]], objects: Mapping[int, Sequence[Any]], num_rows: int
    ) -> Any:
        """Return the batched observation from its array columns and the rows of its other leaves."""
        if self._is_single_array:
            return arrays[0]
        remaining = iter(arrays)
        columns = [next(remaining) if leaf.kind == "array" else None for leaf in self._codec.leaves]
        return self._join(leaf_columns(self._codec.leaves, columns, [objects.get(row) for row in range(num_rows)]))


def _by_batch_row(pieces: Sequence[Piece]) -> tuple[dict[int, dict[str, Any]], tuple[Fault, ...]]:
    """Return the objects and the faults of these pieces by their rows in the batch."""
    objects: dict[int, dict[str, Any]] = {}
    faults: dict[int, Fault] = {}
    for response, source, target in pieces:
        if not response.objects and not response.faults:
            continue
        for batch_row, row in zip(_positions(target), range(source.start, source.stop), strict=True):
            if row in response.objects:
                objects[batch_row] = response.objects[row]
            if row in response.faults:
                faults[batch_row] = response.faults[row]
    return objects, tuple(faults[row] for row in sorted(faults))


def _part(objects: Mapping[int, Mapping[str, Any]], name: str) -> dict[int, Any]:
    return {row: parts[name] for row, parts in objects.items() if name in parts}


# --- infos ---------------------------------------------------------------------------------------


def split_info(info: Mapping[str, Any], num_rows: int) -> tuple[InfoColumns, dict[int, dict[Any, Any]]]:
    """Split a batch's info into columns of numbers and, for each row, the values that are not numbers."""
    objects: dict[int, dict[Any, Any]] = {}
    return _split(info, num_rows, objects, ()), objects


def _split(
    info: Mapping[str, Any], num_rows: int, objects: dict[int, dict[Any, Any]], path: tuple[Any, ...]
) -> InfoColumns:
    columns: InfoColumns = {}
    for key in value_keys(info):
        column, mask = info[key], info.get(f"_{key}")
        if isinstance(column, dict):
            columns[key] = (_split(column, num_rows, objects, (*path, key)), mask)
        elif column.dtype == object:
            for row in range(num_rows) if mask is None else np.flatnonzero(mask):
                nested = objects.setdefault(int(row), {})
                for step in path:
                    nested = nested.setdefault(step, {})
                nested[key] = column[row]
        else:
            columns[key] = (column, mask)
    return columns


def join_infos(
    infos: Sequence[tuple[InfoColumns, Rows, Rows]], objects: Mapping[int, Mapping[Any, Any]], num_rows: int
) -> dict[str, Any]:
    """Return one info of num_rows rows. infos: (columns, their rows, the rows where those go); objects: by row."""
    if not infos and not objects:
        return {}
    row_infos: list[dict[Any, Any] | None] = [None] * num_rows
    info = _join_columns(infos, num_rows, row_infos, ()) if infos else {}
    for row, values in objects.items():
        row_infos[row] = merge_nested(row_infos[row], values)
    return merge(row_infos, info)


def _join_columns(
    infos: Sequence[tuple[InfoColumns, Rows, Rows]],
    num_rows: int,
    row_infos: list[dict[Any, Any] | None],
    path: tuple[Any, ...],
) -> dict[str, Any]:
    info: dict[str, Any] = {}
    # A key "_c" of one worker is dropped if another has the key "c", whose mask has that name.
    for key in value_keys(dict.fromkeys(key for columns, _, _ in infos for key in columns)):
        entries = [(columns[key], source, target) for columns, source, target in infos if key in columns]
        values = [entry[0] for entry, _, _ in entries]
        if all(isinstance(column, dict) for column in values):
            nested = [(entry[0], source, target) for entry, source, target in entries]
            info[key] = _join_columns(nested, num_rows, row_infos, (*path, key))
        elif not any(isinstance(column, dict) for column in values) and (
            len({(column.dtype, column.shape[1:]) for column in values}) == 1
        ):
            joined = np.zeros((num_rows, *values[0].shape[1:]), dtype=values[0].dtype)
            for (column, _), source, target in entries:
                joined[target] = column[source]
            info[key] = joined
        else:
            _move_to_rows(key, entries, row_infos, path)
            continue
        num_present = sum(_count(target) for _, _, target in entries)
        if num_present < num_rows or any(mask is not None for (_, mask), _, _ in entries):
            joined_mask = np.zeros(num_rows, dtype=np.bool_)
            for (_, mask), source, target in entries:
                joined_mask[target] = True if mask is None else mask[source]
            info[f"_{key}"] = joined_mask
    return info


def _move_to_rows(
    key: Any,
    entries: Sequence[tuple[InfoColumn, Rows, Rows]],
    row_infos: list[dict[Any, Any] | None],
    path: tuple[Any, ...],
) -> None:
    """Add values of columns that do not fit together to the infos of their rows, for merge() to combine."""
    for (column, mask), source, target in entries:
        for batch_row, row in zip(_positions(target), _positions(source), strict=True):
            if mask is not None and not mask[row]:
                continue
            row_info: dict[Any, Any] = {}
            nested = row_info
            for step in path:
                nested = nested.setdefault(step, {})
            nested[key] = _value(column, row)
            row_infos[batch_row] = merge_nested(row_infos[batch_row], row_info)


def _value(column: Any, row: int) -> Any:
    if isinstance(column, dict):
        return {key: _value(inner, row) for key, (inner, mask) in column.items() if mask is None or mask[row]}
    return value_as_given(column, row)


def _count(rows: Rows) -> int:
    return rows.stop - rows.start if isinstance(rows, slice) else len(rows)


def _positions(rows: Rows) -> Sequence[int]:
    return range(rows.start, rows.stop) if isinstance(rows, slice) else [int(row) for row in rows]
