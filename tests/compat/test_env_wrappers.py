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


def test_wrappers_of_make():
    env = DummyVecEnv(
        [make_env("CartPole-v1", 1)], wrappers=[partial(gymnasium.wrappers.TimeLimit, max_episode_steps=2)]
    )
    env.reset()
    assert [env.step([0])[2].tolist() for _ in range(3)] == [[False], [True], [False]]
    env.close()


def test_workers_and_contexts():
    factories = [partial(book, rank) for rank in range(4)]
    env = SubprocVecEnv(factories, "spawn", np.int64(2))
    assert env.pool.config.num_workers == 2
    assert env.pool.config.start_method == "spawn"
    assert env.reset().shape == (4, 2)
    env.close()
    with pytest.raises(envfleet.ConfigError, match="in_series expected a divisor of the number of envs, 4, got 3"):
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


def test_monitors(env_wrappers_alias):
    from env_wrappers.monitor import Monitor

    old = Monitor(PictureBook(3), "old")
    old.additional_key_values["task"] = "a"
    old.reset()
    old.step(0)
    with pytest.raises(envfleet.CallOrderError, match="allow_early_resets"):
        old.reset()
    old.step(0)
    *_, done, info = old.step(0)
    assert done
    assert info["episode"].items() >= {"r": 1.5, "l": 3, "total_steps": 3, "task": "a"}.items()
    old.reset()
    # As a wrapper of make_env(), around an env of Gymnasium's, in a worker too.
    env = SubprocVecEnv([make_env("CartPole-v1", rank, partial(Monitor, prefix="p")) for rank in range(2)])
    env.reset()
    episodes = []
    while not episodes:
        *_, infos = env.step([0, 0])
        episodes = [info["episode"] for info in infos if "episode" in info]
    assert episodes[0]["l"] == episodes[0]["r"] > 5
    env.close()
    early = Monitor(gymnasium.make("CartPole-v1"), "p", allow_early_resets=True)
    early.reset(seed=1)
    early.step(0)
    early.reset()
    assert isinstance(early, gymnasium.Env)


def books(length=3):
    return DummyVecEnv([partial(book, rank, length) for rank in range(2)])


def test_shmem_vec_env(env_wrappers_alias):
    from env_wrappers.vec_env import ShmemVecEnv

    env = ShmemVecEnv([partial(book, rank) for rank in range(2)], context="spawn")
    twin = books()
    np.testing.assert_array_equal(env.reset(), twin.reset())
    np.testing.assert_array_equal(env.step([0, 1])[0], twin.step([0, 1])[0])
    env.close()


def test_vec_normalize(env_wrappers_alias):
    from env_wrappers.vec_env.vec_normalize import VecNormalize

    env, plain = VecNormalize(books(), clipob=1.5, gamma=0.5), books()
    seen = [plain.reset()]
    obs = env.reset()
    returns, all_returns = np.zeros(2), []
    for _ in range(4):
        raw, rewards, dones, raw_infos = plain.step([0, 1])
        seen.append(raw)
        returns = returns * 0.5 + rewards
        all_returns += returns.tolist()
        obs, scaled, _, infos = env.step([0, 1])
        flat = np.concatenate(seen)
        # The statistics begin with 1e-4 rows of mean 0 and variance 1.
        np.testing.assert_allclose(env.ob_rms.mean, flat.mean(axis=0), atol=1e-3)
        np.testing.assert_allclose(env.ob_rms.var, flat.var(axis=0), atol=1e-3)
        expected = np.clip((raw - env.ob_rms.mean) / np.sqrt(env.ob_rms.var + 1e-8), -1.5, 1.5)
        np.testing.assert_allclose(obs, expected)
        np.testing.assert_allclose(scaled, np.clip(rewards / np.sqrt(env.ret_rms.var + 1e-8), -10, 10))
        if dones.any():
            last = raw_infos[1]["terminal_observation"]
            expected = np.clip((last - env.ob_rms.mean) / np.sqrt(env.ob_rms.var + 1e-8), -1.5, 1.5)
            np.testing.assert_allclose(infos[1]["terminal_observation"], expected)
        returns[dones] = 0
    np.testing.assert_allclose(env.ret_rms.var, np.var(all_returns), atol=1e-3)
    untouched = VecNormalize(books(), ob=False, ret=False)
    np.testing.assert_array_equal(untouched.reset(), books().reset())
    assert untouched.step([0, 0])[1].tolist() == [0.5, 0.5]
    with pytest.raises(envfleet.ConfigError, match="use_tf"):
        VecNormalize(books(), use_tf=True)


def test_vec_frame_stack(env_wrappers_alias):
    from env_wrappers.vec_env.vec_frame_stack import VecFrameStack

    env, plain = VecFrameStack(books(2), 2), books(2)
    assert env.observation_space.shape == (4,)
    first = plain.reset()
    np.testing.assert_array_equal(env.reset(), np.concatenate([np.zeros((2, 2)), first], axis=1))
    kept = env.step([0, 1])[0]
    np.testing.assert_array_equal(kept, np.concatenate([first, plain.step([0, 1])[0]], axis=1))
    obs, _, dones, infos = env.step([1, 1])
    assert dones.all()
    # Nothing of the episode before is in the new one, and its last stack is not lost.
    np.testing.assert_array_equal(obs, np.concatenate([np.zeros((2, 2)), plain.step([1, 1])[0]], axis=1))
    assert infos[0]["terminal_observation"].tolist() == [1, 0, 2, 1]
    assert kept[0].tolist()[2:] == [1, 0]  # arrays handed out do not change
    with pytest.raises(envfleet.ConfigError, match="nstack"):
        VecFrameStack(books(), 0)


def test_vec_monitor(env_wrappers_alias, tmp_path):
    from env_wrappers.vec_env.vec_monitor import VecMonitor

    env = VecMonitor(books(2), str(tmp_path / "run"), keep_buf=10, info_keywords=("count",))
    env.reset()
    assert "episode" not in env.step([0, 0])[3][0]
    infos = env.step([0, 0])[3]
    assert infos[1]["episode"].items() >= {"r": 1.0, "l": 2, "count": 2}.items()
    assert (list(env.epret_buf), list(env.eplen_buf), env.epcount) == ([1.0, 1.0], [2, 2], 2)
    env.close()
    start, header, *lines = (tmp_path / "run.monitor.csv").read_text().splitlines()
    assert start.startswith('# {"t_start"')
    assert header == "r,l,t,count"
    assert [line.split(",")[:2] for line in lines] == [["1.0", "2"]] * 2
