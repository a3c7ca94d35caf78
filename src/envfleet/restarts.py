"""Restarts: what becomes of envs that raise, and with which seed one is built anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.autoreset import Phase
from envfleet.batch import Batch, Fault
from envfleet.errors import EnvError
from envfleet.executors.base import Executor
from envfleet.infos import merge, split_rows
from envfleet.seeding import restart_seed, to_words
from envfleet.spaces import join, split
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

    def load(self, seeds: Sequence[int], counts: Sequence[int]) -> None:
        """Takes over what another pool, or this one at another time, has noted."""
        self.seeds, self.counts = list(seeds), list(counts)

    def rebuild_broken(self, chosen: NDArray[np.int32]) -> None:
        """Builds anew, for their reset, those of these envs that raised."""
        for env_id in chosen[self._executor.broken()[chosen]]:
            self.rebuild(int(env_id), Phase.UNSTARTED)

    def rebuild(self, env_id: int, phase: Phase) -> None:
        """Builds one env anew and leaves it in this phase."""
        while True:
            self._totals[env_id] += 1
            try:
                self._executor.rebuild(env_id, int(phase))
                break
            except EnvError:
                # Killed before it was done, or a constructor that may do better the next time.
                if self._config.on_error == "raise" or self._totals[env_id] >= self._config.max_restarts:
                    raise
        self.counts[env_id] += 1
        fresh = restart_seed(self.seeds[env_id], self.counts[env_id])
        self._executor.seed(np.array([env_id], dtype=np.int32), to_words([fresh]))

    def settle(self, batch: Batch, was_reset: bool = False) -> Batch:
        """What becomes of envs that raised: an exception, or a truncated row and a rebuilt env."""
        if not batch.faults:
            return batch
        if self._config.on_error == "raise":
            raise EnvError.of(
                batch.faults, batch, "the other rows are in .batch, and its next reset rebuilds it"
            ) from batch.faults[0].cause
        spent = self._spent(batch.faults)
        if spent:
            raise EnvError.of(
                (*spent, *(fault for fault in batch.faults if fault not in spent)),
                batch,
                f"it was restarted max_restarts={self._config.max_restarts} times already; mend the env or allow more",
            ) from spent[0].cause
        errors = np.full(len(batch), None, dtype=object)
        has_error = np.zeros(len(batch), dtype=np.bool_)
        for fault in batch.faults:
            try:
                self.rebuild(fault.env_id, Phase.ENDED)
            except EnvError as error:
                error.batch = batch
                raise
            row = int(np.flatnonzero(batch.env_id == fault.env_id)[0])
            errors[row], has_error[row] = f"{fault.method}(): {fault.message}", True
        # A reset gives first rows, and in same_step mode an end is followed by one in the same row.
        if was_reset or batch.final is not None:
            self._show_next_episodes(batch, np.flatnonzero(has_error))
        if not was_reset:
            batch.truncated[has_error] = True
        merge([{"error": text} if text is not None else None for text in errors], batch.info)
        return batch

    def _show_next_episodes(self, batch: Batch, rows: NDArray[np.intp]) -> None:
        """Puts the first rows of restarted envs' next episodes in the place of those that failed."""
        infos: list[dict[str, Any] | None] = [None] * len(batch)
        while rows.size:
            fresh = self._executor.reset(np.ascontiguousarray(batch.env_id[rows]), {}, _NO_TIMEOUT)
            assert fresh is not None, "a reset without a time limit came back without rows"
            spent = self._spent(fresh.faults)
            if spent:
                raise EnvError.of(
                    spent, batch, "it raised again in the reset after its restart; mend the env"
                ) from spent[0].cause
            failed = np.isin(fresh.env_id, [fault.env_id for fault in fresh.faults])
            for fault in fresh.faults:
                self.rebuild(fault.env_id, Phase.ENDED)
            batch.obs = self._with_rows(batch.obs, rows, fresh.obs)
            for position in np.flatnonzero(~failed):
                infos[rows[position]] = split_rows(fresh.info, int(position))
            batch.elapsed_step[rows] = 0
            rows = rows[failed]
        merge(infos, batch.info)

    def _spent(self, faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
        """Those whose envs may not be rebuilt once more."""
        return tuple(fault for fault in faults if self._totals[fault.env_id] >= self._config.max_restarts)

    def _with_rows(self, obs: Any, rows: NDArray[np.intp], fresh: Any) -> Any:
        """An observation with these rows in the place of its own."""
        space = self._executor.spec.observation_space
        columns = split(space)(obs)
        for position, other in enumerate(split(space)(fresh)):
            if isinstance(other, tuple):  # of values that no array holds
                own = list(columns[position])
                for row, value in zip(rows, other, strict=True):
                    own[row] = value
                columns[position] = tuple(own)
            else:
                columns[position][rows] = other
        return join(space)(columns)
