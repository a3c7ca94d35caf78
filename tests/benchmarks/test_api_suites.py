"""The suites on APIs and training loops: their contenders run. No times."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from harness import Options  # noqa: E402
from suites import build  # noqa: E402


@pytest.mark.parametrize("case", build("training", Options()), ids=lambda case: case.name.split(",")[0])
def test_a_training_loop_runs_on_envfleet(case) -> None:
    pytest.importorskip("stable_baselines3")
    contender = next(contender for contender in case.contenders if contender.name == "envfleet")
    subject = contender.make()
    assert subject.measure(0.01) > 0
    subject.close()
