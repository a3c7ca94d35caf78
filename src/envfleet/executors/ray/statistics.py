"""Counts: what pool.stats() gives, over the lives of all actors that a worker had."""

from __future__ import annotations

from collections.abc import Sequence

from envfleet.statistics import EnvStats, PoolStats, WorkerStats

_ZERO = EnvStats(0, 0, 0, 0.0, 0.0, 0.0, 0, 0, 0, 0, 0)


class Counts:
    """Of each worker: what its dead actors had counted when they were last asked, and what the present one has."""

    def __init__(self, shares: Sequence[range]) -> None:
        self._before = [([_ZERO] * len(share), 0) for share in shares]
        self._now = [([_ZERO] * len(share), 0) for share in shares]

    def note(self, worker: int, stats: PoolStats, age_ns: int) -> None:
        """What a worker has counted."""
        self._now[worker] = (list(stats.envs), age_ns)

    def keep(self, worker: int) -> None:
        """A worker died: what it had counted when it was last asked is kept."""
        envs, age_ns = self._now[worker]
        before, before_ns = self._before[worker]
        self._before[worker] = ([_sum(one, two) for one, two in zip(before, envs, strict=True)], before_ns + age_ns)
        self._now[worker] = ([_ZERO] * len(envs), 0)

    def stats(self) -> PoolStats:
        """Of the whole pool."""
        envs: list[EnvStats] = []
        workers: list[WorkerStats] = []
        for (before, before_ns), (now, now_ns) in zip(self._before, self._now, strict=True):
            own = [_sum(one, two) for one, two in zip(before, now, strict=True)]
            busy_ns = sum(env.busy_ns for env in own)
            envs += own
            workers.append(WorkerStats(busy_ns, max(0, before_ns + now_ns - busy_ns)))
        return PoolStats(tuple(envs), tuple(workers))


def _sum(one: EnvStats, other: EnvStats) -> EnvStats:
    if not other.num_resets and not other.num_steps:
        return one
    if not one.num_resets and not one.num_steps:
        return other
    has_one, has_other = bool(one.num_episodes), bool(other.num_episodes)
    both = [own for own, has in ((one, has_one), (other, has_other)) if has] or [one]
    return EnvStats(
        one.num_steps + other.num_steps,
        one.num_resets + other.num_resets,
        one.num_episodes + other.num_episodes,
        one.return_sum + other.return_sum,
        min(own.return_min for own in both),
        max(own.return_max for own in both),
        one.length_sum + other.length_sum,
        min(own.length_min for own in both),
        max(own.length_max for own in both),
        one.busy_ns + other.busy_ns,
        max(one.slowest_ns, other.slowest_ns),
    )
