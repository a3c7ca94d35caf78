"""Who applies max_episode_steps: the pool, or a TimeLimit inside the wrappers, which must see the end of an episode."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import envfleet


class Endless(gymnasium.Env[np.float32, np.int64]):
    """An env that never ends by itself."""

    observation_space = spaces.Box(-1, 1, (), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return np.float32(0), {}

    def step(self, action: Any) -> Any:
        return np.float32(0), 1.0, False, False, {}


class OldEndless:
    """The same with the API of gym before 0.26."""

    observation_space, action_space = Endless.observation_space, Endless.action_space

    def reset(self) -> Any:
        return np.float32(0)

    def step(self, action: Any) -> Any:
        return np.float32(0), 1.0, False, {}


@pytest.mark.parametrize("backend", ["serial", "processes"])
@pytest.mark.parametrize("env", [Endless, lambda: Endless(), [Endless, Endless], OldEndless, "CartPole-v1"])
def test_wrappers_see_the_time_limit(env: Any, backend: str) -> None:
    wrappers = [gymnasium.wrappers.RecordEpisodeStatistics]
    with envfleet.make(env, num_envs=2, backend=backend, max_episode_steps=3, wrappers=wrappers) as envs:
        assert envs.spec is not None
        assert envs.spec.max_episode_steps == 3
        envs.reset(seed=0)
        for _ in range(2):
            assert not envs.step(np.zeros(2, np.int64))[3].any()
        _, _, _, truncated, info = envs.step(np.zeros(2, np.int64))
        assert truncated.all()
        assert info["episode"]["l"].tolist() == [3, 3]
