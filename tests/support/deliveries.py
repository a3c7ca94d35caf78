"""What each env of a pool delivered last, which the row of an env that fails and is restarted repeats.

For envs with the space of HalfwayEnv (python_probes.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from envfleet import Batch, Pool
from envfleet.core.infos import restarted_rows

Row = dict[str, np.ndarray]


def rows_of(obs: dict[str, np.ndarray], num_rows: int) -> list[Row]:
    """Copies of an observation's rows."""
    return [{key: column[row].copy() for key, column in obs.items()} for row in range(num_rows)]


def assert_same_row(own: Row, other: Row) -> None:
    assert {key: value.tolist() for key, value in own.items()} == {key: value.tolist() for key, value in other.items()}


class Deliveries:
    """Checks the rows of restarted envs. Writes over all rows afterwards, as a caller may with its own arrays."""

    def __init__(self, num_envs: int) -> None:
        self.last: list[Row] = [{"first": np.zeros(3), "second": np.zeros(2)}] * num_envs
        self.seen: list[tuple[int, Row, Row | None]] = []
        self.num_restarts = 0

    def check(self, batch: Batch) -> None:
        failed = restarted_rows(batch.info)
        rows = rows_of(batch.obs, len(batch))
        finals = rows if batch.final is None else rows_of(batch.final.obs, len(batch))
        for row, env_id in enumerate(batch.env_id.tolist()):
            if failed is not None and failed[row]:
                self.num_restarts += 1
                assert_same_row(finals[row], self.last[env_id])
                ends = batch.terminated[row], batch.truncated[row]
                assert (batch.reward[row], *ends) == (0, False, True)
            if failed is None or not failed[row] or batch.final is not None:
                self.last[env_id] = rows[row]
            self.seen.append((env_id, rows[row], finals[row] if batch.truncated[row] else None))
        for column in batch.obs.values():
            column[...] = -1

    def record(self, env_ids: Any, batch: Batch) -> None:
        """The rows of a reset: those of restarted envs are first rows too."""
        for env_id, row in zip(env_ids, rows_of(batch.obs, len(batch)), strict=True):
            self.last[env_id] = row


def run_with_faults(pool: Pool, mode: str, num_steps: int = 120) -> list[tuple[int, Row, Row | None]]:
    """Step all envs, or some of them, with random actions; return what they delivered, in order."""
    rng = np.random.default_rng(0)
    num_envs = pool.num_envs
    deliveries = Deliveries(num_envs)
    deliveries.record(range(num_envs), pool.reset(seed=3))
    for step in range(num_steps):
        ids = np.arange(num_envs, dtype=np.int32) if step % 3 else rng.permutation(num_envs)[:3].astype(np.int32)
        actions = rng.choice(4, len(ids), p=[0.6, 0.15, 0.15, 0.1])
        batch = pool.step(actions) if step % 3 else pool.step(actions, ids)
        deliveries.check(batch)
        ended = batch.env_id[batch.terminated | batch.truncated]
        if mode == "disabled" and len(ended):
            deliveries.record(ended, pool.reset(ended))
    assert deliveries.num_restarts > num_steps // 6
    return deliveries.seen
