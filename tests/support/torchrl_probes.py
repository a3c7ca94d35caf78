"""For the tests of the torchrl api: an env of many spaces, fixed actions, and Gymnasium's envs one by one."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

MODES = ["same_step", "disabled"]
# torchrl.collectors warns of its own classes when it is imported.
collectors_warn = pytest.mark.filterwarnings("ignore:Creating .* which inherits from WeightUpdaterBase")


class Nested(gymnasium.Env):
    """Every kind of space that tensors hold; ends after three steps and tells its last action."""

    observation_space = spaces.Dict(
        {
            "inner": spaces.Dict({"pixels": spaces.Box(0, 255, (2, 2), np.uint8), "die": spaces.Discrete(6, start=1)}),
            "pair": spaces.Tuple((spaces.Box(-1, 1, (), np.float32), spaces.MultiDiscrete([2, 3]))),
            "bits": spaces.MultiBinary(3),
        }
    )
    action_space = spaces.Dict({"turn": spaces.Discrete(3, start=-1), "push": spaces.Box(-1, 1, (2,), np.float32)})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        self.turn = -1
        return self._obs(), {}

    def step(self, action):
        assert action in self.action_space
        self.count += 1
        self.turn = int(action["turn"])
        return self._obs(), float(action["push"][0]), self.count == 3, False, {}

    def _obs(self):
        return {
            "inner": {"pixels": np.full((2, 2), self.count, np.uint8), "die": np.int64(self.turn + 2)},
            "pair": (np.array(self.count / 4, np.float32), np.array([1, 2])),
            "bits": np.array([1, 0, 1], np.int8),
        }


def fixed_actions(num_steps, num_envs, count):
    return torch.from_numpy(np.random.default_rng(0).integers(count, size=(num_steps, num_envs)))


def acting(actions):
    """A policy that takes the rows of actions one after the other."""
    rows = iter(actions)
    return lambda td: td.set("action", next(rows))


def alone(env_id, seed, actions, frame_skip=1):
    """The same steps in Gymnasium's own env: (obs, next obs, reward, terminated, truncated) of each."""
    env = gymnasium.make(env_id)
    obs, _ = env.reset(seed=seed)
    rows = []
    for action in actions:
        total = 0.0
        for _ in range(frame_skip):
            following, reward, terminated, truncated, _ = env.step(int(action))
            total += reward
            if terminated or truncated:
                break
        rows.append((obs, following, total, terminated, truncated))
        obs = env.reset()[0] if terminated or truncated else following
    env.close()
    return [np.array(column) for column in zip(*rows, strict=True)]


def assert_like_gymnasium(data, env_id, actions, seed, frame_skip=1):
    for i in range(len(data)):
        obs, following, reward, terminated, truncated = alone(env_id, seed + i, actions[:, i], frame_skip)
        np.testing.assert_array_equal(data["observation"][i].numpy(), obs)
        np.testing.assert_array_equal(data["next", "observation"][i].numpy(), following)
        np.testing.assert_array_equal(data["next", "reward"][i, :, 0].numpy(), reward.astype(np.float32))
        np.testing.assert_array_equal(data["next", "terminated"][i, :, 0].numpy(), terminated)
        np.testing.assert_array_equal(data["next", "truncated"][i, :, 0].numpy(), truncated)
        np.testing.assert_array_equal(data["next", "done"][i, :, 0].numpy(), terminated | truncated)
