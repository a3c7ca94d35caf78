"""Python envs whose steps take a known time: what the suites of python_suites.py step besides Gymnasium's."""

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
    """Four stacked 84x84 frames and 200 us of work a step.

    The work is a spin on the thread's own CPU clock, so it is 200 us on any machine. The clock on the
    wall would also run while the scheduler lets others have the core: of 64 processes on two cores many
    would get their work done without doing it.
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
        # A new array each time, as an env that stacks frames makes it.
        return np.full(self.observation_space.shape, self._num_steps % 256, np.uint8)


class SleepyEnv(gymnasium.Env[NDArray[np.float32], np.int64]):
    """Sleeps 0 to 2 ms a step, as one that waits for a simulator elsewhere; its episode never ends."""

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


_OWN: dict[str, type[gymnasium.Env[Any, Any]]] = {"image": ImageEnv, "sleepy": SleepyEnv}


def env_of(name: str) -> str | type[gymnasium.Env[Any, Any]]:
    """What envfleet.make() takes: one of the classes above, or a Gymnasium id."""
    return _OWN.get(name, name)


def factory_of(name: str) -> Callable[[], gymnasium.Env[Any, Any]]:
    """What the peers take. An id is made by gymnasium.make, with all its wrappers."""
    return _OWN.get(name) or partial(gymnasium.make, name)
