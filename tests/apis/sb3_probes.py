"""Envs for the tests of the sb3 api; apart from them, so that worker processes need not import torch."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces

N = 3


class Probe(gymnasium.Env):
    """Tells what was asked of it. Ends after `length` steps, by itself where `ends` says so."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 7}  # noqa: RUF012 (Gymnasium's attribute)
    action_space = spaces.Discrete(5)

    def __init__(self, length=4, ends=False, is_dict=False, raises=True, render_mode="rgb_array"):
        box = spaces.Box(-1, 100, (2,), np.float32)
        self.observation_space = spaces.Dict({"time": box, "last": spaces.Discrete(6)}) if is_dict else box
        self.length, self.ends, self.is_dict, self.render_mode = length, ends, is_dict, render_mode
        self.time = self.last = 0
        self.history: list[object] = []
        self.raises = raises

    def _obs(self):
        time = np.array([self.time, self.np_random.random()], np.float32)
        return {"time": time, "last": self.last} if self.is_dict else time

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = self.last = 0
        return self._obs(), {"seed": -1 if seed is None else seed, "options": options}

    def step(self, action):
        if action == 4 and self.raises:
            raise ZeroDivisionError("asked for")
        self.time += 1
        self.last = int(action)
        self.history.append(self.time)
        over = self.time >= self.length
        info = {"time": self.time, "is_late": self.time > 2, "history": self.history, "nested": {"x": float(action)}}
        if self.time == 1:
            info["first"] = "yes"
        return self._obs(), float(action), over and self.ends, over, info

    def render(self):
        return np.full((4, 4, 3), self.time, np.uint8)

    def add(self, a, b=0, name=0):
        return a + b + name


class Plus(gymnasium.Wrapper):
    """A wrapper of nothing."""


def factories(**kwargs):
    return [lambda own=i: Plus(Probe(length=3 + own, ends=own == 1, **kwargs)) for i in range(N)]
