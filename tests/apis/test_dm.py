"""dm_env's view."""

from __future__ import annotations

import dm_env
import gymnasium
import numpy as np
import pytest

import envfleet
from envfleet.apis.dm import make_dm_single

FIRST, MID, LAST = (int(kind) for kind in (dm_env.StepType.FIRST, dm_env.StepType.MID, dm_env.StepType.LAST))


def test_step_types_and_discounts():
    env = envfleet.make_dm("Faulty-v0", num_envs=3, max_episode_steps=3)
    step = env.reset(seed=0)
    assert isinstance(env, dm_env.Environment)
    assert step.step_type.tolist() == [FIRST] * 3
    assert step.observation.env_id.tolist() == [0, 1, 2]
    step = env.step([0, 0, 4])
    assert step.step_type.tolist() == [MID, MID, LAST]
    assert step.discount.tolist() == [1, 1, 0]
    assert env.step([0, 0, 0]).step_type.tolist() == [MID, MID, FIRST]
    step = env.step([4, 0, 0])
    assert step.step_type.tolist() == [LAST, LAST, MID]
    # Truncated alone: the episode could have gone on.
    assert step.discount.tolist() == [0, 1, 1]


def test_specs_fit_what_comes():
    env = envfleet.make_dm("Sink-v0", num_envs=2)
    step = env.reset(seed=0)
    specs = env.observation_spec()
    for key, spec in specs.obs.items():
        spec.validate(step.observation.obs[key][0])
    env.action_spec().validate(np.array([2, 3], dtype=np.int64))
    with pytest.raises(ValueError):
        env.action_spec().validate(np.array([3, 0], dtype=np.int64))
    assert envfleet.make_dm("CartPole-v1").action_spec().num_values == 2
    env.reward_spec().validate(step.reward[0])
    env.discount_spec().validate(step.discount[0])


def test_asynchronous():
    env = envfleet.make_dm("CartPole-v1", num_envs=4, batch_size=2)
    env.async_reset(seed=0)
    for _ in range(100):
        step = env.recv()
        assert len(step.reward) == 2
        env.send(np.zeros(2, dtype=np.int64), step.observation.env_id)
    assert env.is_async
    env.close()


def test_same_step_is_refused():
    with pytest.raises(envfleet.ConfigError, match="LAST and FIRST at once"):
        envfleet.make_dm("CartPole-v1", autoreset_mode="same_step")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((0.5, 0.25), [0.5, 0.25]),
        ((True, 0), [1, 0]),
        ((np.float32(0.5), np.array(0.25)), [0.5, 0.25]),
        ((0.5, None), [0.5, 1]),
        ((0.5, "x"), [0.5, 1]),
        ((0.5, 10**400), [0.5, 1]),
        (("x", "y"), [1, 1]),
        ((np.array([0.5, 0.25]),) * 2, [1, 1]),
        (({"value": 0.5},) * 2, [1, 1]),
    ],
)
def test_a_discount_in_the_info_counts_if_it_is_a_number(values, expected):
    class Discounting(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def __init__(self, discount):
            self.discount = discount

        def reset(self, *, seed=None, options=None):
            return np.zeros(1, np.float32), {}

        def step(self, action):
            return np.zeros(1, np.float32), 0.0, False, False, {"discount": self.discount}

    env_kwargs = [{"discount": value} for value in values]
    env = envfleet.make_dm(Discounting, num_envs=2, backend="serial", env_kwargs=env_kwargs)
    env.reset()
    step = env.step([0, 0])
    assert step.discount.tolist() == expected
    assert step.discount.dtype == np.float32
    assert "discount" in step.observation.info
    env.close()
    for value, wanted in zip(values, expected, strict=True):
        single = make_dm_single(Discounting, env_kwargs={"discount": value})
        assert single.reset().discount is None
        assert single.step(0).discount == wanted
        single.close()


def test_options_of_an_asynchronous_reset():
    env = envfleet.make_dm("CartPole-v1", num_envs=2)
    env.async_reset(seed=0, options={"low": 0.5, "high": 0.6})
    obs = env.recv().observation.obs
    assert ((obs >= 0.5) & (obs <= 0.6)).all()
    env.close()
