"""The suites on training loops and tensors: their contenders run, without the peers. No times."""

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


@pytest.mark.parametrize("step", [api_suites.torch_pool_step, api_suites.pool_step, api_suites.as_tensor_step])
def test_the_steps_with_tensors_run_without_a_gpu(step) -> None:
    pytest.importorskip("torch")
    loop = step("CartPole-v1", 4, "cpu")
    assert loop.measure(0.01) > 0
    loop.close()
