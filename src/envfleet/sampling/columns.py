"""Columns: values of a space, row after row, as one array for each leaf."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from envfleet.spaces import join, leaves_of, row_getter, split


class Columns:
    """For batches: arrays of shape (steps, num_envs, ...), written a step at a time. For single values: a list."""

    def __init__(self, space: gymnasium.Space[Any], shape: tuple[int, ...], name: str) -> None:
        self._shape = shape
        self._leaves = leaves_of(space)
        self._split, self._join, self._row_of = split(space, name), join(space), row_getter(space)
        self._columns: list[NDArray[Any]] = []
        self._values: list[list[Any]] = []

    def write(self, step: int, batch: Any) -> None:
        """A batch of all envs."""
        parts = self._split(batch)
        if not self._columns:
            self._columns = [
                # What has no array of its own (text, graphs) is kept as objects.
                np.empty(self._shape, object)
                if leaf.kind != "array"
                else np.zeros((self._shape[0], *np.shape(part)), np.asarray(part).dtype)
                for leaf, part in zip(self._leaves, parts, strict=True)
            ]
        for position, (leaf, part) in enumerate(zip(self._leaves, parts, strict=True)):
            if leaf.kind == "array":
                self._columns[position] = written(self._columns[position], step, np.asarray(part))
            else:
                for env_id, value in enumerate(part):
                    self._columns[position][step, env_id] = value

    def joined(self) -> Any:
        """All that was written, in the structure of the space."""
        return self._join(self._columns)

    def copied(self, batch: Any) -> Any:
        """A batch that nobody else writes into."""
        return self._join([copy.copy(part) for part in self._split(batch)])

    def append(self, value: Any) -> None:
        """A copy of a single value."""
        self._values.append([copy.copy(part) for part in self._split(value)])

    def append_row(self, batch: Any, row: int) -> None:
        """A copy of one row of a batch."""
        self.append(self._row_of(batch, row))

    def stacked(self) -> Any:
        """All that was appended, in the structure of the space, one row for each."""
        columns: list[NDArray[Any]] = []
        for position, leaf in enumerate(self._leaves):
            own = [values[position] for values in self._values]
            if leaf.kind == "array":
                columns.append(np.array(own, leaf.dtype).reshape(len(own), *leaf.shape))
            else:
                columns.append(np.empty(len(own), object))
                for row, value in enumerate(own):
                    columns[-1][row] = value
        return self._join(columns)


def written(column: NDArray[Any], step: int, row: NDArray[Any]) -> NDArray[Any]:
    """The column with this row in it: a new one where the old dtype cannot hold it (0 at first, then 0.5)."""
    dtype = np.result_type(column.dtype, row.dtype)
    if dtype != column.dtype:
        column = column.astype(dtype)
    column[step] = row
    return column


def same_values(one: Any, other: Any) -> bool:
    """Whether two batches of a structure hold the same numbers; what is not numbers is taken to be the same."""
    if isinstance(one, dict):
        return all(same_values(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return all(same_values(*pair) for pair in zip(one, other, strict=True))
    if not isinstance(one, np.ndarray) or one.dtype.kind not in "biufc":
        return True
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"))
