"""Infos, limits and pictures as Gymnasium has them, on every backend."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import envfleet
import envfleet.vector

BACKENDS = ["serial", "threads", "processes"]


class Telling(gymnasium.Env):
    """Infos of every kind, some of them on some steps alone; env i ends after i + 1 steps."""

    observation_space = spaces.Discrete(100)
    action_space = spaces.Discrete(2)

    def __init__(self, length=1):
        self.length = length

    def reset(self, *, seed=None, options=None):
        self.age = 0
        return self.age, self._info()

    def step(self, action):
        self.age += 1
        return self.age, 1.0, self.age >= self.length, False, self._info()

    def _info(self):
        info = {
            "odd": self.age % 2 == 1,
            "name": np.array(f"{self.age:02}"),
            "nested": {"flag": True, "n": self.age},
            "objects": np.array([None, "x"], object),
        }
        if self.age == 2:
            info["rare"] = True
        return info


def assert_same_info(got, expected):
    own = {
        key: value for key, value in got.items() if key not in ("env_id", "_env_id", "elapsed_step", "_elapsed_step")
    }
    assert own.keys() == expected.keys()
    for key, column in expected.items():
        if isinstance(column, dict):
            assert_same_info(own[key], column)
        else:
            assert own[key].dtype.kind == column.dtype.kind, key
            np.testing.assert_array_equal(own[key], column, err_msg=key)


@pytest.mark.parametrize("backend", BACKENDS)
def test_final_infos_have_gymnasiums_dtypes(backend):
    factories = [lambda length=length: Telling(length) for length in (1, 2, 3)]
    theirs = SyncVectorEnv(factories, autoreset_mode=AutoresetMode.SAME_STEP)
    with envfleet.make(factories, backend=backend, autoreset_mode="same_step") as ours:
        ours.reset()
        theirs.reset()
        for _ in range(6):
            expected, got = theirs.step([0, 0, 0])[4], ours.step([0, 0, 0])[4]
            assert ("final_info" in got) == ("final_info" in expected)
            assert_same_info(got, expected)
    theirs.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_texts_of_partial_resets_are_empty_where_nobody_was_reset(backend):
    mask = np.array([False, True, False])
    theirs = SyncVectorEnv([Telling] * 3)
    with envfleet.make(Telling, num_envs=3, backend=backend) as ours:
        for envs in (ours, theirs):
            envs.reset()
        expected = theirs.reset(options={"reset_mask": mask})[1]
        got = ours.reset(options={"reset_mask": mask})[1]
        assert_same_info(got, expected)
        assert got["name"].tolist() == ["", "00", ""]
    theirs.close()


def test_a_native_info_that_no_row_has_is_not_there():
    pytest.importorskip("mujoco")
    options = {"num_envs": 2, "autoreset_mode": "same_step", "max_episode_steps": 2}
    theirs = SyncVectorEnv(
        [lambda: gymnasium.make("HalfCheetah-v5", max_episode_steps=2)] * 2, autoreset_mode=AutoresetMode.SAME_STEP
    )
    with envfleet.make("HalfCheetah-v5", **options) as ours:
        assert ours.pool.spec.backend == "native"
        actions = np.zeros((2, 6), np.float32)
        results = [(envs.reset(seed=0)[1], envs.step(actions)[4], envs.step(actions)[4]) for envs in (ours, theirs)]
        for got, expected in zip(*results, strict=True):
            own = {key for key in got if key.strip("_") not in ("env_id", "elapsed_step")}
            assert own == expected.keys()
            if "final_info" in expected:
                last = {key for key in got["final_info"] if key.strip("_") != "elapsed_step"}
                assert last == expected["final_info"].keys()
    theirs.close()


def test_envpool_has_every_key_always():
    pytest.importorskip("mujoco")
    from envfleet.compat import envpool

    for env_type in ("gymnasium", "dm"):
        envs = envpool.make("HalfCheetah-v4", env_type=env_type, num_envs=2)
        first = envs.reset()
        info = first[1] if env_type == "gymnasium" else first.observation._asdict()
        assert info["reward_ctrl"].tolist() == [0, 0]
        envs.close()


def test_taxis_heading_is_that_of_its_own_episode():
    """Rendered after every step, as Gymnasium's is; the second env and the second episode turn nowhere."""
    pytest.importorskip("pygame")
    south, pick_up = 0, 4
    ours = envfleet.make("Taxi-v4", num_envs=2, render_mode="rgb_array", autoreset_mode="disabled")
    ones = [gymnasium.make("Taxi-v4", render_mode="rgb_array") for _ in range(2)]
    for seed in (0, 7):
        ours.reset(seed=seed)
        for position, one in enumerate(ones):
            one.reset(seed=seed + position)
        for actions in ([2, pick_up], [pick_up, pick_up], [3, south], [pick_up, 1], [south, pick_up], [2, 3]):
            ours.step(actions)
            for frame, one, action in zip(ours.render(), ones, actions, strict=True):
                one.step(action)
                np.testing.assert_array_equal(frame, one.render())
    ours.close()


@pytest.mark.parametrize("backend", ["native", *BACKENDS])
def test_no_limit(backend):
    with envfleet.make("Pendulum-v1", num_envs=2, backend=backend, max_episode_steps=-1) as envs:
        assert envs.spec.max_episode_steps is None
        envs.reset(seed=0)
        for _ in range(205):
            _, _, _, truncated, _ = envs.step(np.zeros((2, 1), np.float32))
            assert not truncated.any()


def test_no_limit_inside_wrappers():
    options = {"num_envs": 1, "wrappers": [gymnasium.wrappers.RecordEpisodeStatistics]}
    with envfleet.make("Pendulum-v1", max_episode_steps=-1, **options) as envs:
        assert envs.spec.max_episode_steps is None
        envs.reset(seed=0)
        assert not any(envs.step(np.zeros((1, 1), np.float32))[3].any() for _ in range(205))
    with pytest.raises(envfleet.ConfigError, match="max_episode_steps expected"):
        envfleet.make("Pendulum-v1", max_episode_steps=0)
    with pytest.raises(envfleet.ConfigError, match="max_episode_steps expected"):
        envfleet.make("Pendulum-v1", max_episode_steps=-2)


# --- "Intentional differences" of docs/migrating.md ------------------------------------------------


class OptionsTold(Telling):
    def reset(self, *, seed=None, options=None):
        return super().reset()[0], {"given": repr(options)}


def test_empty_options_are_none_from_make():
    for options in ({}, {"reset_mask": np.array([True])}):
        for envs, given in (
            (SyncVectorEnv([OptionsTold]), "{}"),
            (envfleet.vector.SyncVectorEnv([OptionsTold]), "{}"),
            (envfleet.make(OptionsTold, num_envs=1), "None"),
        ):
            assert envs.reset(options=dict(options))[1]["given"].tolist() == [given]
            envs.close()


def test_attributes_that_native_envs_lack():
    with envfleet.make("CartPole-v1", num_envs=1) as envs:
        _, info = envs.reset(seed=0)
        assert info["elapsed_step"].tolist() == [0]
        for name in ("_elapsed_steps", "kinematics_integrator"):
            with pytest.raises(AttributeError, match=name):
                envs.get_attr(name)
        assert set(envs.metadata["render_modes"]) == {"human", "rgb_array"}  # as in Gymnasium
    with envfleet.make("CartPole-v1", num_envs=1, backend="serial") as envs:
        assert envs.get_attr("kinematics_integrator") == ("euler",)


def test_a_closed_sync_vector_env_stays_closed():
    envs = envfleet.vector.SyncVectorEnv([Telling])
    envs.reset()
    envs.close()
    for call in (envs.reset, lambda: envs.step([0])):
        with pytest.raises(ClosedEnvironmentError):
            call()


@pytest.mark.parametrize("backend", BACKENDS)
def test_final_observations_of_a_discrete_space(backend):
    envs = envfleet.make(Telling, num_envs=1, autoreset_mode="same_step", backend=backend)
    theirs, drop_in = (
        kind([Telling], autoreset_mode="SameStep") for kind in (SyncVectorEnv, envfleet.vector.SyncVectorEnv)
    )
    types = []
    for own in (envs, theirs, drop_in):
        own.reset()
        types.append(type(own.step(np.zeros(1, int))[4]["final_obs"][0]))
        own.close()
    assert types == [np.int64, int, int]
