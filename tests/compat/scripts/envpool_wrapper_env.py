"""envpool_wrapper's README, the first file: an env of five methods that registers itself."""

import gym
from envpool_protocol.envpool_protocol import EnvPoolProtocol
from envpool_protocol.manager import CppWrapperGenerator, EnvManager


class MyEnv(EnvPoolProtocol, gym.Env):
    def __init__(self, envid, speed=1.0):
        super().__init__()
        self.envid, self.speed = envid, speed
        self.observation_space = gym.spaces.Box(low=-1.0, high=1.0, shape=(3,))
        self.action_space = gym.spaces.Box(low=-1.0, high=1.0, shape=(1,))

    def _step_envpool(self, act):
        self.count += 1

    def _reward_envpool(self):
        return 2.0 * self.speed

    def _reset_envpool(self):
        self.count = 0

    def _make_obs_envpool(self):
        return self.observation_space.sample()

    def _done_envpool(self):
        return False


class MyEnv2(MyEnv):
    pass


if __name__ == "__main__":
    EnvManager.register_env(MyEnv)
    CppWrapperGenerator.generate_envpool_wrap(MyEnv)
    CppWrapperGenerator.generate_envpool_wrap(MyEnv2, verbose=False)
    print("done")
