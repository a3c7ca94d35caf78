"""Restarts: what becomes of envs that raise, and with which seed one is built anew."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.autoreset import Phase
from envfleet.batch import Batch
from envfleet.errors import EnvError
from envfleet.executors.base import Executor
from envfleet.seeding import restart_seed, to_words
from envfleet.spec import PoolConfig

_NO_TIMEOUT = -1.0


class Restarts:
    """The seeds of a pool's envs, and how often each was rebuilt.

    counts: since the env was last seeded; with the seed it decides a rebuilt env's stream, so
    that a rollout with faults is a function of the seed too.
    """

    def __init__(self, executor: Executor, config: PoolConfig, seeds: list[int]) -> None:
        self.seeds = seeds
        self.counts = [0] * len(seeds)
        self._totals = [0] * len(seeds)  # what max_restarts bounds
        self._executor = executor
        self._config = config

    def reseeded(self, env_id: int, seed: int) -> None:
        """Notes the seed that an env was given."""
        self.seeds[env_id] = seed
        self.counts[env_id] = 0

    def rebuild_broken(self, chosen: NDArray[np.int32]) -> None:
        """Builds anew, for their reset, those of these envs that raised."""
        for env_id in chosen[self._executor.phases()[chosen] == Phase.BROKEN]:
            self.rebuild(int(env_id), Phase.UNSTARTED)

    def rebuild(self, env_id: int, phase: Phase) -> None:
        """Builds one env anew and leaves it in this phase."""
        self._executor.rebuild(env_id, int(phase))
        self.counts[env_id] += 1
        self._totals[env_id] += 1
        fresh = restart_seed(self.seeds[env_id], self.counts[env_id])
        self._executor.seed(np.array([env_id], dtype=np.int32), to_words([fresh]))

    def settle(self, batch: Batch, was_reset: bool = False) -> Batch:
        """What becomes of envs that raised: an exception, or a truncated row and a rebuilt env."""
        if not batch.faults:
            return batch
        if self._config.on_error == "raise":
            raise EnvError(batch.faults, batch, "the other rows are in .batch, and its next reset rebuilds it")
        spent = [fault for fault in batch.faults if self._totals[fault.env_id] >= self._config.max_restarts]
        if spent:
            raise EnvError(
                (*spent, *(fault for fault in batch.faults if fault not in spent)),
                batch,
                f"it was restarted max_restarts={self._config.max_restarts} times already; mend the env or allow more",
            )
        errors = np.full(len(batch), None, dtype=object)
        has_error = np.zeros(len(batch), dtype=np.bool_)
        for fault in batch.faults:
            self.rebuild(fault.env_id, Phase.ENDED)
            row = int(np.flatnonzero(batch.env_id == fault.env_id)[0])
            errors[row], has_error[row] = f"{fault.method}(): {fault.message}", True
        # A reset gives first rows, and in same_step mode an end is followed by one in the same row.
        if was_reset or batch.final is not None:
            self._show_next_episodes(batch, np.flatnonzero(has_error))
        if not was_reset:
            batch.truncated[has_error] = True
        batch.info.update(error=errors, _error=has_error)
        return batch

    def _show_next_episodes(self, batch: Batch, rows: NDArray[np.intp]) -> None:
        """Puts the first rows of restarted envs' next episodes in the place of those that failed."""
        fresh = self._executor.reset(np.ascontiguousarray(batch.env_id[rows]), {}, _NO_TIMEOUT)
        assert fresh is not None, "a reset without a time limit came back without rows"
        if fresh.faults:
            raise EnvError(fresh.faults, batch, "it raised again in the reset after its restart; mend the env")
        _copy_rows(batch.obs, rows, fresh.obs)
        batch.elapsed_step[rows] = 0
        for name, column in fresh.info.items():
            batch.info[name][rows] = column


def _copy_rows(target: Any, rows: NDArray[np.intp], source: Any) -> None:
    """Writes the rows of a structured observation into these rows of another."""
    if isinstance(target, dict):
        for key, column in target.items():
            _copy_rows(column, rows, source[key])
    elif isinstance(target, tuple):
        for column, other in zip(target, source, strict=True):
            _copy_rows(column, rows, other)
    else:
        target[rows] = source
