"""Small runs of Atari envs."""

from __future__ import annotations

import numpy as np

import envfleet


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
