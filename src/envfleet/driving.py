"""Random actions for a pool, drawn before the clock starts, the loop that sends them, and its speed."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from envfleet.batch import Batch
from envfleet.pool import Pool

_NUM_ACTIONS = 1 << 16
_MIN_BATCHES, _MAX_BATCHES = 16, 1 << 14
_NUM_NESTED_ACTIONS = 1 << 11  # spaces of parts are drawn row by row: thousands a second, not millions
_CLOCK_EVERY_S = 1e-3


class ActionDraws:
    """Random actions of one space, drawn once for each number of rows that is asked for."""

    def __init__(self, space: gymnasium.Space[Any], seed: int | None = None) -> None:
        self._space = space
        self._seed = seed
        self._drawn: dict[int, list[Any]] = {}

    def batches(self, num_rows: int) -> list[Any]:
        """Batches of that many actions, as step() and send() take them."""
        if num_rows not in self._drawn:
            self._drawn[num_rows] = draw_actions(self._space, num_rows, self._seed)
        return self._drawn[num_rows]


class Driver:
    """Steps a pool with random actions that were drawn beforehand, so that drawing is not measured.

    Synchronous pools are stepped; asynchronous ones always have all envs in flight or in hand.
    timeout_s: how long one call may take before it raises RecvTimeout; None for no limit.
    """

    def __init__(self, pool: Pool, seed: int | None = None, draws: ActionDraws | None = None) -> None:
        self.pool = pool
        self.batch_size = pool.config.batch_size
        self.timeout_s: float | None = None
        draws = draws or ActionDraws(pool.spec.action_space, seed)
        self._for_all = draws.batches(pool.num_envs)[0]
        self._for_batch = draws.batches(self.batch_size)
        self._turn = 0

    @property
    def batches_a_turn(self) -> int:
        """How many batches it takes until every env had its turn."""
        return -(-self.pool.num_envs // self.batch_size)

    def start(self) -> None:
        """Resets all envs; what an earlier start() left in flight is dropped."""
        self.pool.reset(timeout=self.timeout_s)
        if self.pool.config.is_async:
            self.pool.send(self._for_all)

    def advance(self) -> Batch:
        """The next batch. Its envs are under way again when the pool is asynchronous."""
        self._turn = (self._turn + 1) % len(self._for_batch)
        actions = self._for_batch[self._turn]
        if not self.pool.config.is_async:
            return self.pool.step(actions, None, self.timeout_s)
        batch = self.pool.recv(self.timeout_s)
        self.pool.send(actions, batch.env_id)
        return batch


def draw_actions(space: gymnasium.Space[Any], num_rows: int, seed: int | None) -> list[Any]:
    """Batches of that many actions."""
    # Few batches, used in turn, would make a small pool repeat itself: its episodes would be no random ones.
    if isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        num_batches = min(max(_MIN_BATCHES, _NUM_ACTIONS // num_rows), _MAX_BATCHES)
        drawn = batch_space(space, num_batches * num_rows)
        drawn.seed(seed)
        return list(np.asarray(drawn.sample()).reshape(num_batches, num_rows, *(space.shape or ())))
    batched = batch_space(space, num_rows)
    batched.seed(seed)
    return [batched.sample() for _ in range(max(_MIN_BATCHES, _NUM_NESTED_ACTIONS // num_rows))]


def measure(driver: Driver, seconds: float) -> float:
    """Steps a second over at least this time, from a fresh reset and after one turn of all envs.

    Of envs so slow that this turn takes the time, it is what is measured.
    """
    driver.start()
    started = time.perf_counter()
    for _ in range(driver.batches_a_turn):
        driver.advance()
    warm_s = time.perf_counter() - started
    if warm_s >= seconds:
        return driver.batches_a_turn * driver.batch_size / warm_s
    num_batches, between_looks = 0, 1
    started = looked = time.perf_counter()
    while looked - started < seconds:
        for _ in range(between_looks):
            driver.advance()
        num_batches += between_looks
        now = time.perf_counter()
        if now - looked < _CLOCK_EVERY_S:
            # Reading the clock after every batch would be a part of what a pool of one env takes.
            between_looks *= 2
        looked = now
    return num_batches * driver.batch_size / (looked - started)
