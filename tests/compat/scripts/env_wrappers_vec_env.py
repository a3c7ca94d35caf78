"""env-wrappers' README and its tests of vec_env, with an id of today; the table of docs/from_env_wrappers.md."""

import gym
import numpy as np
from env_wrappers.vec_env import (
    DummyVecEnv,
    ShmemVecEnv,
    SubprocVecEnv,
    VecEnvWrapper,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
)
from env_wrappers.vec_env import make_env as make_by_id

IS_OLD = tuple(int(part) for part in gym.__version__.split(".")[:2]) < (0, 26)


def make_env(rank):
    def _thunk():
        if not IS_OLD:
            env = gym.make("MountainCar-v0", disable_env_checker=True)  # the checker needs numpy before 2
            env.reset(seed=100 + rank)
            return env
        env = gym.make("MountainCar-v0")
        env.seed(100 + rank)
        return env

    return _thunk


subproc = SubprocVecEnv([make_env(rank) for rank in range(3)], in_series=3)
dummy = DummyVecEnv([make_env(rank) for rank in range(3)])
assert subproc.num_envs == 3
np.testing.assert_array_equal(subproc.reset(), dummy.reset())
for _ in range(5):
    obs, rewards, dones, infos = subproc.step([0, 1, 2])
    np.testing.assert_array_equal(obs, dummy.step([0, 1, 2])[0])
subproc.close()
dummy.close()

dummy_wrappers = [lambda env: env] * 10
env = DummyVecEnv([make_by_id("CartPole-v1", 100 * rank, *dummy_wrappers) for rank in range(3)])
try:
    import pygame  # noqa: F401
except ImportError:
    env.reset()
else:
    img = env.render("rgb_array", width=10, height=10)
    assert (type(img), len(img), img[0].shape) == (list, 3, (10, 10, 3))
    assert env.render("tiled").ndim == 3
ended = {}
while not ended:
    _, _, dones, infos = env.step([0, 0, 0])
    ended = infos[int(np.argmax(dones))] if dones.any() else {}
assert ended["terminal_observation"].shape == (4,)
assert ended["TimeLimit.truncated"] is False
env.seed(7)
first = env.reset()
env.seed(7)
np.testing.assert_array_equal(env.reset(), first)
env.close()

# The variants of baselines.common.vec_env.
for inner in (DummyVecEnv, ShmemVecEnv):
    venv = VecMonitor(VecNormalize(VecFrameStack(inner([make_by_id("CartPole-v1", rank) for rank in range(2)]), 4)))
    assert isinstance(venv, VecEnvWrapper)
    assert venv.reset().shape == (2, 16)
    episodes = []
    while not episodes:
        *_, infos = venv.step([1, 1])
        episodes = [info["episode"] for info in infos if "episode" in info]
    assert episodes[0]["l"] > 5
    venv.close()
print("done")
