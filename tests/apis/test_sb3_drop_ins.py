"""DummyVecEnv and SubprocVecEnv in the place of Stable-Baselines3's: what they take that pools do not."""

from __future__ import annotations

from contextlib import closing

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from sb3_probes import N, Plus, Probe, factories

from envfleet.core.errors import ConfigError

pytest.importorskip("stable_baselines3")

from stable_baselines3.common import vec_env as sb3

from envfleet.apis.sb3 import DummyVecEnv, SubprocVecEnv


def test_drop_ins_are_what_code_asks_for():
    ours = DummyVecEnv(factories())
    assert isinstance(ours, sb3.DummyVecEnv)
    assert isinstance(ours.envs[0], Plus)
    assert ours.step(np.ones(N, int))[1].tolist() == [1, 1, 1]  # nobody has reset it
    ours.close()
    ours = SubprocVecEnv(factories(), "fork", num_workers=1)
    assert isinstance(ours, sb3.SubprocVecEnv)
    assert not ours.waiting
    assert not ours.closed
    ours.reset()
    ours.step_async([1, 1, 1])
    assert ours.waiting
    ours.step_wait()
    ours.close()
    assert ours.closed


@pytest.mark.parametrize("cls", [DummyVecEnv, SubprocVecEnv])
def test_drop_ins_take_actions_outside_the_space(cls):
    with closing(cls(factories())) as envs:
        envs.reset()
        assert envs.step(np.array([7, 1, -3]))[1].tolist() == [7, 1, -3]
        assert envs.step([1.5, 1, 0])[1].tolist() == [1.5, 1, 0]
        with pytest.raises(ValueError, match="3 actions"):
            envs.step(np.ones(2, int))
        if cls is DummyVecEnv:
            assert envs.step(np.ones(5, int))[1].tolist() == [1, 1, 1]
        else:
            with pytest.raises(ValueError, match="3 actions"):
                envs.step(np.ones(5, int))


@pytest.mark.parametrize("cls", [DummyVecEnv, SubprocVecEnv])
def test_drop_ins_take_envs_whose_bounds_differ(cls):
    def narrow():
        env = Probe()
        env.observation_space = spaces.Box(-1, 50, (2,), np.float32)
        return env

    with closing(cls([Probe, narrow])) as envs:
        assert envs.observation_space.high.max() == 100
        assert envs.reset().shape == (2, 2)


def test_bad_factories_say_so():
    env = Probe()
    with pytest.raises(ValueError, match="same instance twice"):
        DummyVecEnv([lambda: env] * 2)
    for cls in (DummyVecEnv, SubprocVecEnv):
        for wrong in ([], [Probe()]):
            with pytest.raises(ConfigError, match="list of functions"):
                cls(wrong)
    with pytest.raises(ValueError, match="cannot find context"):
        SubprocVecEnv(factories(), start_method="telepathy")


class NestedDict(gymnasium.Env):
    observation_space = spaces.Dict({"hand": spaces.Dict({"card": spaces.Discrete(2)})})
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return {"hand": {"card": 0}}, {}


def test_a_dict_within_a_dict_is_refused_as_by_sb3():
    for vec_env_class in (sb3.DummyVecEnv, DummyVecEnv):
        with pytest.raises(NotImplementedError, match="Nested observation spaces are not supported"):
            vec_env_class([NestedDict])
