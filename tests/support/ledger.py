"""Ledger: holds every row of a pool of FaultyEnv against the one before it."""

from __future__ import annotations

import numpy as np

from envfleet import Batch


class Ledger:
    """Counts rows, and checks each env's steps: +1 within an episode, 0 after its end, nothing lost, nothing twice.

    length: of the episodes, which end by themselves.
    """

    def __init__(self, num_envs: int, length: int) -> None:
        self.num_rows = np.zeros(num_envs, dtype=np.int64)
        self.num_errors = 0
        self._length = length
        self._elapsed = np.zeros(num_envs, dtype=np.int64)
        self._ended = np.zeros(num_envs, dtype=bool)

    def enter(self, batch: Batch) -> None:
        """Checks the rows of a batch and counts them."""
        has_error = batch.info.get("_error", np.zeros(len(batch), dtype=bool))
        assert len(set(batch.env_id.tolist())) == len(batch)
        for row, env_id in enumerate(batch.env_id.tolist()):
            self.num_rows[env_id] += 1
            ended = bool(batch.terminated[row] or batch.truncated[row])
            if has_error[row]:
                self.num_errors += 1
                assert batch.truncated[row]
            else:
                expected = 0 if self._ended[env_id] else self._elapsed[env_id] + 1
                assert batch.elapsed_step[row] == expected, f"env {env_id}, its row {self.num_rows[env_id]}"
                assert batch.obs[row, 1] == expected
                assert bool(batch.terminated[row]) == (expected == self._length)
            self._elapsed[env_id], self._ended[env_id] = batch.elapsed_step[row], ended
