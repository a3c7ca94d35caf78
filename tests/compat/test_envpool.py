"""EnvPool's API over envfleet's pools."""

from __future__ import annotations

import sys
from types import ModuleType

import gymnasium
import numpy as np
import pytest
from compat_probes import LivesEnv
from gymnasium import spaces

import envfleet

pytestmark = pytest.mark.usefixtures("envpool_alias")


def import_envpool():
    import envpool

    return envpool


def test_the_tree_has_what_others_import():
    import envpool
    from envpool.python.envpool import EnvPoolMixin
    from envpool.python.protocol import EnvPool
    from envpool.registration import make_gym

    env = make_gym("CartPole-v1")
    assert isinstance(env, EnvPoolMixin)
    assert isinstance(env, EnvPool)
    assert isinstance(env, envpool.python.envpool.EnvPoolMixin)
    assert envpool.list_all_envs() == envfleet.list_all_envs()
    assert envpool.__version__
    with pytest.raises(ModuleNotFoundError):
        import envpool.nowhere


def test_gym_speaks_the_old_dialect():
    env = import_envpool().make("CartPole-v1", env_type="gym", num_envs=3, seed=1)
    twin = envfleet.make("CartPole-v1", num_envs=3, seed=1)
    obs = env.reset()
    np.testing.assert_array_equal(obs, twin.reset()[0])
    for _ in range(60):
        got = env.step(np.ones(3, dtype=np.int32))
        want = twin.step(np.ones(3, dtype=np.int32))
        obs, reward, done, info = got
        np.testing.assert_array_equal(obs, want[0])
        np.testing.assert_array_equal(done, want[2] | want[3])
    assert reward.dtype == np.float32
    assert set(info) == {"env_id", "elapsed_step", "players", "TimeLimit.truncated"}
    assert info["players"]["env_id"].dtype == info["env_id"].dtype == info["elapsed_step"].dtype == np.int32
    assert isinstance(env, gymnasium.Env)
    assert (
        env.observation_space
        == env.spec.observation_space
        == spaces.Box(env.observation_space.low, env.observation_space.high, (4,), np.float32)
    )


def test_gymnasium_speaks_gymnasium():
    env = import_envpool().make_gymnasium("CartPole-v1", num_envs=3)
    obs, info = env.reset(env_id=np.array([2, 0]))
    assert len(obs) == 2
    assert info["env_id"].tolist() == [2, 0]
    env.reset()
    obs, reward, terminated, truncated, info = env.step(np.zeros(2, dtype=int), np.array([0, 2]))
    assert len(obs) == len(reward) == len(terminated) == len(truncated) == 2
    assert reward.dtype == np.float32
    assert env.action_space == spaces.Discrete(2)
    assert env.is_async is False
    assert env.all_env_ids.tolist() == [0, 1, 2]
    assert len(env) == env.num_envs == 3


def test_dm_has_envpools_fields():
    pytest.importorskip("dm_env")
    env = import_envpool().make("CartPole-v1", env_type="dm", num_envs=2)
    step = env.reset()
    assert step.first().all()
    assert step.reward.dtype == np.float32
    assert step.observation.obs.shape == (2, 4)
    assert step.observation.players.env_id.tolist() == step.observation.env_id.tolist() == [0, 1]
    assert env.step(np.zeros(2, dtype=int)).mid().all()
    assert env.observation_spec().obs.shape == (4,)
    assert env.action_spec().num_values == 2


def test_async_as_the_readme_of_envpool_has_it():
    env = import_envpool().make("CartPole-v1", env_type="gymnasium", num_envs=8, batch_size=3, num_threads=1)
    env.async_reset()
    for _ in range(20):
        obs, _, _, _, info = env.recv()
        assert len(obs) == 3
        env.send(np.zeros(3, dtype=int), info["env_id"])
    assert env.is_async


def test_actions_that_the_readme_of_envpool_draws_beyond_the_space():
    env = import_envpool().make("Acrobot-v1", env_type="gym", num_envs=32, batch_size=16)
    env.async_reset()
    _, _, _, info = env.recv()
    env_id = info["env_id"]
    with pytest.raises(envfleet.ActionError, match=r"expected actions of Discrete\(3\) \(from 0 to 2\), got"):
        env.send(np.arange(16), env_id)  # np.random.randint(batch_size, size=len(env_id)) draws from these
    env.send(np.random.default_rng(0).integers(env.action_space.n, size=len(env_id)), env_id)
    assert len(env.recv()[0]) == 16
    env.close()


def test_options_of_envpool_are_taken():
    envpool = import_envpool()
    env = envpool.make(
        "Pendulum-v1",
        env_type="gym",
        num_envs=2,
        batch_size=0,
        num_threads=0,
        max_num_players=1,
        thread_affinity_offset=-1,
        base_path="/assets",
        seed=np.int64(4),
        gym_reset_return_info=True,
        max_episode_steps=10,
        reward_threshold=1.0,
    )
    obs, info = env.reset()
    assert obs.shape == (2, 3)
    assert "env_id" in info
    config = env.config
    assert config["num_envs"] == env.spec.config.num_envs == 2
    assert config["base_path"] == "/assets"
    assert config["max_episode_steps"] == 10
    assert config["gym_reset_return_info"] is True
    seeds = [11, 7]
    listed = envpool.make("Pendulum-v1", num_envs=2, env_seed=seeds)
    np.testing.assert_array_equal(listed.reset()[1], gymnasium.make("Pendulum-v1").reset(seed=7)[0])
    with pytest.raises(envfleet.ConfigError, match="max_num_players expected 1"):
        envpool.make("Pendulum-v1", max_num_players=2)
    with pytest.raises(envfleet.ConfigError, match="env_type expected"):
        envpool.make("Pendulum-v1", env_type="sb3")
    assert envpool.make_spec("Pendulum-v1", num_envs=3).config.num_envs == 3


@pytest.mark.parametrize("env_type", ["gym", "gymnasium", "dm"])
def test_the_default_seed_is_42(env_type):
    """Two pools made without a seed replay the same episodes, as Tianshou's and EnvPool's own tests expect."""
    envpool = import_envpool()
    want = gymnasium.make("Pendulum-v1").reset(seed=43)[0]
    for options in ({}, {"seed": 42}):
        env = envpool.make("Pendulum-v1", env_type=env_type, num_envs=2, **options)
        first = env.reset()
        obs = first.observation.obs if env_type == "dm" else first[0] if isinstance(first, tuple) else first
        np.testing.assert_array_equal(obs[1], want)
        assert env.spec.config.seed == 42
        env.close()
    unseeded = [envpool.make("Pendulum-v1", seed=None).reset() for _ in range(2)]
    assert not np.array_equal(*unseeded)


def test_a_step_before_any_reset_resets():
    envpool = import_envpool()
    for env_type in ("gym", "gymnasium", "dm"):
        if env_type == "dm":
            pytest.importorskip("dm_env")
        env = envpool.make("CartPole-v1", env_type=env_type, num_envs=2)
        first = env.step(np.ones(2, dtype=int))
        obs = first.observation.obs if env_type == "dm" else first[0]
        assert (np.abs(obs) <= 0.05).all()
        second = env.step(np.ones(2, dtype=int))
        assert (second.reward if env_type == "dm" else second[1]).tolist() == [1, 1]
    env = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=2)
    env.reset(np.array([0]))
    assert env.step(np.ones(2, dtype=int))[4]["elapsed_step"].tolist() == [1, 1]


def test_a_pool_goes_on_after_close():
    env = import_envpool().make("CartPole-v1", env_type="gym", num_envs=2, seed=3)
    before = env.reset()
    env.close()
    env.close()
    with pytest.raises(envfleet.PoolClosedError):
        env.step(np.zeros(2, dtype=int))
    np.testing.assert_array_equal(env.reset(), before)
    env.close()


def test_actions_as_envpool_takes_them():
    env = import_envpool().make("Pendulum-v1", env_type="gymnasium", num_envs=3, seed=0)
    twin = envfleet.make("Pendulum-v1", num_envs=3, seed=0)
    env.reset(), twin.reset()
    wild = np.array([[-9.0], [0.5], [9.0]], dtype=np.float32)
    np.testing.assert_array_equal(env.step(wild)[0], twin.step(wild.clip(-2, 2))[0])
    rows = env.step({"action": wild[:1], "env_id": np.array([2], dtype=np.int32)})
    assert rows[4]["env_id"].tolist() == [2]
    with pytest.raises(envfleet.ActionError):
        env.step(np.full((3, 1), np.nan, dtype=np.float32))


def test_pictures():
    pytest.importorskip("pygame")
    env = import_envpool().make_gymnasium(
        "CartPole-v1", num_envs=3, render_mode="rgb_array", render_width=30, render_height=20
    )
    env.reset()
    assert env.render().shape == (1, 20, 30, 3)
    assert env.render(env_ids=[0, 2]).shape == (2, 20, 30, 3)


def test_register_and_what_cannot_be():
    envpool = import_envpool()
    envpool.register("ShortPole-v0", "CartPole-v1", max_episode_steps=5)
    assert envpool.make("ShortPole-v0").config["max_episode_steps"] == 5
    with pytest.raises(envfleet.ConfigError, match=r"port it with envfleet\.compile"):
        envpool.register("Hex-v0", import_path="x", spec_cls="S", dm_cls="D", gymnasium_cls="G")
    with pytest.warns(UserWarning, match="does nothing"):
        envpool.make("CartPole-v1").seed(1)


def test_python_envs_and_their_infos():
    env = import_envpool().make(LivesEnv, env_type="gym", num_envs=3, reward_clip=True, backend="serial", seed=0)
    env.reset()
    info = env.step(np.zeros(3, dtype=int))[-1]
    assert info["lives"].shape == info["reward"].shape == (3,)
    assert not [key for key in info if key.startswith("_")]
    assert env.config["reward_clip"] is True


def test_spaces_of_the_gym_that_is_in_use(monkeypatch):
    class Box:
        def __init__(self, low, high, shape, dtype):
            self.low, self.high, self.shape, self.dtype = low, high, shape, dtype

    class Discrete:
        def __init__(self, n, start=0):
            self.n, self.start = n, start

    old = ModuleType("gym.spaces")
    old.Box, old.Discrete = Box, Discrete
    monkeypatch.setitem(sys.modules, "gym.spaces", old)
    env = import_envpool().make("CartPole-v1", env_type="gym")
    assert type(env.spec.observation_space) is Box
    assert type(env.action_space) is Discrete
    assert env.spec.gymnasium_action_space == spaces.Discrete(2)
    assert import_envpool().make("CartPole-v1", env_type="gymnasium").action_space == spaces.Discrete(2)


def test_a_late_install_tells_torchrls_user(monkeypatch):
    from envfleet.compat import envpool

    envpool.uninstall()
    noted = ModuleType("torchrl.envs.libs.envpool")
    noted._has_envpool = False
    monkeypatch.setitem(sys.modules, "torchrl.envs.libs.envpool", noted)
    with pytest.warns(RuntimeWarning, match="before the first import of torchrl"):
        envpool.install()
