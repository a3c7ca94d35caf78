"""gym 0.26's own wrappers around a pool of envpool.make()."""

import envpool
import gym
import numpy as np
from envpool.classic_control import CartPoleEnvSpec, CartPoleGymEnvPool
from gym.wrappers import ClipAction, NormalizeObservation, NormalizeReward, RecordEpisodeStatistics

assert gym.__version__ == "0.26.2"
pool = envpool.make("CartPole-v1", env_type="gym", num_envs=3, seed=0)
assert isinstance(pool, (gym.Env, CartPoleGymEnvPool))
assert issubclass(CartPoleGymEnvPool, gym.Env)
assert isinstance(CartPoleEnvSpec(CartPoleEnvSpec.gen_config()).observation_space, gym.spaces.Box)
assert pool.is_vector_env
env = NormalizeReward(NormalizeObservation(RecordEpisodeStatistics(pool)))
obs, info = env.reset(seed=3)
assert obs.shape == (3, 4)
ended = 0
for _ in range(60):
    obs, reward, terminated, truncated, info = env.step(np.ones(3, dtype=int))
    assert "TimeLimit.truncated" not in info
    done = np.logical_or(terminated, truncated)
    if done.any():
        assert (info["episode"]["l"][done] >= 8).all()
        ended += 1
assert ended
assert env.unwrapped is pool
pendulum = ClipAction(envpool.make_gym("Pendulum-v1", num_envs=2))
obs, info = pendulum.reset()
assert len(pendulum.step(np.full((2, 1), 9.0, dtype=np.float32))) == 5
assert info.env_id.tolist() == [0, 1]
print("done")
