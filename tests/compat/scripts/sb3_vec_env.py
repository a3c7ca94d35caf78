"""Stable-Baselines3's vector envs: the drop-ins of the same names, and the table of docs/migrating.md."""

import warnings
from functools import partial

import gymnasium
import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what its imports deprecate
    import stable_baselines3.common.vec_env as sb3

import envfleet
from envfleet.apis.sb3 import DummyVecEnv, SubprocVecEnv

make_one = partial(gymnasium.make, "CartPole-v1", max_episode_steps=12)
RIGHT = np.ones(2, dtype=np.int64)


def rollout(env):
    env.seed(5)
    rows = [env.reset()]
    ends = []
    for _ in range(14):
        obs, rewards, dones, infos = env.step(RIGHT)
        rows += [obs, rewards, dones]
        for row in np.flatnonzero(dones):
            ends += [infos[row]["terminal_observation"], infos[row]["TimeLimit.truncated"]]
    env.close()
    return rows, ends


def main():
    expected_rows, expected_ends = rollout(sb3.DummyVecEnv([make_one] * 2))
    assert len(expected_ends) >= 4
    for cls in (DummyVecEnv, SubprocVecEnv):
        rows, ends = rollout(cls([make_one] * 2))
        for mine, theirs in zip(rows + ends, expected_rows + expected_ends, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    envs = envfleet.make(make_one, num_envs=2, autoreset_mode="same_step", seed=5)
    envs.reset()
    ends = []
    for _ in range(14):
        _, _, terminated, truncated, info = envs.step(RIGHT)
        for row in np.flatnonzero(terminated | truncated):
            ends += [info["final_obs"][row], bool(truncated[row] & ~terminated[row])]
    for mine, theirs in zip(ends, expected_ends, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert envs.call("get_wrapper_attr", "spec")[0].id == "CartPole-v1"
    envs.close()


main()  # no `if __name__ == "__main__":`
print("done")
