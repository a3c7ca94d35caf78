"""EnvPool's calls as its examples make them. The argument says what env_type="gym" returns: "old" or "new"."""

import sys

import envpool
import gym
import numpy as np

expects_new = sys.argv[1] == "new"


def first_rows(result):
    assert isinstance(result, tuple) == expects_new
    return result[0] if expects_new else result


def make_and_show():
    made = [envpool.make("Pong-v5", env_type=kind) for kind in ("dm", "gym", "gymnasium")]
    again = [envpool.make_dm("Pong-v5"), envpool.make_gym("Pong-v5"), envpool.make_gymnasium("Pong-v5")]
    assert [str(env) for env in made] == [str(env) for env in again]
    assert str(made[1]).startswith("AtariGymEnvPool(")
    spec = envpool.make_spec("Pong-v5", num_envs=4)
    assert (spec.observation_space.high == 255).all()
    assert spec.action_space.n == spec.action_spec().num_values == 6
    assert spec.observation_spec().obs.maximum == 255
    assert isinstance(spec.observation_space, gym.spaces.Box)
    ant = envpool.make_gym("Ant-v4")
    assert "qpos0" not in ant.step(np.array([ant.action_space.sample()]), np.array([0]))[-1]


def synchronous():
    env = envpool.make_gym("CartPole-v1", num_envs=4)
    assert isinstance(env, gym.Env)
    assert first_rows(env.reset()).shape == (4, 4)
    for _ in range(50):
        assert len(env.step(np.random.randint(2, size=4))) == (5 if expects_new else 4)
    assert first_rows(env.reset(np.array([1, 3]))).shape == (2, 4)
    env_id = np.array([3, 2, 0])
    result = env.step(np.array([0, 0, 1]), env_id)
    assert result[-1]["env_id"].tolist() == result[-1].env_id.tolist() == env_id.tolist()
    env = envpool.make_dm("CartPole-v1", num_envs=4)
    assert env.reset().observation.obs.shape == (4, 4)
    assert env.step(np.zeros(3, int), env_id).observation.env_id.tolist() == env_id.tolist()


def asynchronous():
    env = envpool.make_dm("CartPole-v1", num_envs=8, batch_size=4)
    step = env.reset()
    for _ in range(50):
        assert len(step.observation.env_id) == 4
        step = env.step(np.zeros(4, int), step.observation.env_id)
    env = envpool.make_gym("CartPole-v1", num_envs=8, batch_size=4, gym_reset_return_info=True)
    obs, info = env.reset()
    for _ in range(50):
        assert obs.shape == (4, 4)
        obs, *_, info = env.step(np.zeros(4, int), info["env_id"])
    env = envpool.make_gym("Pong-v5", num_envs=4, batch_size=2)
    env.async_reset()
    for _ in range(10):
        obs, *_, info = env.recv()
        assert obs.shape == (2, 4, 84, 84)
        env.send(np.zeros(2, int), info["env_id"])


make_and_show()
synchronous()
asynchronous()
print("done")
