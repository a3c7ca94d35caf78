"""check_env(): one broken env for each finding about seeds, shared state, and arrays that change."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from gymnasium import spaces
from support.check_env_probes import CleanEnv, found, only

from envfleet.testing import check_env


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
    assert "two envs with the seed 0" in seen
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
    assert seen.startswith("expected random not to be used")
