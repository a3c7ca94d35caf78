"""CountingEnv: counts its steps, raises when told to, and has an info with a name that pools use too."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

# An action that raises.
RAISE = 2


class CountingEnv(gymnasium.Env[Any, Any]):
    """The observation is the number of steps. The info "error" is the env's own, "score" is there at the end only."""

    observation_space = spaces.Box(0, 100, (1,), np.float64)
    action_space = spaces.Discrete(3)

    def __init__(self, length: int = 3, *, terminates: bool = False) -> None:
        self._length, self._terminates = length, terminates
        self._count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._count = 0
        return np.zeros(1), {"error": 0.0, "is_first": True}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action == RAISE:
            raise RuntimeError("told to raise")
        self._count += 1
        has_ended = self._count == self._length
        info: dict[str, Any] = {"error": 0.5}
        if has_ended:
            info["score"] = 10.0 * self._count
        ended = (has_ended, False) if self._terminates else (False, has_ended)
        return np.full(1, float(self._count)), 1.0, *ended, info
