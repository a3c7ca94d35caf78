"""PoolStats: the counters and times that pool.stats() returns; and running means and variances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class EnvStats:
    """The counters of one env since the pool was made.

    Attributes:
        num_steps: Steps, resets not included.
        num_resets: Resets.
        num_episodes: Episodes that ended.
        return_sum: The sum of their returns.
        return_min: The lowest return.
        return_max: The highest return.
        length_sum: The sum of their lengths.
        length_min: The shortest length.
        length_max: The longest length.
        busy_ns: The time inside the env, in nanoseconds.
        slowest_ns: The longest single call, in nanoseconds.
    """

    num_steps: int
    num_resets: int
    num_episodes: int
    return_sum: float
    return_min: float
    return_max: float
    length_sum: int
    length_min: int
    length_max: int
    busy_ns: int
    slowest_ns: int


@dataclass(frozen=True)
class WorkerStats:
    """The times of one worker.

    Attributes:
        busy_ns: Nanoseconds inside envs.
        wait_ns: Nanoseconds spent waiting for requests.
    """

    busy_ns: int
    wait_ns: int

    @property
    def busy_share(self) -> float:
        """The fraction of its time that it spent inside envs."""
        total = self.busy_ns + self.wait_ns
        return self.busy_ns / total if total else 0.0


@dataclass(frozen=True)
class PoolStats:
    """The counters of a pool since it was made. Episodes count when they end.

    Attributes:
        envs: The counters of each env.
        workers: The times of each worker, where they are measured.
    """

    envs: tuple[EnvStats, ...]
    workers: tuple[WorkerStats, ...] = ()

    @property
    def num_steps(self) -> int:
        """The steps of all envs, resets not included."""
        return sum(env.num_steps for env in self.envs)

    @property
    def num_episodes(self) -> int:
        """The number of episodes that ended."""
        return sum(env.num_episodes for env in self.envs)

    @property
    def return_mean(self) -> float:
        """The mean return of the episodes that ended; NaN before the first."""
        return sum(env.return_sum for env in self.envs) / self.num_episodes if self.num_episodes else float("nan")

    @property
    def return_min(self) -> float:
        """The lowest return; NaN before the first episode ended."""
        return min((env.return_min for env in self.envs if env.num_episodes), default=float("nan"))

    @property
    def return_max(self) -> float:
        """The highest return; NaN before the first episode ended."""
        return max((env.return_max for env in self.envs if env.num_episodes), default=float("nan"))

    @property
    def length_mean(self) -> float:
        """The mean length of the episodes that ended; NaN before the first."""
        return sum(env.length_sum for env in self.envs) / self.num_episodes if self.num_episodes else float("nan")

    @property
    def length_min(self) -> int:
        """The shortest episode; 0 before the first ended."""
        return min((env.length_min for env in self.envs if env.num_episodes), default=0)

    @property
    def length_max(self) -> int:
        """The longest episode; 0 before the first ended."""
        return max((env.length_max for env in self.envs if env.num_episodes), default=0)

    @property
    def step_us(self) -> float:
        """The mean time per step inside the envs, resets included, in microseconds; 0 if it is not measured."""
        return sum(env.busy_ns for env in self.envs) / self.num_steps / 1000 if self.num_steps else 0.0

    @property
    def slowest_env(self) -> int:
        """The id of the env with the longest total time."""
        return max(range(len(self.envs)), key=lambda env_id: self.envs[env_id].busy_ns)

    def __str__(self) -> str:
        lines = [f"{self.num_steps:,} steps, {self.num_episodes:,} episodes"]
        if self.num_episodes:
            lines.append(
                f"return {self.return_mean:.4g} (from {self.return_min:.4g} to {self.return_max:.4g}), "
                f"length {self.length_mean:.4g} (from {self.length_min} to {self.length_max})"
            )
        if self.step_us:
            slowest = self.envs[self.slowest_env]
            lines.append(
                f"{self.step_us:.3g} µs per step in the envs; slowest: env {self.slowest_env}, "
                f"longest single call {slowest.slowest_ns / 1e6:.3g} ms"
            )
        for position, worker in enumerate(self.workers):
            lines.append(f"worker {position}: {worker.busy_share:.0%} in envs")
        return "\n".join(lines)


def add_to_moments(count: float, mean: Any, squares: Any, values: NDArray[Any]) -> tuple[float, Any, Any]:
    """Add values along their first axis; return the new count, mean and sum of squared distances from the mean.

    By Chan's formula for combined sets, which does not subtract large sums from each other. In float64: float32 sums
    lose precision in long runs.
    """
    added = len(values)
    added_mean = np.add.reduce(values, axis=0, dtype=np.float64) / added
    distances = values - added_mean
    added_squares = np.add.reduce(distances * distances, axis=0)
    total = count + added
    away = added_mean - mean
    # In this order, a first portion of huge values does not overflow: its factor is 0.
    squares = squares + added_squares + away * (away * (count * added / total))
    return total, mean + away * (added / total), squares
