"""The same calls to Gymnasium's vector environments and to envfleet's: the same results, to the last info."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode
from vector.vector_probes import RaisingEnv, TellingEnv

import envfleet.vector

# Gymnasium's AsyncVectorEnv has the results of its SyncVectorEnv, which is quicker to make.
OURS = {"sync": envfleet.vector.SyncVectorEnv, "async": envfleet.vector.AsyncVectorEnv}

SPACES = {
    "box": spaces.Box(-1, 1, (2, 3), np.float32),
    "bytes": spaces.Box(0, 255, (4, 4), np.uint8),
    "discrete": spaces.Discrete(7, start=-2),
    "multi": spaces.MultiDiscrete([3, 4]),
    "binary": spaces.MultiBinary(5),
    "text": spaces.Text(6),
    "dict": spaces.Dict(a=spaces.Box(0, 1, (2,)), b=spaces.Dict(c=spaces.Discrete(3), d=spaces.Text(4))),
    "tuple": spaces.Tuple((spaces.Discrete(3), spaces.Box(0, 1, (2,)), spaces.Tuple((spaces.MultiBinary(2),)))),
    "graph": spaces.Graph(spaces.Box(-1, 1, (2,)), spaces.Discrete(3)),
    "sequence": spaces.Sequence(spaces.Box(0, 1, (2,))),
    "one of": spaces.OneOf([spaces.Discrete(3), spaces.Box(0, 1, (2,))]),
}


@pytest.fixture(params=OURS)
def ours(request: pytest.FixtureRequest) -> Any:
    return OURS[request.param]


def pair(ours: Any, env_fns: Any, **options: Any) -> tuple[Any, Any]:
    return gymnasium.vector.SyncVectorEnv(env_fns, **options), ours(env_fns, **options)


def assert_same(theirs: Any, own: Any) -> None:
    """Equal in values, types, dtypes and keys."""
    assert data_equivalence(theirs, own, exact=True), f"Gymnasium gave {theirs}, envfleet {own}"


@pytest.mark.parametrize("mode", AutoresetMode)
def test_infos_and_ends_are_the_same(ours: Any, mode: AutoresetMode) -> None:
    lengths = [2, 3, 3, 5, 7]
    theirs, own = pair(ours, [partial(TellingEnv, length) for length in lengths], autoreset_mode=mode)
    with closing(theirs), own:
        assert_same(theirs.reset(seed=5, options={"why": "test"}), own.reset(seed=5, options={"why": "test"}))
        for step in range(20):
            actions = (np.arange(5) + step) % 5
            expected = theirs.step(actions)
            assert_same(expected, own.step(actions))
            ended = expected[2] | expected[3]
            if mode is AutoresetMode.DISABLED and ended.any():
                options = {"reset_mask": ended, "again": step}
                assert_same(theirs.reset(options=dict(options)), own.reset(options=options))
                assert "reset_mask" in options, "the caller's dict was changed"
        assert_same(theirs.reset(), own.reset())
        assert_same(theirs.reset(seed=[1, None, 3, None, 5]), own.reset(seed=[1, None, 3, None, 5]))


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("name", SPACES)
def test_every_space_is_the_same(ours: Any, name: str, mode: AutoresetMode) -> None:
    space = SPACES[name]
    theirs, own = pair(ours, [partial(TellingEnv, 3, space, space)] * 3, autoreset_mode=mode)
    with closing(theirs), own:
        assert theirs.observation_space == own.observation_space
        assert theirs.action_space == own.action_space
        assert_same(theirs.reset(seed=1), own.reset(seed=1))
        theirs.action_space.seed(3)
        for _ in range(7):
            actions = theirs.action_space.sample()
            expected, got = theirs.step(actions), own.step(actions)
            assert_same(expected[:4], got[:4])
            assert expected[4].keys() == got[4].keys()
            assert_same(expected[4].get("action"), got[4].get("action"))
            if "final_obs" in expected[4] and name not in ("discrete", "tuple", "dict"):
                # An env may return a Discrete observation as int or as numpy's; here it is always int.
                assert_same(expected[4]["final_obs"], got[4]["final_obs"])


@pytest.mark.parametrize(
    "actions",
    [
        [99, -7, 0],
        np.array([0.5, 1.5, 2.5]),
        ["left", None, {"way": "right"}],
        [np.array([1, 2]), np.array([3]), 4],
        np.array([2**40, 1, 2]),
    ],
    ids=["out of range", "floats", "objects", "several shapes", "large"],
)
def test_actions_are_passed_on_as_they_are(ours: Any, actions: Any) -> None:
    theirs, own = pair(ours, [partial(TellingEnv, 100)] * 3)
    with closing(theirs), own:
        theirs.reset(seed=1), own.reset(seed=1)
        expected, got = theirs.step(actions), own.step(actions)
        assert_same(expected[0], got[0])
        # Integers may come as numpy's.
        shown = [text.replace("np.int64(", "").rstrip(")") for text in got[4]["action"]]
        assert shown == [text.replace("np.int64(", "").rstrip(")") for text in expected[4]["action"]]
        # And the next ones are not the last ones again.
        assert_same(theirs.step(np.array([1, 2, 3])), own.step(np.array([1, 2, 3])))


def test_double_actions_are_not_rounded_to_a_single_space(ours: Any) -> None:
    action_space = spaces.Box(-1, 1, (1,), np.float32)
    actions = np.array([[0.1], [0.2]])
    theirs, own = pair(ours, [partial(TellingEnv, 5, None, action_space)] * 2)
    with closing(theirs), own:
        theirs.reset(seed=1), own.reset(seed=1)
        assert_same(theirs.step(actions), own.step(actions))


@pytest.mark.parametrize("actions", [[0, 1], [0, 1, 0, 1], np.zeros(2, int), np.zeros(4, int)])
def test_a_wrong_number_of_actions_moves_no_env(ours: Any, actions: Any) -> None:
    with ours([TellingEnv] * 3) as envs:
        envs.reset(seed=1)
        with pytest.raises(ValueError, match="expected 3 actions"):
            envs.step(actions)
        assert envs.step([0, 0, 0])[4]["count"].tolist() == [1, 1, 1]


def test_envs_may_be_stepped_before_a_reset_as_gymnasium_allows(ours: Any) -> None:
    def made_and_reset(seed: int) -> Any:
        env = TellingEnv()
        env.reset(seed=seed)
        return env

    theirs, own = pair(ours, [partial(made_and_reset, seed) for seed in (3, 4)])
    with closing(theirs), own:
        assert own.np_random_seed == theirs.np_random_seed == (3, 4)
        assert_same(theirs.step(np.array([0, 1])), own.step(np.array([0, 1])))


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Taxi-v4", "Pendulum-v1", "Blackjack-v1"])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_rollouts_of_gymnasiums_envs_are_the_same(ours: Any, env_id: str, mode: AutoresetMode) -> None:
    theirs, own = pair(ours, [partial(gymnasium.make, env_id)] * 3, autoreset_mode=mode)
    with closing(theirs), own:
        assert_same(theirs.reset(seed=11), own.reset(seed=11))
        theirs.action_space.seed(1)
        for _ in range(60):
            actions = theirs.action_space.sample()
            assert_same(theirs.step(actions), own.step(actions))


def test_calls_and_attributes_are_the_same(ours: Any) -> None:
    theirs, own = pair(ours, [partial(TellingEnv, length) for length in (2, 3)])
    with closing(theirs), own:
        assert own.call("square", 3, plus=1) == theirs.call("square", 3, plus=1) == (10, 10)
        assert own.get_attr("length") == (2, 3)
        own.set_attr("length", [7, 8])
        assert own.get_attr("length") == (7, 8)
        own.set_attr("length", 9)
        assert own.get_attr("length") == (9, 9)
        with pytest.raises(ValueError, match="equal to the number of environments"):
            own.set_attr("length", [1, 2, 3])
        with pytest.raises(AttributeError):
            theirs.get_attr("colour")
        with pytest.raises(AttributeError):
            own.get_attr("colour")
        assert own.metadata == theirs.metadata
        assert own.render_mode is theirs.render_mode
        assert own.spec is theirs.spec is None
        assert repr(own) == repr(theirs).replace("Sync", type(own).__name__[:-9])


def test_the_envs_of_a_sync_vector_env_are_at_hand() -> None:
    with OURS["sync"]([partial(TellingEnv, length) for length in (2, 3)]) as envs:
        assert [env.length for env in envs.envs] == [2, 3]
        envs.reset(seed=4)
        assert envs.np_random[1] is envs.envs[1].np_random


def test_an_env_that_raised_is_as_gymnasium_leaves_it() -> None:
    with OURS["sync"]([RaisingEnv, RaisingEnv]) as envs:
        envs.reset(seed=1)
        before = envs.envs
        with pytest.raises(LookupError, match="action 4"):
            envs.step([0, 4])
        assert envs.envs[1] is before[1]
        assert envs.step([0, 0])[4]["count"].tolist() == [2, 1]


class OddKeysEnv(TellingEnv):
    """Infos with keys that are not strings, and one that begins like a mask."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        *result, _ = super().step(action)
        return *result, {1: self.count, None: "x", ("a", 2): 0.5, "deep": {3: self.count}, "_private": self.count}


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_keys_that_are_not_strings(ours: Any, mode: AutoresetMode) -> None:
    theirs, own = pair(ours, [partial(OddKeysEnv, 2), partial(OddKeysEnv, 3)], autoreset_mode=mode)
    with closing(theirs), own:
        theirs.reset(seed=0)
        own.reset(seed=0)
        for _ in range(5):
            assert_same(theirs.step([0, 1])[4], own.step([0, 1])[4])


def test_infos_of_several_types_are_not_spoilt(ours: Any) -> None:
    """Where Gymnasium cuts floats to ints because the first env's value is an int."""
    with ours([partial(gymnasium.make, "FrozenLake-v1")] * 2) as envs:
        envs.reset(seed=0)
        kinds = {envs.step([1, 1])[4]["prob"].dtype for _ in range(20)}
        assert kinds == {np.dtype(float)}


def test_an_ended_env_is_not_stepped_where_autoreset_is_disabled() -> None:
    theirs, own = pair(OURS["sync"], [partial(TellingEnv, 1)] * 2, autoreset_mode="Disabled")
    with closing(theirs), own:
        for envs in (theirs, own):
            envs.reset(seed=1)
            envs.step([0, 0])
            with pytest.raises(AssertionError):
                envs.step([0, 0])
