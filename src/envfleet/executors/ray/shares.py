"""Shares: which worker has which envs, and the rows of a call by worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.executors.ray.actors import Worker
from envfleet.executors.ray.infos import Rows


class Shares:
    """The envs of each worker, contiguous and in their order."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        all_ids = np.arange(workers[-1].share.stop, dtype=np.int32)
        # Handed out with every whole batch, so nobody may write to it.
        all_ids.flags.writeable = False
        self.all_ids = all_ids
        self._workers = workers
        self._own = [all_ids[worker.share.start : worker.share.stop] for worker in workers]
        self._firsts = np.array([worker.share.start for worker in workers])

    def worker_of(self, env_id: int) -> Worker:
        """Who has this env."""
        return self._workers[int(np.searchsorted(self._firsts, env_id, side="right")) - 1]

    def grouped(self, env_ids: Sequence[int]) -> dict[Worker, list[int]]:
        """These envs by worker."""
        grouped: dict[Worker, list[int]] = {}
        for env_id in env_ids:
            grouped.setdefault(self.worker_of(env_id), []).append(int(env_id))
        return grouped

    def by_worker(self, env_ids: Any) -> Iterator[tuple[Worker, NDArray[np.int32], bool, Rows]]:
        """For each worker concerned: its envs in the order asked, whether that is its whole share, and their rows."""
        if env_ids is None:
            for worker, own in zip(self._workers, self._own, strict=True):
                yield worker, own, True, slice(worker.share.start, worker.share.stop)
            return
        owners = np.searchsorted(self._firsts, env_ids, side="right") - 1
        order = np.argsort(owners, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(owners[order])) + 1):
            index = int(owners[rows[0]])
            own = np.ascontiguousarray(env_ids[rows])
            is_whole = len(own) == len(self._own[index]) and np.array_equal(own, self._own[index])
            # A slice where that is the same: copies of runs are quicker than of single rows.
            is_run = bool((np.diff(rows) == 1).all())
            yield self._workers[index], own, is_whole, slice(int(rows[0]), int(rows[-1]) + 1) if is_run else rows
