"""Random actions for a pool, drawn before the clock starts, and the loop that sends them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from envfleet.batch import Batch
from envfleet.pool import Pool

_NUM_ACTIONS = 1 << 16
_MIN_BATCHES, _MAX_BATCHES = 16, 1 << 14


class Driver:
    """Steps a pool with random actions that were drawn beforehand, so that drawing is not measured.

    Synchronous pools are stepped; asynchronous ones always have all envs in flight or in hand.
    """

    def __init__(self, pool: Pool, seed: int | None = None) -> None:
        self.pool = pool
        self.batch_size = pool.config.batch_size
        drawn = draw_actions(pool.spec.action_space, pool.num_envs, seed)
        self._for_all = drawn[0]
        self._for_batch = [actions[: self.batch_size] for actions in drawn]
        self._turn = 0

    def start(self) -> None:
        """Resets all envs; what an earlier start() left in flight is dropped."""
        self.pool.reset()
        if self.pool.config.is_async:
            self.pool.send(self._for_all)

    def advance(self) -> Batch:
        """The next batch. Its envs are under way again when the pool is asynchronous."""
        self._turn = (self._turn + 1) % len(self._for_batch)
        actions = self._for_batch[self._turn]
        if not self.pool.config.is_async:
            return self.pool.step(actions)
        batch = self.pool.recv()
        self.pool.send(actions, batch.env_id)
        return batch


def draw_actions(space: gymnasium.Space[Any], num_envs: int, seed: int | None) -> NDArray[Any]:
    """Batches of one action for each env, stacked."""
    # Few batches, used in turn, would make a small pool repeat itself: its episodes would be no random ones.
    num_batches = min(max(_MIN_BATCHES, _NUM_ACTIONS // num_envs), _MAX_BATCHES)
    drawn = batch_space(space, num_batches * num_envs)
    drawn.seed(seed)
    return np.asarray(drawn.sample()).reshape(num_batches, num_envs, *(space.shape or ()))
