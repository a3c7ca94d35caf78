"""check_env(): one broken env for each finding, and clean ones that pass."""

from __future__ import annotations

import copy
import functools
import pickle
import random
import sys
import threading
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from envfleet.testing import EnvCheckError, EnvReport, check_env


class CleanEnv(gymnasium.Env[Any, Any]):
    """A walk with seeded noise. Each broken env below changes one thing."""

    observation_space: Any = spaces.Box(-100.0, 100.0, (2,), np.float32)
    action_space: Any = spaces.Discrete(3)

    def __init__(self, length: int = 10) -> None:
        self.length = length

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        self.place = np.zeros(2, np.float32)
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        self.place = self.place + np.float32(action) + self.noise()
        return self.observe(), self.reward(), self.place[0] > 15, self.count >= self.length, {}

    def noise(self) -> Any:
        return self.np_random.normal(size=2).astype(np.float32)

    def observe(self) -> Any:
        return self.place.copy()

    def reward(self) -> Any:
        return float(self.place[0])


def found(report: EnvReport, severity: str = "error") -> list[str]:
    """The names of the findings of one severity."""
    return [finding.name for finding in report.findings if finding.severity == severity]


def only(report: EnvReport, severity: str, name: str) -> str:
    """What the one finding saw; it must be the only one, and bring a remedy."""
    assert [(f.severity, f.name) for f in report.findings] == [(severity, name)], str(report)
    assert report.findings[0].remedy
    assert report.ok is (severity == "warning")
    return report.findings[0].seen


@pytest.mark.parametrize("env_id", ["CartPole-v1", "FrozenLake-v1", "Pendulum-v1", "Taxi-v4", "Blackjack-v1"])
def test_gymnasiums_envs_are_clean(env_id: str) -> None:
    report = check_env(env_id, strict=True)
    assert report.ok
    assert report.findings == ()
    assert report.notes == ()


@pytest.mark.parametrize("env", [CleanEnv, lambda: CleanEnv(5), functools.partial(CleanEnv, 3)])
def test_classes_and_factories_are_taken(env: Any) -> None:
    assert check_env(env).findings == ()


def test_env_kwargs_reach_the_env() -> None:
    assert check_env(CleanEnv, env_kwargs={"length": 2}).findings == ()
    assert check_env("FrozenLake-v1", env_kwargs={"map_name": "8x8"}).findings == ()
    assert "size" in only(check_env(CleanEnv, env_kwargs={"size": 2}), "error", "constructor raises")


def test_every_space_is_taken() -> None:
    everything = spaces.Dict(
        box=spaces.Box(0, 255, (3, 4), np.uint8),
        pair=spaces.Tuple([spaces.Discrete(4, start=-2), spaces.Dict(a=spaces.MultiBinary(3))]),
        many=spaces.MultiDiscrete([2, 5]),
        text=spaces.Text(4),
        graph=spaces.Graph(spaces.Box(0, 1, (2,)), None),
        list=spaces.Sequence(spaces.Discrete(3)),
        scalar=spaces.Box(0.0, 1.0, ()),
    )

    class Everything(CleanEnv):
        observation_space = everything
        action_space = everything

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.observation_space = copy.deepcopy(everything)
            self.observation_space.seed(seed)
            return super().reset(seed=seed)

        def step(self, action: Any) -> Any:
            return self.observe(), 0, False, np.bool_(False), {}

        def observe(self) -> Any:
            return self.observation_space.sample()

    assert check_env(Everything, num_steps=20).findings == ()


@pytest.mark.parametrize("env", [CleanEnv(), 3, [CleanEnv], None])
def test_what_is_no_factory_is_told(env: Any) -> None:
    assert "expected an id, a class or a callable" in only(check_env(env), "error", "not a factory")


def test_an_unknown_id_is_told() -> None:
    assert "NoSuchEnv" in only(check_env("NoSuchEnv-v0"), "error", "unknown id")


def test_a_factory_that_cannot_be_pickled_names_the_culprit() -> None:
    class Settings:
        def __init__(self) -> None:
            self.length = 5
            self.guard = threading.Lock()

    settings = Settings()
    seen = only(check_env(lambda: CleanEnv(settings.length)), "error", "factory cannot be pickled")
    assert "the factory's variable 'settings'.guard (of type lock)" in seen

    seen = only(
        check_env(functools.partial(lambda length: CleanEnv(), threading.Lock())), "error", "factory cannot be pickled"
    )
    assert "the factory's arguments[0]" in seen

    env = functools.partial(lambda **_: CleanEnv())
    seen = only(check_env(env, env_kwargs={"guard": threading.Lock()}), "error", "factory cannot be pickled")
    assert "env_kwargs['guard']" in seen


def test_a_factory_that_cannot_be_unpickled_is_told() -> None:
    class OneWay:
        def __reduce__(self) -> Any:
            return int, ("no number",)

    one_way = OneWay()

    def factory() -> Any:
        return CleanEnv() if one_way else None

    assert "unpickled" in only(check_env(factory), "error", "factory cannot be pickled")


def test_the_same_env_twice_is_told() -> None:
    env = CleanEnv()
    assert "CleanEnv" in only(check_env(lambda: env), "error", "factory returns the same env twice")
    report = check_env(lambda: gymnasium.wrappers.TimeLimit(env, 5))
    only(report, "error", "factory returns the same env twice")


def test_a_constructor_that_raises_is_told() -> None:
    class Raises(CleanEnv):
        def __init__(self) -> None:
            raise OSError("no display")

    assert "OSError: no display (in __init__(), " in only(check_env(Raises), "error", "constructor raises")


def test_a_second_env_that_cannot_be_made_is_told() -> None:
    made: list[int] = []

    def factory() -> Any:
        made.append(1)
        if len(made) > 1:
            raise OSError("port in use")
        return CleanEnv()

    report = check_env(factory)
    assert "expected a second env, got OSError: port in use" in only(report, "error", "constructor raises")
    assert "port" in report.findings[0].remedy


class ExitsInStep(CleanEnv):
    def step(self, action: Any) -> Any:
        sys.exit(3)


class RaisesInReset(CleanEnv):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        raise RuntimeError("no map")


class RaisesOddly(CleanEnv):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        class OddError(Exception):
            def __str__(self) -> str:
                raise ValueError

        raise OddError


@pytest.mark.parametrize(
    ("env", "name", "seen"),
    [
        (ExitsInStep, "step() raises", "SystemExit: 3"),
        (RaisesInReset, "reset() raises", "RuntimeError: no map"),
        (RaisesOddly, "reset() raises", "OddError"),
    ],
)
def test_methods_that_raise_are_told(env: Any, name: str, seen: str) -> None:
    assert seen in only(check_env(env), "error", name)


def test_the_action_that_made_it_raise_is_told() -> None:
    class Refuses(CleanEnv):
        def step(self, action: Any) -> Any:
            if action == 2:
                raise ValueError("unknown action")
            return super().step(action)

    assert "for the action np.int64(2)" in only(check_env(Refuses), "error", "step() raises")


def test_a_reset_without_keywords_is_told_and_the_rest_still_checked() -> None:
    class NoOptions(CleanEnv):
        def reset(self, *, seed: int | None = None) -> Any:  # type: ignore[override]
            return super().reset(seed=seed)

    seen = only(check_env(NoOptions), "error", "reset() takes no seed or options")
    assert seen.endswith("without options")

    class Neither(CleanEnv):
        def reset(self) -> Any:  # type: ignore[override]
            return super().reset()

    report = check_env(Neither)
    assert found(report) == ["reset() takes no seed or options", "unseeded randomness"]
    assert "without options and seed" in report.findings[0].seen


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
        ({"a": (1, MIDDLE * np.nan)}, "error", "observation outside the space", "obs['a'][1][0][0] = nan"),
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
        ("1", "error", "reward is no number"),
        (None, "error", "reward is no number"),
        (np.ones(1), "error", "reward is no number"),
        (1j, "error", "reward is no number"),
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

    assert "expected terminated as a bool" in only(check_env(Flags), severity, "flag is no bool")


def test_a_flag_that_cannot_be_read_is_told() -> None:
    class Flags(CleanEnv):
        def step(self, action: Any) -> Any:
            obs, reward, _, _, info = super().step(action)
            return obs, reward, np.zeros(2, bool), np.zeros(2, bool), info

    assert found(check_env(Flags)) == ["flag is no bool", "flag is no bool", "result cannot be read"]


def test_an_info_that_is_no_dict_is_told() -> None:
    class Infos(CleanEnv):
        def step(self, action: Any) -> Any:
            return *super().step(action)[:4], None

    assert "expected a dict, got None" in only(check_env(Infos), "error", "info is no dict")


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


def test_unseeded_randomness_is_told() -> None:
    class Unseeded(CleanEnv):
        def noise(self) -> Any:
            return np.random.default_rng().normal(size=2).astype(np.float32)

    seen = only(check_env(Unseeded), "error", "unseeded randomness")
    assert "the observation in row 1" in seen

    class AtReset(CleanEnv):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.place = np.random.default_rng().normal(size=2).astype(np.float32)
            return self.observe(), {}

    assert "the observation of the first reset()" in only(check_env(AtReset), "error", "unseeded randomness")


def test_a_count_of_instances_is_no_shared_state() -> None:
    class Counted(CleanEnv):
        made = 0

        def __init__(self) -> None:
            super().__init__()
            type(self).made += 1

        def noise(self) -> Any:
            return np.random.default_rng().normal(size=2).astype(np.float32)

    only(check_env(Counted), "error", "unseeded randomness")


def test_a_seed_that_does_not_start_over_is_told() -> None:
    class OnlyOnce(CleanEnv):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return super().reset(seed=None if hasattr(self, "count") else seed)

    only(check_env(OnlyOnce), "error", "reset(seed) does not start over")


def test_state_in_the_class_is_told_by_name() -> None:
    class Shared(CleanEnv):
        total = 0

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            type(self).total = 0
            return super().reset(seed=seed)

        def reward(self) -> float:
            type(self).total += 1
            return float(self.total)

    seen = only(check_env(Shared), "error", "envs share state")
    assert "an env alone and beside another" in seen
    assert "Shared.total" in seen


_STEPS_OF_ALL = [0]


def test_state_in_the_module_is_told_by_name() -> None:
    class Shared(CleanEnv):
        def reward(self) -> float:
            _STEPS_OF_ALL[0] += 1
            return float(_STEPS_OF_ALL[0])

    seen = only(check_env(Shared), "error", "envs share state")
    assert "two envs of the seed 0" in seen
    assert "_STEPS_OF_ALL" in seen


def test_a_reused_observation_array_is_told() -> None:
    class Reuses(CleanEnv):
        def __init__(self) -> None:
            super().__init__()
            self.buffer = np.zeros(2, np.float32)

        def observe(self) -> Any:
            self.buffer[:] = self.place
            return self.buffer

    report = check_env(Reuses)
    only(report, "warning", "reuses its observation array")
    assert "copy()" in report.findings[0].remedy


def test_a_changed_action_is_told() -> None:
    class Clips(CleanEnv):
        action_space = spaces.Box(-1, 1, (2,), np.float32)

        def step(self, action: Any) -> Any:
            action *= 0.5
            return super().step(action[0])

    only(check_env(Clips), "warning", "changes its action")


def test_global_generators_are_told_and_put_back() -> None:
    class SeedsNumpy(CleanEnv):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            if seed is not None:
                np.random.seed(seed)
            return super().reset(seed=seed)

        def noise(self) -> Any:
            return np.random.normal(size=2).astype(np.float32)

    np.random.seed(5)
    report = check_env(SeedsNumpy)
    after = np.random.random()
    np.random.seed(5)
    assert np.random.random() == after
    assert found(report) == ["envs share state"]
    assert "numpy.random" in report.errors[0].seen
    assert found(report, "warning") == ["uses a global random generator"]

    class DrawsIdly(CleanEnv):
        def noise(self) -> Any:
            random.random()
            return super().noise()

    seen = only(check_env(DrawsIdly), "warning", "uses a global random generator")
    assert seen.startswith("expected random to be left alone")


def test_a_close_that_raises_is_told() -> None:
    class Closes(CleanEnv):
        def close(self) -> None:
            raise RuntimeError("window is gone")

    report = check_env(Closes)
    assert "window is gone" in only(report, "error", "close() raises")


def test_what_no_check_foresees_is_in_the_report_too() -> None:
    class Property(CleanEnv):
        @property
        def observation_space(self) -> Any:  # type: ignore[override]
            raise ZeroDivisionError("no size yet")

    assert "no size yet" in only(check_env(Property), "error", "env cannot be examined")


class OldEnv:
    """gym 0.21."""

    observation_space = spaces.Discrete(9)
    action_space = spaces.Discrete(2)

    def seed(self, seed: int | None = None) -> None:
        self.rng = np.random.RandomState(seed)

    def reset(self) -> Any:
        return self.rng.randint(9)

    def step(self, action: Any) -> Any:
        return self.rng.randint(9), 1.0, self.rng.rand() < 0.1, {}


def test_old_envs_are_checked_through_their_adapter() -> None:
    report = check_env(OldEnv)
    assert report.findings == ()
    assert "gym API" in report.notes[0]
    assert "note:" in str(report)


def test_classes_of_the_envpool_protocol_get_their_id() -> None:
    class Protocol:
        observation_space = spaces.Discrete(9)
        action_space = spaces.Discrete(2)

        def __init__(self, envid: str) -> None:
            assert envid == "Protocol"

        def _reset_envpool(self) -> None:
            self.count = 0

        def _step_envpool(self, act: Any) -> None:
            self.count += 1

        def _make_obs_envpool(self) -> Any:
            return self.count

        def _reward_envpool(self) -> float:
            return 1.0

        def _done_envpool(self) -> bool:
            return self.count >= 8

    report = check_env(Protocol)
    assert report.findings == ()
    assert "envpool_wrapper API" in report.notes[0]


def test_an_env_without_gymnasiums_base_is_checked() -> None:
    class Duck:
        observation_space = spaces.Discrete(9)
        action_space = spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return 0, {}

        def step(self, action: Any) -> Any:
            return 1, 0.0, False, False, {}

    assert check_env(Duck).findings == ()


def test_the_report_reads_and_raises() -> None:
    class Bad(CleanEnv):
        def step(self, action: Any) -> Any:
            obs, _, _, truncated, info = super().step(action)
            return obs.astype(float), None, False, truncated, info

    report = check_env(Bad)
    text = str(report)
    assert text.splitlines()[0].endswith("Bad): 1 error, 1 warning")
    assert text.index("error: reward is no number") < text.index("warning: observation of another dtype")
    assert text.count("remedy:") == 2
    with pytest.raises(EnvCheckError) as raised:
        check_env(Bad, strict=True)
    assert str(raised.value) == str(raised.value.report)
    assert pickle.loads(pickle.dumps(raised.value)).report == raised.value.report


def test_interrupts_reach_the_caller() -> None:
    class Interrupted(CleanEnv):
        def step(self, action: Any) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check_env(Interrupted)
