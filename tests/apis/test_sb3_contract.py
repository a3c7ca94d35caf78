"""Pools as Stable-Baselines3's VecEnvs: the contract, against SB3's own DummyVecEnv."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from sb3_probes import N, Plus, factories
from support.info_env import CountingEnv

import envfleet
from envfleet.core.errors import CallOrderError, ConfigError, EnvError, SeedError

pytest.importorskip("stable_baselines3")

from stable_baselines3.common import vec_env as sb3
from stable_baselines3.common.monitor import Monitor

from envfleet.apis.sb3 import DummyVecEnv, EnvFleetVecEnv, SubprocVecEnv, make_vec_env


def over_serial(env_fns):
    return EnvFleetVecEnv(envfleet.make(env_fns, backend="serial", autoreset_mode="same_step"))


def over_processes(env_fns):
    return EnvFleetVecEnv(envfleet.make_pool(env_fns, backend="processes", autoreset_mode="same_step"))


OURS = [DummyVecEnv, SubprocVecEnv, over_serial, over_processes]


@pytest.fixture(params=OURS, ids=lambda make: make.__name__)
def make(request):
    return request.param


@pytest.fixture
def probes(make):
    envs = make(factories())
    yield envs
    envs.close()


def assert_same(one, other):
    """Equal values of equal structure."""
    if isinstance(other, dict):
        assert one.keys() == other.keys()
        for key in other:
            assert_same(one[key], other[key])
    elif isinstance(other, np.ndarray):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype
    else:
        assert one == other
        assert type(one) is type(other)


@pytest.mark.parametrize("is_dict", [False, True])
def test_a_rollout_is_that_of_sb3s_dummy_vec_env(make, is_dict):
    ours, theirs = make(factories(is_dict=is_dict)), sb3.DummyVecEnv(factories(is_dict=is_dict))
    assert ours.seed(7) == theirs.seed(7) == [7, 8, 9]
    assert_same(ours.reset(), theirs.reset())
    for mine, own in zip(ours.reset_infos, theirs.reset_infos, strict=True):
        assert mine["seed"] == own["seed"]
    rng = np.random.default_rng(0)
    for _ in range(11):
        actions = rng.integers(0, 4, N)
        obs, rewards, dones, infos = ours.step(actions)
        obs_, rewards_, dones_, infos_ = theirs.step(actions)
        assert_same(obs, obs_)
        assert_same(rewards, rewards_)
        assert_same(dones, dones_)
        assert isinstance(infos, list)
        for mine, own in zip(infos, infos_, strict=True):
            assert_same(mine, own)
    ours.close()
    theirs.close()


def test_infos_tell_how_an_episode_ended(probes):
    probes.reset()
    seen = {}
    for _ in range(5):
        _, _, dones, infos = probes.step(np.ones(N, int))
        for row, info in enumerate(infos):
            assert ("terminal_observation" in info) == dones[row]
            if dones[row]:
                seen.setdefault(row, info)
                assert probes.reset_infos[row]["seed"] == -1
                assert "TimeLimit.truncated" not in probes.reset_infos[row]
            else:
                assert info["TimeLimit.truncated"] is False
    # Env 1 ends by itself on its last permitted step: that is no time limit.
    assert [seen[row]["TimeLimit.truncated"] for row in range(N)] == [True, False, True]
    assert [seen[row]["terminal_observation"][0] for row in range(N)] == [3, 4, 5]


def test_what_is_handed_out_never_changes(probes):
    first = probes.reset()
    before = first.copy()
    _, rewards, dones, infos = probes.step(np.ones(N, int))
    kept = rewards.copy(), dones.copy(), list(infos[0]["history"])
    for _ in range(4):
        probes.step(np.zeros(N, int))
    np.testing.assert_array_equal(first, before)
    np.testing.assert_array_equal(rewards, kept[0])
    np.testing.assert_array_equal(dones, kept[1])


def test_dummy_vec_env_copies_the_objects_in_infos_as_sb3s_does():
    envs = DummyVecEnv(factories())
    envs.reset()
    _, _, _, infos = envs.step(np.ones(N, int))
    envs.step(np.ones(N, int))
    assert infos[0]["history"] == [1]
    envs.close()


def test_seeds_and_options_act_once(probes):
    probes.seed(3)
    probes.set_options({"hard": 1})
    probes.reset()
    assert [info["seed"] for info in probes.reset_infos] == [3, 4, 5]
    assert [info["options"] for info in probes.reset_infos] == [{"hard": 1}] * N
    probes.reset()
    assert [info["options"] for info in probes.reset_infos] == [None] * N
    assert all(info["seed"] == -1 for info in probes.reset_infos)
    probes.seed(3)
    probes.set_options([{"hard": 1}, {}, {"easy": 2}])
    obs = probes.reset()
    assert [info["options"] for info in probes.reset_infos] == [{"hard": 1}, None, {"easy": 2}]
    assert [info["seed"] for info in probes.reset_infos] == [3, 4, 5]
    probes.seed(3)
    np.testing.assert_array_equal(obs, probes.reset())
    with pytest.raises(ValueError, match="3, one per env, got 2"):
        probes.set_options([{}, {}])


@pytest.mark.parametrize("seed", ["x", [1, 2, 3], 1.5, -1])
def test_wrong_seeds_and_options(probes, seed):
    with pytest.raises(SeedError, match=r"seed\(\) expected an integer of at least 0, or None, got"):
        probes.seed(seed)
    for options in (3, [1, 2, 3]):
        with pytest.raises(ConfigError, match="expected one dict or 3, one per env"):
            probes.set_options(options)


def test_attributes_and_methods_by_indices(probes):
    probes.reset()
    assert probes.get_attr("length") == [3, 4, 5]
    assert probes.get_attr("length", 1) == probes.get_attr("length", [1]) == [4]
    assert probes.get_attr("length", -1) == [5]
    assert probes.get_attr("length", [2, 0, 2]) == [5, 3, 5]
    assert probes.get_attr("length", []) == []
    assert probes.set_attr("extra", [1, 2], indices=[0, -1]) is None
    assert probes.get_attr("extra", [0, 2]) == [[1, 2], [1, 2]]
    assert not probes.has_attr("extra")
    assert probes.has_attr("length")
    assert probes.has_attr("add")
    assert probes.env_method("add", 1, b=2) == [3, 3, 3]
    assert probes.env_method("add", 1, indices=[1, 1]) == [1, 1]
    assert probes.env_is_wrapped(Plus) == [True] * N
    assert probes.env_is_wrapped(gymnasium.Wrapper, indices=0) == [True]
    assert probes.env_is_wrapped(Monitor, indices=[0, 1]) == [False, False]
    with pytest.raises(AttributeError):
        probes.get_attr("missing")
    with pytest.raises(IndexError):
        probes.get_attr("length", 3)


def test_drop_ins_pass_any_argument_on_and_raise_what_the_env_raised():
    for cls in (DummyVecEnv, SubprocVecEnv):
        envs = cls(factories())
        assert envs.env_method("add", 1, name=2) == [3, 3, 3]
        with pytest.raises(AttributeError, match="missing"):
            envs.env_method("missing")
        with pytest.raises(TypeError):
            envs.env_method("add")
        envs.close()
    envs = over_serial(factories())
    with pytest.raises(ConfigError, match="by position"):
        envs.env_method("add", 1, name=2)
    envs.close()


def test_pictures(make):
    envs = make(factories())
    envs.reset()
    assert envs.render_mode == "rgb_array"
    assert envs.metadata["render_fps"] == 7
    assert [picture.shape for picture in envs.get_images()] == [(4, 4, 3)] * N
    assert envs.render().shape == envs.render("rgb_array").shape == (8, 8, 3)
    with pytest.warns(UserWarning, match="render mode"):
        envs.render("ansi")
    envs.close()
    blind = make(factories(render_mode=None))
    with pytest.warns(UserWarning, match="rgb_array"):
        assert blind.get_images() == [None] * N
    blind.close()


def test_close_is_idempotent_and_works_in_the_midst_of_a_step(probes):
    probes.reset()
    probes.step_async(np.ones(N, int))
    probes.close()
    probes.close()
    with pytest.raises(envfleet.PoolClosedError):
        probes.step_async(np.ones(N, int))


def test_a_reset_drops_a_step_that_nobody_waited_for(probes):
    probes.reset()
    probes.step_async(np.ones(N, int))
    probes.set_options([{"a": 1}, {}, {}])
    assert (probes.reset()[:, 0] == 0).all()
    assert probes.step(np.ones(N, int))[0][:, 0].tolist() == [1, 1, 1]


def test_an_env_that_raises(make):
    envs = make(factories())
    envs.reset()
    wanted = ZeroDivisionError if make is DummyVecEnv else EnvError
    with pytest.raises(wanted, match="asked for"):
        envs.step(np.array([0, 4, 0]))
    if make is not DummyVecEnv:
        with pytest.raises(CallOrderError, match=r"env 1 raised earlier and must be reset; call .*reset\(\)"):
            envs.step(np.ones(N, int))
    envs.reset()
    assert envs.step(np.ones(N, int))[1].tolist() == [1, 1, 1]
    # An exception in a step that a reset drops is dropped with it.
    envs.step_async(np.array([0, 4, 0]))
    envs.set_options([{"a": 1}, {}, {}])
    assert (envs.reset()[:, 0] == 0).all()
    assert envs.step(np.ones(N, int))[1].tolist() == [1, 1, 1]
    envs.close()


def test_a_restarted_env_is_a_truncated_row_with_its_error():
    pool = envfleet.make_pool(factories(), backend="serial", autoreset_mode="same_step", on_error="restart")
    envs = EnvFleetVecEnv(pool)
    last = envs.reset().copy()
    last[:] = envs.step(np.ones(N, int))[0]
    _, rewards, dones, infos = envs.step(np.array([0, 4, 0]))
    assert dones.tolist() == [False, True, False]
    assert rewards[1] == 0
    assert "asked for" in infos[1]["error"]
    assert infos[1]["TimeLimit.truncated"] is True
    assert infos[1]["terminal_observation"].tolist() == last[1].tolist()
    assert "error" not in envs.reset_infos[1]
    envs.close()


@pytest.mark.parametrize(
    "make_two",
    [
        lambda: make_vec_env("CartPole-v1", 2),
        lambda: DummyVecEnv([lambda: gymnasium.make("CartPole-v1")] * 2),
    ],
    ids=["pool", "drop-in"],
)
def test_calls_in_the_wrong_order(make_two):
    envs = make_two()
    envs.reset()
    with pytest.raises(CallOrderError, match=r"step_wait\(\) expected a step in progress, got none; call step_async"):
        envs.step_wait()
    envs.step_async(np.zeros(2, np.int64))
    with pytest.raises(CallOrderError, match=r"step_async\(\) expected no step in progress, got one; call step_wait"):
        envs.step_async(np.zeros(2, np.int64))
    envs.step_wait()
    envs.close()


def test_an_info_error_of_the_env_stays_with_its_row():
    envs = make_vec_env(CountingEnv, 1, backend="serial")
    envs.reset()
    for _ in range(3):
        _, _, dones, infos = envs.step(np.zeros(1, np.int64))
    assert dones.all()
    assert infos[0]["error"] == 0.5
    assert envs.reset_infos[0]["error"] == 0.0
    envs.close()
