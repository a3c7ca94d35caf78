"""Random actions for a pool, drawn before the clock starts, and the loop that sends them."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.vector.utils import batch_space

from envfleet.batch import Batch
from envfleet.pool import Pool

_NUM_DRAWN = 64
_MAX_DRAWN_ELEMENTS = 1 << 22  # keeps the drawn actions of huge pools to tens of megabytes


class Driver:
    """Steps a pool with random actions that were drawn beforehand, so that drawing is not measured.

    Synchronous pools are stepped; asynchronous ones always have all envs in flight or in hand.
    """

    def __init__(self, pool: Pool, seed: int | None = None) -> None:
        self.pool = pool
        self.batch_size = pool.config.batch_size
        self._for_all = draw_actions(pool.spec.action_space, pool.num_envs, seed)
        self._for_batch = [actions[: self.batch_size] for actions in self._for_all]
        self._turn = 0

    def start(self) -> None:
        """Resets all envs; what an earlier start() left in flight is dropped."""
        self.pool.reset()
        if self.pool.config.is_async:
            self.pool.send(self._for_all[0])

    def advance(self) -> Batch:
        """The next batch. Its envs are under way again when the pool is asynchronous."""
        self._turn = (self._turn + 1) % len(self._for_batch)
        actions = self._for_batch[self._turn]
        if not self.pool.config.is_async:
            return self.pool.step(actions)
        batch = self.pool.recv()
        self.pool.send(actions, batch.env_id)
        return batch


def draw_actions(space: gymnasium.Space[Any], num_envs: int, seed: int | None) -> list[Any]:
    """Batches of one action for each env."""
    batched = batch_space(space, num_envs)
    batched.seed(seed)
    size = 1
    for length in batched.shape or ():
        size *= length
    return [batched.sample() for _ in range(max(1, min(_NUM_DRAWN, _MAX_DRAWN_ELEMENTS // size)))]
