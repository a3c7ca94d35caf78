"""Python envs with known step times, for the suites of python_suites.py."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

IMAGE_WORK_S = 200e-6
SLEEP_AT_MOST_S = 2e-3
Step = tuple[NDArray[Any], float, bool, bool, dict[str, Any]]


class ImageEnv(gymnasium.Env[NDArray[np.uint8], np.int64]):
    """Four stacked 84x84 frames and 200 us of work per step.

    The work spins on the thread's CPU clock, so it takes 200 us on any machine. The wall clock would also advance
    while other processes have the core: with 64 processes on two cores, many would finish without working.
    """

    observation_space = spaces.Box(0, 255, (84, 84, 4), np.uint8)
    action_space = spaces.Discrete(2)
    _episode_steps = 1000

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        super().reset(seed=seed)
        self._num_steps = 0
        return self._frame(), {}

    def step(self, action: np.int64) -> Step:
        until_s = time.thread_time() + IMAGE_WORK_S
        self._num_steps += 1
        frame = self._frame()
        while time.thread_time() < until_s:
            pass
        return frame, float(action), False, self._num_steps >= self._episode_steps, {}

    def _frame(self) -> NDArray[np.uint8]:
        # A new array each time, as in an env that stacks frames.
        return np.full(self.observation_space.shape, self._num_steps % 256, np.uint8)


class SleepyEnv(gymnasium.Env[NDArray[np.float32], np.int64]):
    """Sleeps for 0 to 2 ms per step, like an env that waits for a remote simulator; its episode never ends."""

    observation_space = spaces.Box(-1, 1, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: np.int64) -> Step:
        time.sleep(self.np_random.uniform(0, SLEEP_AT_MOST_S))
        return np.zeros(4, np.float32), 0.0, False, False, {}


_CLASSES: dict[str, type[gymnasium.Env[Any, Any]]] = {"image": ImageEnv, "sleepy": SleepyEnv}


def env_of(name: str) -> str | type[gymnasium.Env[Any, Any]]:
    """Return the argument for envfleet.make(): one of the classes above, or a Gymnasium id."""
    return _CLASSES.get(name, name)


def factory_of(name: str) -> Callable[[], gymnasium.Env[Any, Any]]:
    """Return the factory for the peers. For an id, gymnasium.make adds all its wrappers."""
    return _CLASSES.get(name) or partial(gymnasium.make, name)
