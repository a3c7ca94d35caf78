"""PufferLib 3's documented usage: emulation, make() with each backend, the asynchronous loop."""

import gymnasium
import numpy as np

from envfleet.compat import pufferlib_vector as vector


class SamplePufferEnv(vector.PufferEnv):
    def __init__(self, foo=0, bar=1, buf=None, seed=0):
        self.single_observation_space = gymnasium.spaces.Box(low=-1, high=1, shape=(1,))
        self.single_action_space = gymnasium.spaces.Discrete(2)
        self.num_agents = 2
        super().__init__(buf)
        self.foo, self.bar = foo, bar

    def reset(self, seed=0):
        self.observations[:] = 0.5
        return self.observations, []

    def step(self, action):
        self.observations[:] = -0.5
        return self.observations, self.rewards, self.terminals, self.truncations, [{"reward": 0.1}]

    def close(self):
        pass


def make_cartpole(buf=None, seed=0):
    return vector.GymnasiumPufferEnv(gymnasium.make("CartPole-v1"), buf=buf, seed=seed)


if __name__ == "__main__":
    native = vector.make(SamplePufferEnv, backend=vector.PufferEnv)
    native.async_reset()
    observations, rewards, terminals, truncations, infos, agent_ids, masks = native.recv()
    native.send(native.action_space.sample())
    assert native.recv()[4] == [{"reward": 0.1}]
    native.close()

    serial = vector.make(SamplePufferEnv, env_args=[3], env_kwargs={"bar": 4}, backend=vector.Serial, num_envs=2)
    observations, infos = vector.reset(serial)
    assert observations.shape == (4, 1)
    assert serial.driver_env.bar == 4
    observations, rewards, terminals, truncations, infos = vector.step(serial, serial.action_space.sample())
    assert len(infos) == 2
    serial.close()

    envs = vector.make(
        make_cartpole, backend=vector.Multiprocessing, num_envs=4, num_workers=2, batch_size=2, zero_copy=False
    )
    envs.async_reset(seed=0)
    for _ in range(20):
        o, r, d, t, infos, env_ids, masks = envs.recv()
        assert o.shape == envs.observation_space.shape == (2, 4)
        assert masks.all()
        envs.send(np.asarray(envs.action_space.sample()))
    envs.close()
    print("done")
