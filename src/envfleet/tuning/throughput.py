"""RandomStepper: steps a pool with random actions that were sampled beforehand; measure() is its throughput."""

from __future__ import annotations

import time
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from envfleet.core.batch import Batch
from envfleet.core.pool import Pool

_NUM_ACTIONS = 1 << 16
_MIN_BATCHES, _MAX_BATCHES = 16, 1 << 14
_NUM_NESTED_ACTIONS = 1 << 11  # nested spaces are sampled row by row: thousands per second, not millions
_MIN_READ_INTERVAL_S = 1e-3


class RandomStepper:
    """Steps a pool with random actions that were sampled beforehand, so that sampling is not measured.

    A synchronous pool is stepped. An asynchronous pool always has all envs in flight, except those of the last batch.
    timeout_s: the time limit of one call, after which it raises RecvTimeout; None for no limit.
    """

    def __init__(self, pool: Pool, seed: int | None = None) -> None:
        self.pool = pool
        self.batch_size = pool.config.batch_size
        self.timeout_s: float | None = None
        self._actions = sample_batches(pool.spec.action_space, self.batch_size, seed)
        space_of_all = batch_space(pool.spec.action_space, pool.num_envs)
        space_of_all.seed(seed)
        self._first_actions = space_of_all.sample()
        self._next = 0

    @property
    def batches_per_round(self) -> int:
        """How many batches have as many rows as there are envs."""
        return -(-self.pool.num_envs // self.batch_size)

    def start(self) -> None:
        """Reset all envs, dropping what is in flight."""
        self.pool.reset(timeout=self.timeout_s)
        if self.pool.config.is_async:
            self.pool.send(self._first_actions)

    def step(self) -> Batch:
        """Return the next batch. If the pool is asynchronous, its envs are already stepping again."""
        self._next = (self._next + 1) % len(self._actions)
        actions = self._actions[self._next]
        if not self.pool.config.is_async:
            return self.pool.step(actions, None, self.timeout_s)
        batch = self.pool.recv(self.timeout_s)
        self.pool.send(actions, batch.env_id)
        return batch


def sample_batches(space: gymnasium.Space[Any], num_rows: int, seed: int | None) -> list[Any]:
    """Sample batches of that many actions."""
    # With few batches, used in a cycle, the episodes of a small pool would repeat.
    if isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        num_batches = min(max(_MIN_BATCHES, _NUM_ACTIONS // num_rows), _MAX_BATCHES)
        space_of_all = batch_space(space, num_batches * num_rows)
        space_of_all.seed(seed)
        return list(np.asarray(space_of_all.sample()).reshape(num_batches, num_rows, *(space.shape or ())))
    batched = batch_space(space, num_rows)
    batched.seed(seed)
    return [batched.sample() for _ in range(max(_MIN_BATCHES, _NUM_NESTED_ACTIONS // num_rows))]


class Stepper(Protocol):
    """What measure() steps: a pool, or another library's vector env."""

    @property
    def batch_size(self) -> int:
        """Rows per step."""

    @property
    def batches_per_round(self) -> int:
        """How many batches have as many rows as there are envs."""

    def start(self) -> None:
        """Reset all envs."""

    def step(self) -> object:
        """Step one batch."""


def measure(stepper: Stepper, seconds: float) -> float:
    """Return the steps per second over at least this time, after a reset and one step of all envs as a warm-up.

    If the warm-up itself takes the time, it is what is measured.
    """
    stepper.start()
    started = time.perf_counter()
    for _ in range(stepper.batches_per_round):
        stepper.step()
    warm_up_s = time.perf_counter() - started
    if warm_up_s >= seconds:
        return stepper.batches_per_round * stepper.batch_size / warm_up_s
    num_batches, batches_per_read = 0, 1
    started = last_read = time.perf_counter()
    while last_read - started < seconds:
        for _ in range(batches_per_read):
            stepper.step()
        num_batches += batches_per_read
        now = time.perf_counter()
        if now - last_read < _MIN_READ_INTERVAL_S:
            # Reading the clock after every batch would be a part of the time of a pool with one env.
            batches_per_read *= 2
        last_read = now
    return num_batches * stepper.batch_size / (last_read - started)
