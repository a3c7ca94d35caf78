"""The old gym's view."""

from __future__ import annotations

import numpy as np
import pytest

import envfleet


def test_reset_and_step_have_the_old_shape():
    env = envfleet.make_gym("CartPole-v1", num_envs=3)
    twin = envfleet.make("CartPole-v1", num_envs=3)
    obs = env.reset(seed=0)
    np.testing.assert_array_equal(obs, twin.reset(seed=0)[0])
    assert env.observation_space.shape == (4,)
    assert env.action_space.n == 2
    for _ in range(40):
        obs, reward, done, info = env.step(np.ones(3, dtype=np.int64))
        want = twin.step(np.ones(3, dtype=np.int64))
        np.testing.assert_array_equal(obs, want[0])
        assert reward.dtype == np.float32
        np.testing.assert_array_equal(done, want[2] | want[3])
        assert info["elapsed_step"].dtype == np.int32


def test_whether_reset_returns_the_info_is_a_flag():
    with pytest.raises(envfleet.ConfigError, match="gym_reset_return_info expected True or False, got 'no'"):
        envfleet.make_gym("CartPole-v1", gym_reset_return_info="no")


def test_an_end_by_the_clock_alone_is_marked():
    env = envfleet.make("Faulty-v0", env_type="gym", num_envs=2, max_episode_steps=2)
    env.reset()
    env.step([0, 0])
    _, _, done, info = env.step([4, 0])
    assert done.tolist() == [True, True]
    assert info["TimeLimit.truncated"].tolist() == [False, True]


def test_async_and_what_training_scripts_do_with_it():
    env = envfleet.make_gym("CartPole-v1", num_envs=4, batch_size=2, gym_reset_return_info=True)
    env.async_reset()
    _, _, _, info = env.recv()
    env.send(np.zeros(2, dtype=np.int64), info["env_id"])
    obs, info = env.reset()
    assert len(obs) == 4
    assert "env_id" in info
    env.num_envs = 4  # CleanRL assigns these
    env.single_action_space = env.action_space
    assert env.config["batch_size"] == 2
    assert len(env) == 4
    env.close()
