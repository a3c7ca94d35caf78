"""PoolStats: the counters and times that pool.stats() returns; and running means and variances."""

from __future__ import annotations

from collections.abc import Sequence
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

    num_steps: int = 0
    num_resets: int = 0
    num_episodes: int = 0
    return_sum: float = 0.0
    return_min: float = 0.0
    return_max: float = 0.0
    length_sum: int = 0
    length_min: int = 0
    length_max: int = 0
    busy_ns: int = 0
    slowest_ns: int = 0

    def combined(self, other: EnvStats) -> EnvStats:
        """Return the counters of both together, as of an env that was rebuilt in another process."""
        if not other.num_resets and not other.num_steps:
            return self
        if not self.num_resets and not self.num_steps:
            return other
        # The minimum and maximum of no episodes mean nothing.
        with_episodes = [stats for stats in (self, other) if stats.num_episodes] or [self]
        return EnvStats(
            num_steps=self.num_steps + other.num_steps,
            num_resets=self.num_resets + other.num_resets,
            num_episodes=self.num_episodes + other.num_episodes,
            return_sum=self.return_sum + other.return_sum,
            return_min=min(stats.return_min for stats in with_episodes),
            return_max=max(stats.return_max for stats in with_episodes),
            length_sum=self.length_sum + other.length_sum,
            length_min=min(stats.length_min for stats in with_episodes),
            length_max=max(stats.length_max for stats in with_episodes),
            busy_ns=self.busy_ns + other.busy_ns,
            slowest_ns=max(self.slowest_ns, other.slowest_ns),
        )


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


class StatsHistory:
    """The statistics of workers that may die: those of the dead when they were last asked, and of the living."""

    def __init__(self, worker_envs: Sequence[range]) -> None:
        """worker_envs: the env ids of each worker."""
        # (statistics per env, age in nanoseconds)
        self._before = [([EnvStats()] * len(envs), 0) for envs in worker_envs]
        self._current = [([EnvStats()] * len(envs), 0) for envs in worker_envs]

    def update(self, worker: int, stats: PoolStats, age_ns: int) -> None:
        """Record what a worker has counted."""
        self._current[worker] = (list(stats.envs), age_ns)

    def keep(self, worker: int) -> None:
        """Add what a dead worker had counted to its past."""
        envs, age_ns = self._current[worker]
        before, before_ns = self._before[worker]
        self._before[worker] = (_combine_each(before, envs), before_ns + age_ns)
        self._current[worker] = ([EnvStats()] * len(envs), 0)

    def total(self) -> PoolStats:
        """Return the statistics of the pool."""
        envs: list[EnvStats] = []
        workers: list[WorkerStats] = []
        for (before, before_ns), (current, current_ns) in zip(self._before, self._current, strict=True):
            worker_envs = _combine_each(before, current)
            busy_ns = sum(env.busy_ns for env in worker_envs)
            envs += worker_envs
            workers.append(WorkerStats(busy_ns, max(0, before_ns + current_ns - busy_ns)))
        return PoolStats(tuple(envs), tuple(workers))


def _combine_each(first: Sequence[EnvStats], second: Sequence[EnvStats]) -> list[EnvStats]:
    return [one.combined(other) for one, other in zip(first, second, strict=True)]
