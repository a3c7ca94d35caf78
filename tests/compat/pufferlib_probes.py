"""Envs for the tests of envfleet.compat.pufferlib_vector. Workers import this module."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


def native_class(base: type[Any]) -> type[Any]:
    """A PufferEnv of three agents that reset by themselves, on PufferLib's base class or ours."""

    class Counters(base):
        def __init__(self, length: int = 4, buf: Any = None, seed: int = 0) -> None:
            self.single_observation_space = spaces.Box(-1e6, 1e6, (2,), np.float32)
            self.single_action_space = spaces.MultiDiscrete([3, 2])
            self.num_agents = 3
            super().__init__(buf)
            self.length, self.built_with = length, seed
            self.counts = np.zeros(3)

        def reset(self, seed: int | None = None) -> Any:
            self.start = self.built_with if seed is None else seed
            self.counts[:] = np.arange(3)
            self._show()
            self.rewards[:], self.terminals[:], self.truncations[:] = 0, False, False
            return self.observations, []

        def step(self, actions: Any) -> Any:
            self.counts += 1
            self.rewards[:] = np.asarray(actions)[:, 0] + 10 * np.asarray(actions)[:, 1]
            self.terminals[:] = self.counts >= self.length
            self.counts[self.terminals] = 0
            self._show()
            infos = [{"ended": int(self.terminals.sum())}] if self.terminals.any() else []
            return self.observations, self.rewards, self.terminals, self.truncations, infos

        def _show(self) -> None:
            self.observations[:, 0] = self.counts
            self.observations[:, 1] = self.start

        def close(self) -> None:
            pass

    return Counters


class Nested(gymnasium.Env[Any, Any]):
    """Structured observations and actions, ends of both kinds, infos."""

    observation_space = spaces.Dict(
        {
            "place": spaces.Box(-1, 1, (3,), np.float32),
            "parts": spaces.Tuple((spaces.Discrete(5), spaces.MultiDiscrete([2, 3]))),
            "flag": spaces.Box(0, 255, (1,), np.uint8),
        }
    )
    action_space = spaces.Dict({"turn": spaces.Discrete(3), "walk": spaces.Discrete(2)})

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        reward = action["turn"] + 10 * action["walk"]
        terminated, truncated = bool(self.np_random.random() < 0.15), self.count >= 8
        info = {"count": self.count} if terminated or truncated else {}
        return self._obs(), reward, terminated, truncated, info

    def _obs(self) -> Any:
        draw = self.np_random
        return {
            "place": draw.uniform(-1, 1, 3).astype(np.float32),
            "parts": (int(draw.integers(5)), draw.integers(0, 2, 2)),
            "flag": np.array([self.count], dtype=np.uint8),
        }


class Walkers:
    """A ParallelEnv without a base class: agents leave one after another."""

    metadata = {"name": "walkers"}  # noqa: RUF012 (PettingZoo's)
    render_mode = None
    possible_agents = ["a", "b", "c"]  # noqa: RUF012 (PettingZoo's)

    def __init__(self) -> None:
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-10, 10, (2,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(4)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.agents, self.count = list(self.possible_agents), 0
        return self._all(), {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        assert set(actions) == set(self.agents)
        self.count += 1
        here = list(self.agents)
        gone = {agent: self.count >= 2 * (place + 1) for place, agent in enumerate(self.possible_agents)}
        result = (
            self._all(),
            {agent: float(actions[agent]) for agent in here},
            {agent: gone[agent] for agent in here},
            dict.fromkeys(here, False),
            {agent: {"count": self.count} for agent in here},
        )
        self.agents = [agent for agent in here if not gone[agent]]
        return result

    def _all(self) -> Any:
        return {agent: self.random.uniform(-1, 1, 2).astype(np.float32) for agent in self.agents}

    def close(self) -> None:
        pass


class Broken(Nested):
    """Raises on its third step."""

    def step(self, action: Any) -> Any:
        if self.count == 2:
            raise ValueError("the env broke")
        return super().step(action)
