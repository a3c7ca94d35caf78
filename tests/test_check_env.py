"""check_env(): what it takes, clean envs that pass, and its report. What it finds is in test_check_env_*.py."""

from __future__ import annotations

import copy
import functools
import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from support.check_env_probes import CleanEnv, only

from envfleet.testing import EnvCheckError, check_env


@pytest.mark.parametrize("env_id", ["CartPole-v1", "FrozenLake-v1", "Pendulum-v1", "Taxi-v4", "Blackjack-v1"])
def test_gymnasiums_envs_are_clean(env_id: str) -> None:
    report = check_env(gymnasium.spec(env_id), strict=True)
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
    assert text.index("error: reward is not a number") < text.index("warning: observation of another dtype")
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


def test_what_no_check_foresees_is_in_the_report_too() -> None:
    class Property(CleanEnv):
        @property
        def observation_space(self) -> Any:  # type: ignore[override]
            raise ZeroDivisionError("no size yet")

    assert "no size yet" in only(check_env(Property), "error", "env cannot be examined")
