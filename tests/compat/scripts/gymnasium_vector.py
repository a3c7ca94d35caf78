"""Gymnasium's vector envs: the drop-ins, and the table of docs/migrating.md, column by column."""

from functools import partial

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

import envfleet
import envfleet.vector

ZEROS = np.zeros(2, dtype=np.int64)


class Named(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, a=0):
        self.a, self.fails = a, False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        if self.fails:
            raise ValueError("it fails")
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), float(self.a), False, False, {}

    def f(self, number):
        return self.a + number


def rollout(envs):
    rows = [envs.reset(seed=3)[0]]
    rows += [envs.step(ZEROS)[0] for _ in range(3)]
    envs.close()
    return rows


if __name__ == "__main__":
    fns = [partial(Named, a=1)] * 2
    reference = rollout(SyncVectorEnv(fns))
    for envs in (
        AsyncVectorEnv(fns),
        envfleet.vector.SyncVectorEnv(fns),
        envfleet.vector.AsyncVectorEnv(fns, context="spawn", shared_memory=False),
        envfleet.make(Named, num_envs=2, a=1),
        envfleet.make(fns, start_method="spawn"),
    ):
        np.testing.assert_array_equal(rollout(envs), reference)
    envs = envfleet.vector.AsyncVectorEnv(fns)
    envs.reset(seed=0)
    envs.step_async(ZEROS)
    assert envs.step_wait(timeout=60)[1].tolist() == [1.0, 1.0]
    assert envs.call("f", 1) == (2, 2)
    envs.set_attr("a", [5, 6])
    assert envs.get_attr("a") == (5, 6)
    envs.close()

    envs = envfleet.make(Named, num_envs=2, a=1)
    obs, _ = envs.reset(seed=0)
    envs.send(ZEROS)
    assert envs.recv(timeout=60)[1].tolist() == [1.0, 1.0]
    assert envs.call("f", 1) == (2, 2)
    masked, _ = envs.reset(options={"reset_mask": np.array([True, False])}, seed=0)
    np.testing.assert_array_equal(masked[0], obs[0])
    some, info = envs.reset(np.array([1]), seed=0)
    assert (some.shape, info["env_id"].tolist()) == ((1, 2), [1])
    envs.set_attr("fails", [False, True])
    message = traceback = ""
    try:
        envs.step(ZEROS)
    except envfleet.EnvError as error:
        message, traceback = str(error), error.env_traceback
    assert "env 1 raised in step" in message
    assert "it fails" in traceback
    envs.close()
    envs = gymnasium.make_vec("envfleet/CartPole-v1", num_envs=2, autoreset_mode="same_step")
    assert envs.reset(seed=0)[0].shape == (2, 4)
    envs.close()
    print("done")
