"""Statistics of the episodes in a stream of batches.

RowLog copies the relevant columns of each batch while the clock runs; EpisodeStatistics processes many batches at once
while it is stopped.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.core.batch import Batch
from envfleet.core.statistics import add_to_moments


class RowLog:
    """The rewards, ends and ids of up to `capacity` batches."""

    def __init__(self, capacity: int, batch_size: int) -> None:
        shape = (capacity, batch_size)
        self.capacity = capacity
        self.num_batches = 0
        self._env_id = np.empty(shape, np.int32)
        self._reward = np.empty(shape, np.float64)
        self._terminated = np.empty(shape, np.bool_)
        self._truncated = np.empty(shape, np.bool_)
        self._elapsed_step = np.empty(shape, np.int32)

    def append(self, batch: Batch) -> None:
        """Copy the batch's rows, so that its buffer can return to the pool."""
        row = self.num_batches
        self._env_id[row] = batch.env_id
        self._reward[row] = batch.reward
        self._terminated[row] = batch.terminated
        self._truncated[row] = batch.truncated
        self._elapsed_step[row] = batch.elapsed_step
        self.num_batches = row + 1

    def drain(self) -> tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
        """Return (env_id, reward, ended, stepped) of all rows, in order, and clear the log.

        ended: whether the row ended an episode. stepped: whether it was a step, and not a reset.
        """
        rows = slice(0, self.num_batches)
        self.num_batches = 0
        ended = (self._terminated[rows] | self._truncated[rows]).ravel()
        # Reset rows of next_step have elapsed_step 0. So do ends in same_step, but those are steps.
        stepped = (self._elapsed_step[rows].ravel() > 0) | ended
        return self._env_id[rows].ravel(), self._reward[rows].ravel(), ended, stepped


class Moments:
    """Count, mean, standard deviation and range of numbers that are added in portions."""

    def __init__(self) -> None:
        self.count = 0
        self.lowest = math.nan
        self.highest = math.nan
        self._mean = 0.0
        self._squares = 0.0  # sum of squared distances from the mean

    @property
    def mean(self) -> float:
        """The mean of the numbers; NaN without any."""
        return self._mean if self.count else math.nan

    @property
    def std(self) -> float:
        """The standard deviation of the numbers, without Bessel's correction; NaN without any."""
        return math.sqrt(self._squares / self.count) if self.count else math.nan

    def add(self, values: NDArray[Any]) -> None:
        """Add numbers."""
        if not values.size:
            return
        # fmin() and fmax() ignore the NaN before the first number.
        self.lowest = float(np.fmin(self.lowest, values.min()))
        self.highest = float(np.fmax(self.highest, values.max()))
        count, mean, squares = add_to_moments(self.count, self._mean, self._squares, values)
        self.count, self._mean, self._squares = int(count), float(mean), float(squares)


class EpisodeStatistics:
    """Returns and lengths of the episodes that ended, without those still running."""

    def __init__(self, num_envs: int) -> None:
        self.returns = Moments()
        self.lengths = Moments()
        self._running_return = np.zeros(num_envs, np.float64)
        self._running_length = np.zeros(num_envs, np.int64)
        # NumPy sorts 16-bit integers by radix, several times faster, and sorting is most of the work.
        self._sort_dtype = np.dtype(np.uint16 if num_envs <= 1 << 16 else np.int32)
        # Of the previous rows: those of a synchronous pool always have the same order.
        self._sorted_ids = np.empty(0, np.int32)
        self._order = np.empty(0, np.intp)

    def add(
        self,
        env_id: NDArray[np.int32],
        reward: NDArray[np.float64],
        ended: NDArray[np.bool_],
        stepped: NDArray[np.bool_],
    ) -> None:
        """Add rows from RowLog.drain(): those of one env must be in the order of its steps."""
        if not env_id.size:
            return
        if not np.array_equal(env_id, self._sorted_ids):
            self._sorted_ids = env_id.copy()
            self._order = np.argsort(env_id.astype(self._sort_dtype), kind="stable")
        order = self._order
        env_id, reward, ended, stepped = env_id[order], reward[order], ended[order], stepped[order]
        # A segment is a sequence of rows of one env in one episode.
        new_env = np.concatenate(([True], env_id[1:] != env_id[:-1]))
        begins = np.flatnonzero(new_env | np.concatenate(([False], ended[:-1])))
        closed = ended[np.append(begins[1:], len(env_id)) - 1]
        sums = np.add.reduceat(reward, begins)
        lengths = np.add.reduceat(stepped, begins, dtype=np.int64)
        owners, continues = env_id[begins], new_env[begins]
        for totals, running, finished in (
            (sums, self._running_return, self.returns),
            (lengths, self._running_length, self.lengths),
        ):
            totals[continues] += running[owners[continues]]
            running[owners[continues]] = 0
            running[owners[~closed]] = totals[~closed]
            finished.add(totals[closed])
