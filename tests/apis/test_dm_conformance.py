"""dm_env's own conformance tests over the single-env view, native and Python; and its specs."""

from __future__ import annotations

import dm_env
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import envfleet
from envfleet.apis.dm import DmEnv, make_dm_single, spec_of_space

absltest = pytest.importorskip("absl.testing.absltest")
pytest.importorskip("tree")
test_utils = pytest.importorskip("dm_env.test_utils")


class Nested(gymnasium.Env):
    """Dict and Tuple observations and actions; ends by itself after three steps."""

    observation_space = spaces.Dict(
        {
            "place": spaces.Box(-1, 1, (2,), np.float32),
            "heat": spaces.Box(0, 9, (), np.float64),
            "hand": spaces.Tuple((spaces.Discrete(3, start=-1), spaces.MultiBinary(2))),
            "says": spaces.Text(8),
        }
    )
    action_space = spaces.Dict({"turn": spaces.Discrete(2), "push": spaces.Box(-1, 1, (3,), np.float32)})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age = 0
        return self._observe(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.age += 1
        return self._observe(), 1.5, self.age == 3, False, {}

    def _observe(self):
        hand = (np.int64(self.age % 3 - 1), np.ones(2, np.int8))
        return {"place": np.zeros(2, np.float32), "heat": np.array(1.0), "hand": hand, "says": f"age{self.age}"}


class OfAllKinds(gymnasium.Env):
    observation_space = spaces.Graph(spaces.Box(0, 1, (2,)), None)
    action_space = spaces.Discrete(2)


def random_actions(env, count):
    rng = np.random.default_rng(0)
    for _ in range(count):
        spec = env.action_spec()
        if isinstance(spec, dict):
            yield {"turn": rng.integers(2), "push": rng.uniform(-1, 1, 3).astype(np.float32)}
        elif isinstance(spec, dm_env.specs.DiscreteArray):
            yield rng.integers(spec.num_values)
        else:
            yield rng.uniform(spec.minimum, spec.maximum).astype(spec.dtype)


class Conformance(test_utils.EnvironmentTestMixin):
    """dm_env's tests; make() is what each class below tests."""

    def make_object_under_test(self):
        return type(self).make()

    def make_action_sequence(self):
        return random_actions(self.environment, 250)


class NativeCartPole(Conformance, absltest.TestCase):
    make = staticmethod(lambda: make_dm_single("CartPole-v1", seed=0))


class NativePendulum(Conformance, absltest.TestCase):
    make = staticmethod(lambda: make_dm_single("Pendulum-v1", seed=0))


class NativeTaxi(Conformance, absltest.TestCase):
    make = staticmethod(lambda: make_dm_single("Taxi-v4", seed=0, max_episode_steps=20))


class NativeBlackjack(Conformance, absltest.TestCase):
    make = staticmethod(lambda: make_dm_single("Blackjack-v1", seed=0))


class SerialCartPole(Conformance, absltest.TestCase):
    make = staticmethod(lambda: make_dm_single("CartPole-v1", seed=0, backend="serial"))


class ProcessesAcrobot(Conformance, absltest.TestCase):
    make = staticmethod(lambda: make_dm_single("Acrobot-v1", seed=0, backend="processes", max_episode_steps=60))


class SerialNested(Conformance, absltest.TestCase):
    make = staticmethod(lambda: make_dm_single(Nested, seed=0))


def test_first_mid_last_and_discounts():
    env = make_dm_single(Nested)
    steps = [env.step(action) for action in random_actions(env, 5)]
    assert [step.step_type.name for step in steps] == ["FIRST", "MID", "MID", "LAST", "FIRST"]
    assert [step.reward for step in steps] == [None, 1.5, 1.5, 1.5, None]
    assert [step.discount for step in steps] == [None, 1.0, 1.0, 0.0, None]
    assert steps[3].observation["says"] == "age3"
    assert steps[4].observation["says"] == "age0"


@pytest.mark.parametrize("mode", ["next_step", "disabled"])
def test_an_action_that_is_ignored_may_be_anything(mode):
    env = make_dm_single("CartPole-v1", autoreset_mode=mode, max_episode_steps=1)
    assert [env.step(action).step_type.name for action in (None, 0, None, 1)] == ["FIRST", "LAST", "FIRST", "LAST"]


@pytest.mark.parametrize("backend", ["native", "serial"])
def test_a_truncated_episode_could_have_gone_on(backend):
    env = make_dm_single("Pendulum-v1", backend=backend, max_episode_steps=2)
    env.reset(seed=3)
    steps = [env.step(np.zeros(1, np.float32)) for _ in range(3)]
    assert [step.step_type.name for step in steps] == ["MID", "LAST", "FIRST"]
    assert steps[1].discount == 1.0
    env.close()


def test_it_is_the_batch_view_of_one_env():
    single, batch = make_dm_single("CartPole-v1"), envfleet.make_dm("CartPole-v1")
    assert (single.reset(seed=7).observation == batch.reset(seed=7).observation.obs[0]).all()
    for action in random_actions(single, 60):
        one, rows = single.step(action), batch.step([action])
        assert one.step_type == rows.step_type[0]
        assert (one.observation == rows.observation.obs[0]).all()
        if not one.first():
            assert (one.reward, one.discount) == (rows.reward[0], rows.discount[0])


def test_specs_have_names_bounds_and_dtypes():
    env = make_dm_single("CartPole-v1")
    assert env.action_spec() == dm_env.specs.DiscreteArray(2, np.int64, "action")
    spec = env.observation_spec()
    assert (spec.name, spec.shape, spec.dtype) == ("obs", (4,), np.float32)
    assert (spec.maximum == envfleet.make_spec("CartPole-v1").observation_space.high).all()
    nested = make_dm_single(Nested).observation_spec()
    assert [nested[key].name for key in ("place", "heat", "says")] == ["place", "heat", "says"]
    assert [part.name for part in nested["hand"]] == ["hand_0", "hand_1"]
    assert (nested["hand"][0].minimum, nested["hand"][0].maximum) == (-1, 1)
    few = spec_of_space(spaces.MultiDiscrete([2, 3], dtype=np.int32, start=[1, 2]), "few")
    assert few.dtype == np.int32
    assert (few.minimum.tolist(), few.maximum.tolist()) == ([1, 2], [2, 4])


def test_what_a_single_env_cannot_be():
    with pytest.raises(envfleet.ConfigError, match="num_envs=1, got 2"):
        make_dm_single("CartPole-v1", num_envs=2)
    with envfleet.make_pool("CartPole-v1", num_envs=3) as pool, pytest.raises(envfleet.ConfigError, match="got 3"):
        DmEnv(pool)
    with pytest.raises(envfleet.ConfigError, match="LAST and FIRST at once"):
        make_dm_single("CartPole-v1", autoreset_mode="same_step")
    with pytest.raises(envfleet.ConfigError, match=r"Graph.*use envfleet\.make"):
        make_dm_single(OfAllKinds)
