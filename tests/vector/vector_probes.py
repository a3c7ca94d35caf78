"""Envs for the tests of envfleet.vector: every kind of info, reset and action shows in what they return."""

from __future__ import annotations

import os
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from support.python_probes import MAX_GATE, wait_at_gate


class TellingEnv(gymnasium.Env[Any, Any]):
    """Ends after `length` steps; its infos say how it was called, in every form that infos have."""

    def __init__(self, length: int = 3, observation_space: Any = None, action_space: Any = None) -> None:
        # Copies: envs that share a space share its generator.
        self.observation_space = deepcopy(observation_space or spaces.Box(-1, 1, (2,), np.float64))
        self.action_space = deepcopy(action_space or spaces.Discrete(5))
        self.length = length
        self.count = 0

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=given.get("seed"))
        if given.get("seed") is not None:
            self.observation_space.seed(given["seed"])
        self.count = 0
        options = given.get("options")
        return self.observation_space.sample(), {
            "given": sorted(given),
            "seeded": given.get("seed") is not None,
            "options": options,
            "nested": {"pid": 1, "deep": {"text": "reset"}},
        }

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        info: dict[str, Any] = {"count": self.count, "half": self.count / 2, "action": repr(action)}
        if self.count % 2:
            info.update(odd=True, array=np.full(3, self.count, np.float32), nested={"odd": self.count, "name": "x"})
        terminated = self.count >= self.length
        if terminated:
            info.update(last="yes", score=1.5 * self.count, only_at_end={"steps": self.count})
        return self.observation_space.sample(), float(self.count), terminated, False, info

    def square(self, number: float, plus: float = 0) -> float:
        return number**2 + plus

    def process(self) -> int:
        return os.getpid()

    def wait(self, gate: int) -> str:
        wait_at_gate(gate)
        return "waited"

    def raise_up(self) -> None:
        raise KeyError("raised on request")


class WaitingEnv(TellingEnv):
    """Waits at the gate that its action names; 0 for none."""

    def __init__(self) -> None:
        super().__init__(length=100, action_space=spaces.Box(0, MAX_GATE, (), np.float64))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action:
            wait_at_gate(int(action))
        return super().step(action)


class RaisingEnv(TellingEnv):
    """Raises at action 4, leaves its process at action 3."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action == 4:
            raise LookupError("action 4")
        if action == 3:
            os._exit(7)
        return super().step(action)
