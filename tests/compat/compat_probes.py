"""Envs for the tests of envfleet.compat. Workers import this module, so it depends on nothing of the tests."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class LivesEnv(gymnasium.Env[Any, Any]):
    """A game with lives that says in its infos what EnvPool's Atari games say."""

    observation_space = spaces.Box(0, 255, (4, 8, 8), np.uint8)
    action_space = spaces.Discrete(4)

    def __init__(self, episodic_life: bool = False, reward_clip: bool = False) -> None:
        self.episodic_life, self.reward_clip = episodic_life, reward_clip
        self.lives = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if self.lives == 0:
            self.lives = 3
        return self._obs(), self._info(0.0, False)

    def step(self, action: Any) -> Any:
        raw = float(self.np_random.integers(0, 5))
        lost = self.np_random.random() < 0.2
        self.lives -= int(lost)
        over = self.lives == 0
        reward = float(np.sign(raw)) if self.reward_clip else raw
        return self._obs(), reward, bool(over or (lost and self.episodic_life)), False, self._info(raw, over)

    def _obs(self) -> np.ndarray:
        return self.np_random.integers(0, 256, (4, 8, 8)).astype(np.uint8)

    def _info(self, reward: float, over: bool) -> dict[str, Any]:
        return {"lives": self.lives, "reward": np.float32(reward), "terminated": int(over)}


class PictureBook:
    """An old env without any base class: 4-tuples, seed(), pictures in the size that is asked for."""

    metadata = {"render.modes": ["rgb_array"]}  # noqa: RUF012 (an env of those days)
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, length: int = 3) -> None:
        self.length, self.count, self.random = length, 0, np.random.RandomState(0)

    def seed(self, seed: int | None = None) -> list[Any]:
        self.random = np.random.RandomState(seed)
        return [seed]

    def reset(self) -> np.ndarray:
        self.count = 0
        return self.random.uniform(size=2)

    def step(self, action: Any) -> Any:
        self.count += 1
        info = {"count": self.count}
        return np.array([self.count, action], dtype=np.float64), 0.5, self.count >= self.length, info

    def render(self, mode: str = "human", width: int = 32, height: int = 16) -> np.ndarray:
        return np.full((height, width, 3), self.count, dtype=np.uint8)
