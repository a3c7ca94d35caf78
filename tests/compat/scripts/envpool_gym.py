"""EnvPool's env_type="gym" before gym 0.26: reset() gives obs, step() 4-tuples; and a script in CleanRL's style."""

import envpool
import gym
import numpy as np

env = envpool.make("CartPole-v1", env_type="gym", num_envs=4, seed=0)
obs = env.reset()
assert obs.shape == (4, 4)
obs, rew, done, info = env.step(np.zeros(4, dtype=int))
assert done.dtype == np.bool_
assert "TimeLimit.truncated" in info
env.close()

envs = envpool.make("CartPole-v1", env_type="gym", num_envs=4, seed=1)
envs.num_envs = 4
envs.single_action_space = envs.action_space
envs.single_observation_space = envs.observation_space


class Counted(gym.Wrapper):
    def reset(self, **kwargs):
        self.steps = 0
        return super().reset(**kwargs)

    def step(self, action):
        self.steps += 1
        return super().step(action)


envs = Counted(envs)
assert isinstance(envs.action_space, gym.spaces.Discrete)
envs.reset()
for _ in range(5):
    obs, reward, done, info = envs.step(np.zeros(4, dtype=int))
assert envs.steps == 5
assert info["elapsed_step"].max() <= 5
envs.close()
print("done")
