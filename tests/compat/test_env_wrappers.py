"""env-wrappers' vector envs, with Gymnasium's ids and with old envs."""

from __future__ import annotations

import sys
from functools import partial

import gymnasium
import numpy as np
import pytest
from compat_probes import PictureBook

import envfleet
from envfleet.compat.env_wrappers import DummyVecEnv, SubprocVecEnv, VecEnvWrapper, make_env

CLASSES = [DummyVecEnv, SubprocVecEnv]


def book(rank, length=3):
    env = PictureBook(length)
    env.seed(100 + rank)
    return env


def test_the_readme_with_its_import_lines(env_wrappers_alias):
    pytest.importorskip("pygame")
    from env_wrappers.vec_env import SubprocVecEnv as Vec
    from env_wrappers.vec_env import make_env as make

    dummy_wrappers = [lambda env: env] * 10
    env = Vec([make("CartPole-v1", 100 * rank, *dummy_wrappers) for rank in range(3)])
    images = env.render("rgb_array", width=10, height=10)
    assert type(images) is list
    assert [image.shape for image in images] == [(10, 10, 3)] * 3
    assert env.num_envs == 3
    assert env.action_space == env.single_action_space == gymnasium.spaces.Discrete(2)
    env.close()


def test_a_script_with_gym_make(run_python, tmp_path):
    """The original's second example, its id but for one that Gymnasium has."""
    (tmp_path / "main.py").write_text(
        """
import gym
from env_wrappers.vec_env import SubprocVecEnv, DummyVecEnv

env_id = "Acrobot-v1"
seed = 100


def make_env(rank):
    def _thunk():
        env = gym.make(env_id)
        env.seed(seed + rank)
        return env

    return _thunk


vecenv = SubprocVecEnv([make_env(rank) for rank in range(3)], in_series=3)
twin = DummyVecEnv([make_env(rank) for rank in range(3)])
assert (vecenv.reset() == twin.reset()).all()
for _ in range(10):
    obs, rewards, dones, infos = vecenv.step([0, 1, 2])
    assert (obs == twin.step([0, 1, 2])[0]).all()
vecenv.close()
print("done")
"""
    )
    assert "done" in run_python("-m", "envfleet.compat", "main.py").stdout


@pytest.mark.parametrize("cls", CLASSES)
def test_the_factorys_seed_is_the_envs(cls):
    env = cls([make_env("CartPole-v1", 100 * rank) for rank in range(3)])
    alone = gymnasium.make("CartPole-v1")
    obs = env.reset()
    for rank in range(3):
        np.testing.assert_array_equal(obs[rank], alone.reset(seed=100 * rank)[0])
    second = env.reset()  # not seeded again
    assert not (second == obs).any()
    np.testing.assert_array_equal(second[2], alone.reset()[0])
    env.seed(7)
    np.testing.assert_array_equal(env.reset()[1], alone.reset(seed=8)[0])
    env.seed([None, 3, None])
    np.testing.assert_array_equal(env.reset()[1], alone.reset(seed=3)[0])
    env.close()


@pytest.mark.parametrize("cls", CLASSES)
def test_old_envs_step_and_reset_in_the_same_step(cls):
    env = cls([partial(book, rank) for rank in range(2)])
    random = [np.random.RandomState(100 + rank) for rank in range(2)]
    np.testing.assert_array_equal(env.reset(), [own.uniform(size=2) for own in random])
    for count in (1, 2):
        obs, rewards, dones, infos = env.step([0, 1])
        np.testing.assert_array_equal(obs, [[count, 0], [count, 1]])
        assert rewards.tolist() == [0.5, 0.5]
        assert dones.tolist() == [False, False]
        assert [info["count"] for info in infos] == [count, count]
    obs, _, dones, infos = env.step(np.array([0, 1]))
    assert dones.tolist() == [True, True]
    np.testing.assert_array_equal(obs, [own.uniform(size=2) for own in random])
    assert infos[1]["count"] == 3
    assert infos[1]["terminal_observation"].tolist() == [3, 1]
    assert infos[1]["TimeLimit.truncated"] is False
    env.step_async([0, 0])
    assert env.step_wait()[0][0].tolist() == [1, 0]
    env.close()
    env.close()
    assert env.closed


def test_an_end_by_the_clock_says_so():
    env = DummyVecEnv([make_env("Pendulum-v1", 0, max_episode_steps=2)])
    env.reset()
    env.step(np.zeros((1, 1)))
    _, _, dones, infos = env.step(np.zeros((1, 1)))
    assert dones.all()
    assert infos[0]["TimeLimit.truncated"] is True


@pytest.mark.parametrize("cls", CLASSES)
def test_pictures_in_the_size_that_is_asked_for(cls):
    env = cls([partial(book, rank) for rank in range(2)])
    env.reset()
    env.step([0, 0])
    images = env.render("rgb_array", width=6, height=4)
    assert [image.shape for image in images] == [(4, 6, 3)] * 2
    assert (images[0] == 1).all()
    assert env.get_images()[0].shape == (16, 32, 3)
    assert env.render("tiled").shape == (16, 64, 3)
    env.close()


def test_an_env_that_cannot_draw_so():
    env = DummyVecEnv([make_env("CartPole-v1", 0)])
    with pytest.raises(envfleet.EnvError, match="render_mode='human'"):
        env.render("human")


def test_a_wrapper_around_it():
    class Doubled(VecEnvWrapper):
        def step_wait(self):
            obs, rewards, dones, infos = self.venv.step_wait()
            return obs, 2 * rewards, dones, infos

    inner = DummyVecEnv([partial(book, rank) for rank in range(2)])
    env = Doubled(inner)
    env.reset()
    assert env.step([0, 0])[1].tolist() == [1.0, 1.0]
    assert env.num_envs == 2
    assert env.unwrapped is inner
    assert env.get_attr("length") == [3, 3]
    assert env.spec is inner.spec
    env.close()
    assert inner.closed


def test_workers_and_contexts():
    factories = [partial(book, rank) for rank in range(4)]
    env = SubprocVecEnv(factories, "spawn", 2)
    assert env.pool.config.num_workers == 2
    assert env.pool.config.start_method == "spawn"
    assert env.reset().shape == (4, 2)
    env.close()
    with pytest.raises(envfleet.ConfigError, match="in_series expected a number that 4 envs can be divided by, got 3"):
        SubprocVecEnv(factories, in_series=3)
    with pytest.raises(envfleet.ConfigError, match="start_method"):
        SubprocVecEnv(factories, context="thread")
    with pytest.raises(envfleet.CallOrderError, match="call reset"):
        DummyVecEnv(factories).step([0] * 4)
    with pytest.raises(envfleet.ConfigError, match="seed"):
        DummyVecEnv(factories).seed([1, 2])
    with pytest.raises(envfleet.UnknownEnvError, match="make_env"):
        DummyVecEnv([make_env("NoSuchThing-v9", 0)])


def test_an_exception_names_its_env():
    env = SubprocVecEnv([partial(book, 0), partial(book, 1, None)])
    env.reset()
    with pytest.raises(envfleet.EnvError, match="env 1 raised in step"):
        env.step([0, 0])
    env.close()


def test_torch_is_not_imported(run_python):
    run_python("-c", "import sys, envfleet.compat.env_wrappers as e; e.install(); assert 'torch' not in sys.modules")
    assert sys.modules  # this process's own may have it
