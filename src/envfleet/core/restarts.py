"""Restarts: what happens to envs that raise, and the seed of an env that is built again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet.core.autoreset import Phase
from envfleet.core.batch import Batch, Fault
from envfleet.core.errors import EnvError
from envfleet.core.executor import NO_TIMEOUT, Executor
from envfleet.core.infos import RestartMessage, merge, row_as_given
from envfleet.core.options import PoolConfig
from envfleet.core.seeding import restart_seed, to_words
from envfleet.core.spaces import join, split


class Restarts:
    """The seeds of a pool's envs, and how often each env was rebuilt.

    counts: rebuilds since the env was last seeded. Seed and count determine the random stream of a rebuilt env, so
    that a rollout with faults depends on the seed alone, too.
    """

    def __init__(self, executor: Executor, config: PoolConfig, seeds: list[int]) -> None:
        self.seeds = seeds
        self.counts = [0] * len(seeds)
        self._totals = [0] * len(seeds)  # limited by max_restarts
        self._executor = executor
        self._config = config

    def set_seed(self, env_id: int, seed: int) -> None:
        """Record the seed that an env was given."""
        self.seeds[env_id] = seed
        self.counts[env_id] = 0

    def load(self, seeds: Sequence[int], counts: Sequence[int]) -> None:
        """Restore the seeds and counts of a saved state."""
        self.seeds, self.counts = list(seeds), list(counts)

    def rebuild_broken(self, chosen: NDArray[np.int32]) -> None:
        """Rebuild those of these envs that raised, before they are reset."""
        for env_id in chosen[self._executor.broken()[chosen]]:
            self.rebuild(int(env_id), Phase.UNSTARTED)

    def rebuild(self, env_id: int, phase: Phase) -> None:
        """Build one env again and leave it in this phase."""
        self.counts[env_id] += 1
        words = None
        if self._config.seed_envs:
            words = to_words([restart_seed(self.seeds[env_id], self.counts[env_id])])
        while True:
            self._totals[env_id] += 1
            try:
                self._executor.rebuild(env_id, int(phase), words)
                break
            except EnvError:
                # Its worker was killed, or its constructor raised and may succeed the next time.
                if self._config.on_error == "raise" or self._totals[env_id] >= self._config.max_restarts:
                    self.counts[env_id] -= 1
                    raise

    def handle_faults(self, batch: Batch, was_reset: bool = False) -> Batch:
        """Raise for envs that raised, or rebuild them and mark their rows as truncated, as on_error says."""
        if not batch.faults:
            return batch
        self._raise_if_final(batch.faults, batch, "the other rows are in .batch, and its next reset rebuilds it")
        self._executor.call_guard.begin_parts()
        # A reset returns first rows, and so does the end of an episode in same_step mode.
        has_first_rows = was_reset or batch.final is not None
        phase = Phase.UNSTARTED if has_first_rows else Phase.ENDED
        errors = np.full(len(batch), None, dtype=object)
        has_error = np.zeros(len(batch), dtype=np.bool_)
        for fault in batch.faults:
            self._rebuild_in(batch, fault.env_id, phase)
            row = int(np.flatnonzero(batch.env_id == fault.env_id)[0])
            errors[row], has_error[row] = RestartMessage(f"{fault.method}(): {fault.message}"), True
        rows = np.flatnonzero(has_error)
        if not was_reset and batch.final is not None:
            # The executor has completed the row with the env's last observation, which is the final one.
            batch.final.obs = self._with_rows(batch.final.obs, rows, self._rows_of(batch.obs, rows))
            batch.final.elapsed_step[rows] = batch.elapsed_step[rows]
        if has_first_rows:
            self._fill_first_rows(batch, rows)
        if not was_reset:
            batch.reward[rows] = 0
            batch.terminated[rows] = False
            batch.truncated[rows] = True
        merge([{"error": text} if text is not None else None for text in errors], batch.info)
        self._end_handling()
        return batch

    def handle_lost(self, faults: tuple[Fault, ...]) -> None:
        """Raise for envs that raised in a batch that an interruption has lost, or restart them, as on_error says."""
        self._raise_if_final(faults, None, "its batch was lost when a call was interrupted; its next reset rebuilds it")
        self._executor.call_guard.begin_parts()
        # In next_step mode the next step resets them. The other modes have no step that would.
        is_next_step = self._config.autoreset_mode is AutoresetMode.NEXT_STEP
        while faults:
            for fault in faults:
                self.rebuild(fault.env_id, Phase.ENDED if is_next_step else Phase.UNSTARTED)
            if is_next_step:
                break
            fresh = self._executor.reset(np.array([fault.env_id for fault in faults], np.int32), {}, NO_TIMEOUT)
            assert fresh is not None, "a reset without a time limit returned no rows"
            faults = fresh.faults
            self._raise_if_final(faults, None, "it raised again in the reset after its restart; fix the env")
        self._end_handling()

    def _raise_if_final(self, faults: tuple[Fault, ...], batch: Batch | None, remedy: str) -> None:
        """Raise for these faults if on_error says so, or if an env of them has used up its restarts."""
        if not faults:
            return
        exhausted = self._exhausted(faults)
        if self._config.on_error == "raise":
            first = faults
        elif exhausted:
            first = (*exhausted, *(fault for fault in faults if fault not in exhausted))
            limit = self._config.max_restarts
            remedy = f"it was already restarted max_restarts={limit} times; fix the env or raise the limit"
        else:
            return
        error = EnvError.of(first, batch, remedy)
        self._end_handling()
        raise error from first[0].cause

    def _end_handling(self) -> None:
        self._executor.clear_faults()
        self._executor.call_guard.end_parts()

    def _rebuild_in(self, batch: Batch, env_id: int, phase: Phase) -> None:
        """Build one env of a batch again; the error, if that fails, has the rows of the others."""
        try:
            self.rebuild(env_id, phase)
        except EnvError as error:
            error.batch = batch
            self._end_handling()
            raise

    def _fill_first_rows(self, batch: Batch, rows: NDArray[np.intp]) -> None:
        """Replace the rows of restarted envs with the first rows of their next episodes."""
        infos: list[dict[str, Any] | None] = [None] * len(batch)
        while rows.size:
            fresh = self._executor.reset(np.ascontiguousarray(batch.env_id[rows]), {}, NO_TIMEOUT)
            assert fresh is not None, "a reset without a time limit returned no rows"
            exhausted = self._exhausted(fresh.faults)
            if exhausted:
                self._end_handling()
                raise EnvError.of(
                    exhausted, batch, "it raised again in the reset after its restart; fix the env"
                ) from exhausted[0].cause
            failed = np.isin(fresh.env_id, [fault.env_id for fault in fresh.faults])
            for fault in fresh.faults:
                self._rebuild_in(batch, fault.env_id, Phase.UNSTARTED)
            batch.obs = self._with_rows(batch.obs, rows, fresh.obs)
            for position in np.flatnonzero(~failed):
                infos[rows[position]] = row_as_given(fresh.info, int(position))
            batch.elapsed_step[rows] = 0
            rows = rows[failed]
        merge(infos, batch.info)

    def _exhausted(self, faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
        """Return the faults of envs that have reached max_restarts."""
        return tuple(fault for fault in faults if self._totals[fault.env_id] >= self._config.max_restarts)

    def _rows_of(self, obs: Any, rows: NDArray[np.intp]) -> Any:
        """Return these rows of an observation."""
        space = self._executor.spec.observation_space
        columns = [
            tuple(column[row] for row in rows) if isinstance(column, tuple) else column[rows]
            for column in split(space)(obs)
        ]
        return join(space)(columns)

    def _with_rows(self, obs: Any, rows: NDArray[np.intp], fresh: Any) -> Any:
        """Return an observation with these rows replaced."""
        space = self._executor.spec.observation_space
        columns = split(space)(obs)
        for position, other in enumerate(split(space)(fresh)):
            if isinstance(other, tuple):  # Python objects
                own = list(columns[position])
                for row, value in zip(rows, other, strict=True):
                    own[row] = value
                columns[position] = tuple(own)
            else:
                columns[position][rows] = other
        return join(space)(columns)
