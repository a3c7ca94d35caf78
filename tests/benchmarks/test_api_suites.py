"""The suites on training loops: a contender that uses examples/ppo.py runs with it. No times."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import api_suites  # noqa: E402


def test_the_one_file_ppo_runs_on_envfleet() -> None:
    torch = pytest.importorskip("torch")
    num_threads = torch.get_num_threads()
    try:
        loop = api_suites.one_file_ppo("envfleet", num_envs=2)
        loop.run(1)
        loop.close()
    finally:
        torch.set_num_threads(num_threads)
