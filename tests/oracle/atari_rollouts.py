"""Small runs of Atari envs, and Gymnasium's stack over ale-py's env to compare them with."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

import envfleet

SEED = 11


def make(env_id="Breakout-v5", **options):
    return envfleet.make(env_id, **{"backend": "serial", **options})


def play(envs, num_steps, seed=0):
    """Obs, rewards and flags of random play."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(num_steps):
        rows.append(envs.step(random.integers(envs.single_action_space.n, size=envs.num_envs))[:4])
    return [np.stack(column) for column in zip(*rows, strict=True)]


def assert_same(one, other):
    for column, again in zip(one, other, strict=True):
        np.testing.assert_array_equal(column, again)


class Preprocessed:
    """Gymnasium's stack over ale-py's env, reset after every end."""

    def __init__(self, game, *, sticky=0.0, max_frames=108_000, stack=4, **options):
        env = gymnasium.make(
            f"ALE/{game}-v5", frameskip=1, repeat_action_probability=sticky, max_num_frames_per_episode=max_frames
        )
        self.env = FrameStackObservation(AtariPreprocessing(env, **options), stack)
        self.has_ended = False

    def reset(self, seed):
        return self.env.reset(seed=seed)[0]

    def step(self, action):
        if self.has_ended:
            self.has_ended = False
            return self.env.reset()[0], 0.0, False, False
        obs, reward, terminated, truncated, _ = self.env.step(action)
        self.has_ended = terminated or truncated
        return obs, reward, terminated, truncated


def compare(reference, pool, num_steps, seed=SEED, as_planes=lambda obs: obs):
    """Steps both and asserts that they agree; gives the number of ends seen, and of rewards."""
    expected = reference.reset(seed)
    obs, _ = pool.reset(seed=seed)
    assert_close(obs[0], as_planes(expected))
    actions = np.random.default_rng(seed).integers(pool.single_action_space.n, size=num_steps)
    ends = [0, 0]
    num_rewards = 0
    for action in actions:
        expected, reward, terminated, truncated = reference.step(action)
        obs, own_reward, own_terminated, own_truncated, _ = pool.step(np.array([action]))
        assert (own_reward[0], own_terminated[0], own_truncated[0]) == (reward, terminated, truncated)
        assert_close(obs[0], as_planes(expected))
        ends[0] += terminated
        ends[1] += truncated
        num_rewards += reward != 0
    pool.close()
    reference.env.close()
    return ends, num_rewards


def assert_close(obs, expected):
    assert obs.shape == expected.shape
    assert obs.dtype == expected.dtype
    assert np.abs(obs.astype(np.int16) - expected).max() <= 1
