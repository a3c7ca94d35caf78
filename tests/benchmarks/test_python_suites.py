"""The suites of Python envs: their envs, their loops, and the processes that contenders run in. No times."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import harness  # noqa: E402
import loops  # noqa: E402
import python_envs  # noqa: E402
import python_peers  # noqa: E402
import python_suites  # noqa: E402
from harness import Options  # noqa: E402
from isolated import Isolated  # noqa: E402

FAR = """
import os, sys

class Subject:
    def __init__(self, mark):
        self.mark = mark
    def measure(self, seconds):
        print("an env that prints")
        if seconds == 1:
            raise KeyError("a bad round")
        if seconds == 2:
            os._exit(7)
        return 10 * seconds
    def close(self):
        open(self.mark, "w").close()

def make(mark):
    return Subject(mark)

def make_missing():
    import no_such_package

def make_failing():
    raise ValueError("cannot | be made")

def make_dying():
    os._exit(5)
"""


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module that the far end can import."""
    (tmp_path / "far_end.py").write_text(FAR)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("far_end", None)
    import far_end

    return far_end


def test_an_isolated_contender_measures_and_closes_in_its_process(far: Any, tmp_path: Path) -> None:
    mark = tmp_path / "closed"
    subject = Isolated(far.make, mark=str(mark))
    assert subject.measure(0.5) == 5
    with pytest.raises(RuntimeError, match="a bad round") as caught:
        subject.measure(1)
    assert type(caught.value).__name__ == "KeyError"
    assert subject.measure(0.25) == 2.5
    assert not mark.exists()
    subject.close()
    assert mark.exists()


def test_an_isolated_contender_that_dies_is_told(far: Any, tmp_path: Path) -> None:
    subject = Isolated(far.make, mark=str(tmp_path / "closed"))
    with pytest.raises(RuntimeError, match="ended with 7"):
        subject.measure(2)
    with pytest.raises(RuntimeError, match="ended with 7"):
        subject.measure(0.1)
    with pytest.raises(RuntimeError, match="ended with 7"):
        subject.close()


@pytest.mark.parametrize(
    ("maker", "error", "message"),
    [
        ("make_missing", ImportError, "no_such_package"),
        ("make_failing", RuntimeError, "cannot"),
        ("make_dying", RuntimeError, "ended with 5"),
    ],
)
def test_an_isolated_contender_that_cannot_be_made(far: Any, maker: str, error: type[Exception], message: str) -> None:
    num_open = len(os.listdir("/proc/self/fd"))
    with pytest.raises(error, match=message):
        Isolated(getattr(far, maker))
    assert len(os.listdir("/proc/self/fd")) == num_open


@pytest.mark.parametrize("name", ["image", "sleepy"])
def test_the_envs_keep_to_their_spaces(name: str) -> None:
    env = python_envs.factory_of(name)()
    assert isinstance(env, python_envs.env_of(name))
    observation, info = env.reset(seed=3)
    assert env.observation_space.contains(observation)
    assert info == {}
    after, _reward, terminated, _truncated, info = env.step(np.int64(1))
    assert env.observation_space.contains(after)
    assert (terminated, info) == (False, {})


def test_an_image_step_works_for_its_time_on_the_threads_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now_us: list[float] = [0]

    def thread_time() -> float:
        now_us[0] += 7
        return now_us[0] / 1e6

    env = python_envs.ImageEnv()
    env.reset(seed=0)
    monkeypatch.setattr(python_envs.time, "thread_time", thread_time)
    for _ in range(env._episode_steps - 1):
        assert not env.step(np.int64(0))[3]
    assert env.step(np.int64(0))[3]
    assert 200 <= now_us[0] / env._episode_steps < 200 + 3 * 7


def test_a_sleepy_step_draws_its_sleep_from_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(python_envs.time, "sleep", slept.append)
    env = python_envs.SleepyEnv()
    for _ in range(2):
        env.reset(seed=5)
        for _ in range(100):
            env.step(np.int64(0))
    assert slept[:100] == slept[100:]
    assert 0 <= min(slept) < 0.2e-3
    assert 1.8e-3 < max(slept) <= 2e-3


@pytest.mark.parametrize("space", [spaces.Discrete(4), spaces.Box(-1, 1, (3,), np.float32)])
def test_actions_are_of_the_space_and_the_same_for_all(space: spaces.Space[Any]) -> None:
    batches = loops.actions_of(space, 5)
    assert all(len(batch) == 5 and all(space.contains(action) for action in batch) for batch in batches)
    assert all(np.array_equal(a, b) for a, b in zip(batches, loops.actions_of(space, 5), strict=True))


@pytest.mark.parametrize("loop", [python_peers.gymnasium_sync, python_peers.bare_loop])
def test_loops_that_need_nothing_installed(loop: Any) -> None:
    subject = loop("CartPole-v1", 3)
    subject.run(40)  # some episodes end, so some rows are resets
    subject.close()


def test_gymnasiums_processes_run_isolated() -> None:
    subject = Isolated(python_peers.gymnasium_async, env="image", num_envs=2)
    assert subject.measure(0.02) > 0
    subject.close()


@pytest.mark.parametrize(
    ("num_envs", "num_workers", "expected"),
    [(4, 1, 1.0), (2, 2, 4 / 3), (64, 16, 1.5)],  # the larger of two uniform draws is 2/3 in the mean
)
def test_ceiling_of_workers_that_own_envs(num_envs: int, num_workers: int, expected: float) -> None:
    assert python_suites.worker_ceiling(num_envs, num_workers) == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("suite", ["sleepy", "oversubscribed", "serial_share"])
def test_a_real_run_of_envfleet_alone(suite: str) -> None:
    case = python_suites.SUITES[suite](Options())[0]
    result = harness.run_case(case, rounds=1, seconds=0.02)
    assert [(c["name"], c["status"], c.get("error")) for c in result["contenders"]] == [
        (c.name, "ok", None) for c in case.contenders
    ]
    assert "error_at_close" not in str(result)
    assert result["targets"][0]["met"] is not None
