"""Actions for pools of MuJoCo envs, and the rows that they give."""

from __future__ import annotations

import numpy as np

import envfleet


def actions_for(pool: envfleet.Pool, num_batches: int, seed: int = 0) -> np.ndarray:
    space, rng = pool.spec.action_space, np.random.default_rng(seed)
    return rng.uniform(space.low, space.high, (num_batches, pool.num_envs, *space.shape)).astype(np.float32)


def rows_of(pool: envfleet.Pool, actions: np.ndarray) -> list[list]:
    batches = [pool.step(own) for own in actions]
    columns = [[b.obs, b.reward, b.terminated, b.truncated, *b.info.values()] for b in batches]
    return [[np.array(column).tolist() for column in own] for own in columns]
