"""Observations of any structure, leaf by leaf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray


def changed(space: gymnasium.Space[Any], change: Callable[[gymnasium.Space[Any]], Any]) -> gymnasium.Space[Any]:
    """The space with each of its leaves changed."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: changed(part, change) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([changed(part, change) for part in space.spaces])
    leaf: gymnasium.Space[Any] = change(space)
    return leaf


class FinalRows:
    """The last observations in info["final_obs"] of a same_step batch, leaf by leaf, and back into it.

    rows: the rows of the batch that have one.
    """

    def __init__(self, info: dict[str, Any], split: Callable[[Any], list[Any]]) -> None:
        self._column: NDArray[Any] | None = info.get("final_obs")
        self.rows = np.flatnonzero(info["_final_obs"]) if self._column is not None else np.zeros(0, dtype=np.intp)
        self._values = [] if self._column is None else [split(self._column[row]) for row in self.rows]

    def leaf(self, position: int) -> list[Any]:
        """The values of one leaf, one for each of rows."""
        return [values[position] for values in self._values]

    def replace(self, position: int, column: Any) -> None:
        """Puts other values in the place of a leaf's."""
        for values, value in zip(self._values, column, strict=True):
            values[position] = value

    def write(self, join: Callable[[list[Any]], Any]) -> None:
        """Puts what replace() was given into the info."""
        if self._column is not None:
            for row, values in zip(self.rows, self._values, strict=True):
                self._column[row] = join(values)
