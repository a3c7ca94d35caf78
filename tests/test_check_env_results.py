"""check_env(): one broken env for each finding about spaces and what reset() and step() return."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from support.check_env_probes import CleanEnv, found, only

from envfleet.testing import check_env


@pytest.fixture
def _registered() -> Any:
    class Short(CleanEnv):
        def reset(self) -> Any:  # type: ignore[override]
            return super().reset()

    class Four(CleanEnv):
        def step(self, action: Any) -> Any:
            return super().step(action)[:4]

    gymnasium.register("CheckShort-v0", Short, max_episode_steps=5)
    gymnasium.register("CheckFour-v0", Four, max_episode_steps=5)
    yield
    del gymnasium.registry["CheckShort-v0"], gymnasium.registry["CheckFour-v0"]


@pytest.mark.usefixtures("_registered")
def test_gymnasiums_wrappers_do_not_hide_what_is_inside() -> None:
    only(check_env("CheckShort-v0"), "error", "reset() takes no seed or options")
    only(check_env("CheckFour-v0"), "error", "step() returns a wrong tuple")


def test_wrong_tuples_are_told() -> None:
    class NoInfo(CleanEnv):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return super().reset(seed=seed)[0]

    class FourTuple(CleanEnv):
        def step(self, action: Any) -> Any:
            return super().step(action)[:4]

    seen = only(check_env(NoInfo), "error", "reset() returns a wrong tuple")
    assert seen.startswith("expected (obs, info), got a ndarray")
    seen = only(check_env(FourTuple), "error", "step() returns a wrong tuple")
    assert "got a tuple of 4 values" in seen


NESTED = spaces.Dict(a=spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2, 2), np.float32)]))
MIDDLE = np.zeros((2, 2), np.float32)


@pytest.mark.parametrize(
    ("obs", "severity", "name", "seen"),
    [
        ({"b": 1}, "error", "observation of another structure", "keys ['a'], got the keys ['b']"),
        (MIDDLE, "error", "observation of another structure", "expected obs as a dict"),
        ({"a": (1,)}, "error", "observation of another structure", "obs['a'] as a tuple of 2 parts, got 1 parts"),
        ({"a": (1, MIDDLE[0])}, "error", "observation of another shape", "obs['a'][1] of shape (2, 2), got shape (2,)"),
        ({"a": (1, [[0], [1, 2]])}, "error", "observation of another shape", "got list"),
        ({"a": (1, "zero")}, "error", "observation of another shape", "got str"),
        ({"a": (1, None)}, "error", "observation of another shape", "got NoneType"),
        ({"a": (1.5, MIDDLE)}, "error", "observation of another dtype", "obs['a'][0] of dtype int64, got float64"),
        ({"a": (3, MIDDLE)}, "error", "observation outside the space", "obs['a'][0] = 3, expected from 0 to 2"),
        ({"a": (1, MIDDLE + 2)}, "error", "observation outside the space", "obs['a'][1][0][0] = 2.0, expected from"),
        ({"a": (1, MIDDLE * np.nan)}, "error", "observation is NaN", "obs['a'][1][0][0] = nan"),
        ({"a": (1, MIDDLE.astype(float))}, "warning", "observation of another dtype", "dtype float32, got float64"),
    ],
)  # fmt: skip
def test_observations_unlike_their_space_are_told(obs: Any, severity: str, name: str, seen: str) -> None:
    class Unlike(CleanEnv):
        observation_space = NESTED

        def observe(self) -> Any:
            return obs

    report = check_env(Unlike)
    assert seen in only(report, severity, name)
    assert report.findings[0].seen.startswith("reset()")
    assert report.findings[0].times > 100


def test_integers_for_a_narrower_box_are_told() -> None:
    class Wide(CleanEnv):
        observation_space = spaces.Box(0, 255, (2,), np.uint8)

        def observe(self) -> Any:
            return np.zeros(2, np.int64)

    assert "dtype uint8, got int64" in only(check_env(Wide), "error", "observation of another dtype")


def test_a_value_outside_a_custom_space_is_told() -> None:
    class Words(CleanEnv):
        observation_space = spaces.Text(3)

        def observe(self) -> Any:
            return "too long"

    assert "'too long'" in only(check_env(Words), "error", "observation outside the space")


@pytest.mark.parametrize(
    ("reward", "severity", "name"),
    [
        ("1", "error", "reward is not a number"),
        (None, "error", "reward is not a number"),
        (np.ones(1), "error", "reward is not a number"),
        (1j, "error", "reward is not a number"),
        (float("nan"), "error", "reward is NaN"),
        (np.float32("inf"), "warning", "reward is infinite"),
    ],
)
def test_rewards_that_are_no_numbers_are_told(reward: Any, severity: str, name: str) -> None:
    class Rewards(CleanEnv):
        def reward(self) -> Any:
            return reward

    only(check_env(Rewards), severity, name)


@pytest.mark.parametrize("reward", [1, True, np.float32(1), np.int8(1), np.array(1.0), np.bool_(True)])
def test_every_real_number_is_a_reward(reward: Any) -> None:
    class Rewards(CleanEnv):
        def reward(self) -> Any:
            return reward

    assert check_env(Rewards).findings == ()


@pytest.mark.parametrize(
    ("flag", "severity"), [(0, "warning"), (np.array(False), "warning"), (None, "error"), ([], "error")]
)
def test_flags_that_are_no_bools_are_told(flag: Any, severity: str) -> None:
    class Flags(CleanEnv):
        def step(self, action: Any) -> Any:
            obs, reward, _, truncated, info = super().step(action)
            return obs, reward, flag, truncated, info

    assert "expected terminated as a bool" in only(check_env(Flags), severity, "flag is not a bool")


def test_a_flag_that_cannot_be_read_is_told() -> None:
    class Flags(CleanEnv):
        def step(self, action: Any) -> Any:
            obs, reward, _, _, info = super().step(action)
            return obs, reward, np.zeros(2, bool), np.zeros(2, bool), info

    assert found(check_env(Flags)) == ["flag is not a bool", "flag is not a bool", "result cannot be read"]


def test_an_info_that_is_no_dict_is_told() -> None:
    class Infos(CleanEnv):
        def step(self, action: Any) -> Any:
            return *super().step(action)[:4], None

    assert "expected a dict, got None" in only(check_env(Infos), "error", "info is not a dict")


@pytest.mark.parametrize("name", ["observation_space", "action_space"])
def test_missing_spaces_are_told(name: str) -> None:
    class Missing(CleanEnv):
        pass

    setattr(Missing, name, None)
    assert f"expected {name} to be a gymnasium.spaces.Space" in only(check_env(Missing), "error", "spaces are missing")
    assert "got builtins.NoneType" in only(check_env(lambda: None), "error", "spaces are missing")


class OddSpace(spaces.Space[Any]):
    """Seedable, but neither batched nor sampled."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("this space holds a window")

    def contains(self, x: Any) -> bool:
        return True


def test_a_space_that_cannot_be_batched_is_told() -> None:
    class Odd(CleanEnv):
        observation_space = OddSpace()

    assert "holds a window" in only(check_env(Odd), "error", "space cannot be batched")


def test_an_action_space_that_cannot_be_sampled_is_told() -> None:
    class Unsampled(spaces.Discrete):
        def sample(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError("not yet")

    class Refusing(spaces.Discrete):
        def contains(self, x: Any) -> bool:
            return False

    class First(CleanEnv):
        action_space = Unsampled(3)

    class Second(CleanEnv):
        action_space = Refusing(3)

    assert "not yet" in only(check_env(First), "error", "action space cannot be sampled")
    assert "np.int64" in only(check_env(Second), "error", "action space refuses its own sample")
