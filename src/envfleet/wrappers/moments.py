"""Mean and variance of what came so far."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_FIRST_COUNT = 1e-4  # of mean 0 and variance 1, so that there is something to divide by before the first row


class RunningMeanStd:
    """Counts rows in float64: sums of float32 lose what a long run adds to them."""

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self.mean: NDArray[np.float64] = np.zeros(shape)
        self.var: NDArray[np.float64] = np.ones(shape)
        self.count: float = _FIRST_COUNT

    def update(self, rows: NDArray[Any]) -> None:
        """Adds rows, by Chan's formula for the moments of two sets joined."""
        added = len(rows)
        mean = np.add.reduce(rows, axis=0, dtype=np.float64) / added
        from_mean = rows - mean
        var = np.add.reduce(from_mean * from_mean, axis=0) / added
        total = self.count + added
        away = mean - self.mean
        squares = self.var * self.count + var * added + away * away * (self.count * added / total)
        self.mean = np.asarray(self.mean + away * (added / total))
        self.var = np.asarray(squares / total)
        self.count = total
