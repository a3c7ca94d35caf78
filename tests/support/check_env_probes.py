"""A clean env for the tests of check_env() to break, and ways to read its report."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from envfleet.testing import EnvReport


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
