"""PoolStats: the counters and times that pool.stats() returns; and running means and variances."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envfleet.core.errors import ConfigError, short_repr


@dataclass(frozen=True)
class EnvStats:
    """The counters of one env since the pool was made, or in the period of PoolStats.since().

    Attributes:
        num_steps: Steps, resets not included.
        num_resets: Resets.
        num_episodes: Episodes that ended.
        return_sum: The sum of their returns.
        return_min: The lowest return; NaN if unknown, see since().
        return_max: The highest return; NaN if unknown.
        length_sum: The sum of their lengths.
        length_min: The shortest length; 0 if unknown.
        length_max: The longest length; 0 if unknown.
        busy_ns: The time inside the env, in nanoseconds.
        slowest_ns: The longest single call, in nanoseconds; 0 if unknown.
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

    def since(self, earlier: EnvStats) -> EnvStats:
        """Return what has been counted since.

        The extremes of the period are known if it has the env's first episode, or if they exceed all earlier ones.
        """
        values: dict[str, Any] = {}
        for name, now in vars(self).items():
            before = getattr(earlier, name)
            if name not in _EXTREMES:
                values[name] = now - before
            elif (name != "slowest_ns" and not earlier.num_episodes) or _EXTREMES[name].exceeds(now, before):
                values[name] = now
            else:
                values[name] = float("nan") if isinstance(now, float) else 0
        if self.num_episodes == earlier.num_episodes:
            values["return_sum"] = 0.0  # also if it was infinite before
        return EnvStats(**values)

    def combined(self, other: EnvStats) -> EnvStats:
        """Return the counters of both together, as of an env that was rebuilt in another process."""
        if not other.num_resets and not other.num_steps:
            return self
        if not self.num_resets and not self.num_steps:
            return other
        # The minimum and maximum of no episodes mean nothing, and their sums are 0.
        with_episodes = [stats for stats in (self, other) if stats.num_episodes] or [self]
        values: dict[str, Any] = {}
        for name in vars(self):
            counted = with_episodes if name.startswith(("return", "length")) else (self, other)
            values[name] = _EXTREMES.get(name, _SUM).combine(getattr(stats, name) for stats in counted)
        return EnvStats(**values)


class _Rule(NamedTuple):
    combine: Callable[[Iterable[Any]], Any]
    exceeds: Callable[[Any, Any], bool] = operator.gt


_SUM = _Rule(sum)
_LOWEST, _HIGHEST = _Rule(min, operator.lt), _Rule(max)
# The counters that are no sums.
_EXTREMES = {
    "return_min": _LOWEST,
    "return_max": _HIGHEST,
    "length_min": _LOWEST,
    "length_max": _HIGHEST,
    "slowest_ns": _HIGHEST,
}


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
    """The counters of a pool since it was made, or in the period of since(). Episodes count when they end.

    Attributes:
        envs: The counters of each env.
        workers: The times of each worker, where they are measured.
    """

    envs: tuple[EnvStats, ...]
    workers: tuple[WorkerStats, ...] = ()

    def since(self, earlier: PoolStats) -> PoolStats:
        """Return what has been counted since an earlier call of stats(): the counts, means and times of that period.

        Minima, maxima and the slowest call are those of the period only if they exceed all earlier ones, or if no
        episode had ended before; otherwise they are NaN, or 0 for lengths and times.
        """
        if not isinstance(earlier, PoolStats) or len(earlier.envs) != len(self.envs):
            got = f"those of {len(earlier.envs)}" if isinstance(earlier, PoolStats) else short_repr(earlier)
            raise ConfigError(
                f"since() expected earlier statistics of the same {len(self.envs)} envs, got {got}; keep what stats() "
                "returned"
            )
        envs = tuple(own.since(before) for own, before in zip(self.envs, earlier.envs, strict=True))
        # Empty where they are not measured.
        workers = tuple(
            WorkerStats(own.busy_ns - before.busy_ns, own.wait_ns - before.wait_ns)
            for own, before in zip(self.workers, earlier.workers, strict=False)
        )
        return PoolStats(envs, workers)

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
        """The lowest return; NaN before the first episode ended, or if unknown."""
        return float(np.min([env.return_min for env in self.envs if env.num_episodes] or [np.nan]))

    @property
    def return_max(self) -> float:
        """The highest return; NaN before the first episode ended, or if unknown."""
        return float(np.max([env.return_max for env in self.envs if env.num_episodes] or [np.nan]))

    @property
    def length_mean(self) -> float:
        """The mean length of the episodes that ended; NaN before the first."""
        return sum(env.length_sum for env in self.envs) / self.num_episodes if self.num_episodes else float("nan")

    @property
    def length_min(self) -> int:
        """The shortest episode; 0 before the first ended, or if unknown."""
        return min((env.length_min for env in self.envs if env.num_episodes), default=0)

    @property
    def length_max(self) -> int:
        """The longest episode; 0 before the first ended, or if unknown."""
        longest = [env.length_max for env in self.envs if env.num_episodes]
        return max(longest) if longest and all(longest) else 0

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
            returns, lengths = f"return {self.return_mean:.4g}", f"length {self.length_mean:.4g}"
            if not np.isnan(self.return_min) and not np.isnan(self.return_max):
                returns += f" (from {self.return_min:.4g} to {self.return_max:.4g})"
            if self.length_min and self.length_max:
                lengths += f" (from {self.length_min} to {self.length_max})"
            lines.append(f"{returns}, {lengths}")
        if self.step_us:
            slowest = self.envs[self.slowest_env]
            longest = f", longest single call {slowest.slowest_ns / 1e6:.3g} ms" if slowest.slowest_ns else ""
            lines.append(f"{self.step_us:.3g} µs per step in the envs; slowest: env {self.slowest_env}{longest}")
        for position, worker in enumerate(self.workers):
            lines.append(f"worker {position}: {worker.busy_share:.0%} in envs")
        return "\n".join(lines)


def joined_stats(parts: Sequence[PoolStats]) -> PoolStats:
    """Return the statistics of several pools as those of one, with the envs of the first pool first."""
    return PoolStats(
        tuple(env for part in parts for env in part.envs), tuple(worker for part in parts for worker in part.workers)
    )


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
    """The statistics of workers that may die: those of the dead when they were last asked, and of the living.

    Thread safety: any thread, and signal handlers.
    """

    def __init__(self, worker_envs: Sequence[range]) -> None:
        """worker_envs: the env ids of each worker."""
        # (statistics per env, age in nanoseconds)
        self._before = [([EnvStats()] * len(envs), 0) for envs in worker_envs]
        self._current = [([EnvStats()] * len(envs), 0) for envs in worker_envs]
        self._lock = threading.RLock()

    def update(self, worker: int, stats: PoolStats, age_ns: int) -> None:
        """Record what a worker has counted, unless later counts are known: an answer may overtake a response."""
        with self._lock:
            if age_ns >= self._current[worker][1]:
                self._current[worker] = (list(stats.envs), age_ns)

    def keep(self, worker: int) -> None:
        """Add what a dead worker had counted to its past."""
        with self._lock:
            envs, age_ns = self._current[worker]
            before, before_ns = self._before[worker]
            self._before[worker] = (_combine_each(before, envs), before_ns + age_ns)
            self._current[worker] = ([EnvStats()] * len(envs), 0)

    def total(self) -> PoolStats:
        """Return the statistics of the pool."""
        with self._lock:
            counted = list(zip(self._before, self._current, strict=True))
        envs: list[EnvStats] = []
        workers: list[WorkerStats] = []
        for (before, before_ns), (current, current_ns) in counted:
            worker_envs = _combine_each(before, current)
            busy_ns = sum(env.busy_ns for env in worker_envs)
            envs += worker_envs
            workers.append(WorkerStats(busy_ns, max(0, before_ns + current_ns - busy_ns)))
        return PoolStats(tuple(envs), tuple(workers))


def _combine_each(first: Sequence[EnvStats], second: Sequence[EnvStats]) -> list[EnvStats]:
    return [one.combined(other) for one, other in zip(first, second, strict=True)]
