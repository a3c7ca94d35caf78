"""Batches of actions as Gymnasium accepts them, unchecked, as columns or as single actions."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector.utils import iterate
from numpy.typing import NDArray

from envfleet.core.spaces import Leaf, leaves_of, split
from envfleet.core.validation import LeafColumns


class ActionSplitter:
    """Splits a batch of actions into columns, or into single actions if they do not fit into columns.

    A column has the dtype of the space. Integers of any width fit if it can hold their values, floats only if they
    have that dtype: rounded, or of another type, they would be another action to the env. Actions that do not fit are
    passed to the envs as objects (Pool.step_objects).
    """

    def __init__(self, single: gymnasium.Space[Any], batched: gymnasium.Space[Any], num_envs: int) -> None:
        self._batched = batched
        self._num_envs = num_envs
        self._leaves = leaves_of(single)
        self._split = split(single, "action")
        self._is_plain = [(leaf.path, leaf.kind) for leaf in self._leaves] == [((), "array")]

    def columns(self, actions: Any) -> LeafColumns | None:
        """Return the actions as columns; None if some action does not fit into them."""
        if self._is_plain and isinstance(actions, np.ndarray):
            if actions.ndim == 0:
                raise TypeError(f"Unable to iterate over the following elements: {actions}")
            self._check_count(len(actions))
            whole = self._column(self._leaves[0], actions)
            return None if whole is None else LeafColumns([whole])
        try:
            rows = [self._split(action) for action in self.single_actions(actions)]
        except ValueError:
            self._check_count(len(self.single_actions(actions)))
            return None  # another structure
        columns = LeafColumns()
        for leaf, values in zip(self._leaves, zip(*rows, strict=True), strict=True):
            column: Any = self._column(leaf, list(values)) if leaf.kind == "array" else list(values)
            if column is None:
                return None
            columns.append(column)
        return columns

    def single_actions(self, actions: Any) -> list[Any]:
        """Return one action per env, unchanged."""
        singles = list(iterate(self._batched, actions))
        self._check_count(len(singles))
        return singles

    def _check_count(self, count: int) -> None:
        if count != self._num_envs:
            raise ValueError(f"step() expected {self._num_envs} actions, one per env, got {count}")

    def _column(self, leaf: Leaf, values: Any) -> NDArray[Any] | None:
        try:
            given = np.asarray(values)
        except ValueError:  # rows of different lengths
            return None
        if given.shape != (self._num_envs, *leaf.shape):
            return None
        if given.dtype == leaf.dtype:
            return given
        if given.dtype.kind not in "biu" or leaf.dtype.kind not in "iu":
            return None
        column = given.astype(leaf.dtype)
        return column if (column == given).all() else None
