"""PufferLib's Ray backend on envfleet's."""

from __future__ import annotations

from functools import partial

import gymnasium
import numpy as np
from support.ray_session import ray_session

from envfleet.compat import pufferlib_vector as vector


def test_the_rows_are_serials():
    ray_session()
    make_env = partial(gymnasium.make, "CartPole-v1")
    serial = vector.make(make_env, backend=vector.Serial, num_envs=2)
    envs = vector.make(make_env, backend=vector.Ray, num_envs=2, num_workers=1)
    np.testing.assert_array_equal(envs.reset(seed=1)[0], serial.reset(seed=1)[0])
    for _ in range(5):
        np.testing.assert_array_equal(envs.step([0, 1])[0], serial.step([0, 1])[0])
    envs.close()
    serial.close()
