"""tune(): what it measures, what it concludes from the figures, and what it does with envs that do not fit.

Pools are real. Where a conclusion is tested the figures are not: machines are noisy.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import envfleet
from envfleet import _native
from envfleet.building.builders import builders_for
from envfleet.core.errors import ConfigError, EnvError, EnvfleetError, RecvTimeout, WorkerDied
from envfleet.core.options import pool_options
from envfleet.tuning import Case, Tuning, candidates, search
from envfleet.tuning import probe as probe_module
from envfleet.tuning.probe import Probe, probe
from envfleet.tuning.throughput import RandomStepper

WORKING = Probe(1e-4, 1e-5, 1e-5, 1.0)
WAITING = Probe(1e-4, 1e-5, 1e-3, 0.02)


class Env(gymnasium.Env[Any, Any]):
    """Steps in as much time as it is told, working or sleeping."""

    observation_space = spaces.Discrete(2)
    action_space = spaces.Discrete(2)

    def __init__(self, sleep_s: float = 0.0, trouble: str = "") -> None:
        self.sleep_s, self.trouble = sleep_s, trouble

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return 0, {}

    def step(self, action: Any) -> Any:
        if self.trouble == "raises":
            raise RuntimeError("joint 3 exploded")
        if self.trouble == "exits":
            os._exit(3)
        if self.sleep_s:
            time.sleep(self.sleep_s)
        return 0, 0.0, False, False, {}


class RareFaultEnv(Env):
    """Raises at every tenth step, or at its first ones."""

    def __init__(self, at_once: bool = False) -> None:
        super().__init__()
        self.at_once, self.count = at_once, 0

    def step(self, action: Any) -> Any:
        self.count += 1
        if self.at_once or self.count == 10:
            raise RuntimeError("joint 3 exploded")
        return super().step(action)


class NestedEnv(Env):
    action_space = spaces.Dict(push=spaces.Box(-1, 1, (2,), np.float32), word=spaces.Text(3))  # type: ignore[assignment]

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        return super().step(action)


def scripted(monkeypatch: pytest.MonkeyPatch, rate: Callable[[str, int, bool], float]) -> None:
    """Figures by backend, workers and whether the pool is asynchronous."""

    def measure(driver: RandomStepper, seconds: float) -> float:
        config = driver.pool.config
        driver.start()
        driver.step()
        workers = config.num_workers
        return rate(driver.pool.spec.backend, workers, config.is_async)

    monkeypatch.setattr(search, "measure", measure)


# --- a whole run -------------------------------------------------------------------------------


@pytest.fixture
def patient_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget that waiting for a busy machine does not use up: only this process's own work counts."""
    started = time.process_time()
    monkeypatch.setattr(search._Search, "_used_s", lambda _: time.process_time() - started)


@pytest.mark.usefixtures("patient_budget")
def test_a_python_env_is_measured_on_every_backend() -> None:
    result = envfleet.tune("CartPole-v1", num_envs=4, seconds=3, backends=["serial", "threads", "processes"])
    measured = [case for case in result.cases if case.was_measured]
    assert {case.backend for case in measured} == {"serial", "threads", "processes"}
    assert {case.mode for case in measured} == {"sync", "async"}
    assert all(case.median > 0 and case.spread[0] <= 0 <= case.spread[1] for case in measured)
    medians = [case.median for case in measured]
    assert medians == sorted(medians, reverse=True)
    assert result.best["num_envs"] == 4
    with envfleet.make("CartPole-v1", **result.best) as envs:
        envs.reset()
    text = str(result)
    assert text.splitlines()[-1] == f"best: {result.make_line}"
    assert result.make_line.startswith("envfleet.make('CartPole-v1', backend=")
    assert sum(line.startswith(("serial", "threads", "processes")) for line in text.splitlines()) == len(result.cases)


def test_a_native_env_is_measured_by_threads_and_batch_sizes() -> None:
    result = envfleet.tune("CartPole-v1", seconds=1)
    assert {case.backend for case in result.cases} == {"native"}
    assert {case.batch_size for case in result.cases} == {1024, 512, 256}
    assert {case.num_workers for case in result.cases} >= {1}
    assert result.best.keys() >= {"backend", "num_envs", "num_workers"}
    with envfleet.make("CartPole-v1", **result.best) as envs:
        envs.reset()


def test_an_env_that_waits_gets_more_workers_than_cores() -> None:
    result = envfleet.tune(Env, sleep_s=0.004, num_envs=32, seconds=8, backends=["processes"], batch_sizes=32)
    assert max(case.num_workers for case in result.cases) > _native.usable_cores()
    assert result.best["num_workers"] > _native.usable_cores()
    assert result.best["sleep_s"] == 0.004
    assert any("waiting" in note for note in result.notes)


@pytest.mark.usefixtures("patient_budget")
def test_actions_of_parts() -> None:
    result = envfleet.tune(NestedEnv, num_envs=3, seconds=8, backends=["serial", "processes"], num_workers=1)
    assert [case.error for case in result.cases] == [None] * 3  # serial, and processes with batches of 3 and 1


def test_what_was_given_is_in_the_best() -> None:
    factories = [Env, lambda: Env(), Env]
    result = envfleet.tune(
        factories, seconds=0.5, backends="serial", wrappers=[gymnasium.wrappers.RecordEpisodeStatistics]
    )
    assert result.best["num_envs"] == 3
    assert result.best["wrappers"] == [gymnasium.wrappers.RecordEpisodeStatistics]
    assert result.make_line.startswith("envfleet.make(env, backend='serial', num_envs=3, wrappers=")
    per_env = [{"sleep_s": 0.0}, {"sleep_s": 1e-4}]
    assert envfleet.tune(Env, seconds=0.5, backends="serial", env_kwargs=per_env).best["env_kwargs"] == per_env


def test_several_numbers_of_envs() -> None:
    result = envfleet.tune(Env, seconds=1, backends=["serial"], num_envs=[2, 4])
    assert sorted(case.num_envs for case in result.cases) == [2, 4]
    assert sum(note.startswith("best of") for note in result.notes) == 2


def test_progress_is_told() -> None:
    told: list[tuple[float, str]] = []
    envfleet.tune(Env, seconds=0.5, backends="serial", progress=lambda part, what: told.append((part, what)))
    assert {what for _, what in told} == {"probing one env", "serial"}
    assert all(0 <= part <= 1 for part, _ in told)


# --- conclusions -------------------------------------------------------------------------------


def test_the_fastest_is_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = {"serial": 100.0, "threads": 50.0, "processes": 200.0}
    scripted(monkeypatch, lambda backend, workers, is_async: figures[backend] * workers * (1.5 if is_async else 1))
    result = envfleet.tune(Env, num_envs=8, seconds=60, num_workers=[1, 2], batch_sizes=[8, 4])
    assert result.best == {"backend": "processes", "num_envs": 8, "num_workers": 2, "batch_size": 4}
    assert any("asynchronous" in note for note in result.notes)


def test_as_good_within_the_noise_the_simpler_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, lambda _, workers, is_async: 100 + workers + 0.5 * is_async)
    result = envfleet.tune(Env, num_envs=8, seconds=60, num_workers=[1, 2], backends=["processes"])
    assert result.best == {"backend": "processes", "num_envs": 8, "num_workers": 1}
    assert any("and simpler" in note for note in result.notes)


def test_seconds_may_be_numpys() -> None:
    assert envfleet.tune(Env, seconds=np.float32(0.5), num_envs=np.int64(2), backends=["serial"]).best["num_envs"] == 2


# --- the candidates ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cores", "num_envs", "waits", "counts"),
    [
        (1, 64, False, [1]),
        (2, 64, False, [1, 2]),
        (6, 64, False, [1, 2, 4, 6]),
        (8, 3, False, [1, 2]),
        (2, 64, True, [1, 2, 4, 8, 16]),
        (16, 256, True, [1, 2, 4, 8, 16, 32, 64]),
        (96, 256, True, [1, 2, 4, 8, 16, 32, 64, 96]),
    ],
)
def test_worker_counts(cores: int, num_envs: int, waits: bool, counts: list[int]) -> None:
    assert candidates.worker_counts(cores, num_envs, waits) == counts


def test_slow_envs_come_in_smaller_numbers() -> None:
    assert candidates.default_num_envs(WORKING, 2, 20.0) == 64
    assert candidates.default_num_envs(Probe(1e-3, 0.0, 0.1, 1.0), 2, 20.0) == 8
    assert candidates.default_num_envs(Probe(1.0, 0.0, 1e-5, 1.0), 2, 20.0) == 4
    assert candidates.default_num_envs(None, 2, 20.0) == 1024


def test_expected_time_counts_cores_for_work_and_workers_for_waiting() -> None:
    case = Case("processes", 64, 64, 16)
    working = candidates.expected_s(case, WORKING, 2)
    assert working == pytest.approx(candidates.expected_s(Case("processes", 64, 64, 2), WORKING, 2))
    assert candidates.expected_s(case, WAITING, 2) < candidates.expected_s(Case("threads", 64, 64, 2), WAITING, 2)


# --- the probe and the table ---------------------------------------------------------------------


class SpinningEnv(Env):
    """Computes for longer than a scheduler leaves a busy core to one process."""

    def step(self, action: Any) -> Any:
        ends_at = time.process_time() + 0.01
        while time.process_time() < ends_at:
            pass
        return super().step(action)


@pytest.mark.parametrize("at_once", [False, True])
def test_an_env_that_raises_now_and_then_is_measured_if_on_error_restarts_it(at_once: bool) -> None:
    options: dict[str, Any] = {"at_once": at_once, "seconds": 2, "num_envs": 2, "backends": ["serial", "processes"]}
    result = envfleet.tune(RareFaultEnv, on_error="restart", max_restarts=1 << 30, **options)
    assert {case.backend for case in result.cases if case.was_measured} == {"serial", "processes"}
    with pytest.raises(EnvError, match="joint 3 exploded"):
        envfleet.tune(RareFaultEnv, **options)


def test_an_env_that_shares_its_core_does_not_wait() -> None:
    parsed = pool_options()
    builders = builders_for(SpinningEnv, 1, [{}], (), None, None)
    cores = os.sched_getaffinity(0)
    spin = [sys.executable, "-c", "print('started', flush=True)\nwhile True: pass"]
    with ExitStack() as stack:
        stack.callback(os.sched_setaffinity, 0, cores)
        os.sched_setaffinity(0, {min(cores)})
        for _ in range(3):
            other = stack.enter_context(subprocess.Popen(spin, stdout=subprocess.PIPE))
            stack.callback(other.kill)
            assert other.stdout is not None
            other.stdout.readline()
        probed = probe(builders, parsed.config, in_worker=False, limit_s=60)
    assert not probed.waits


def test_steps_during_which_the_core_was_taken_say_nothing_about_waiting() -> None:
    env = probe_module._TimedEnv(Env(), build_s=0.0)
    env.reset()
    env.add_step(wall_s=0.04, cpu_s=0.01, num_preemptions=2)
    assert env.envfleet_probe.cpu_share == 1.0  # unknown
    env.add_step(wall_s=0.01, cpu_s=0.001, num_preemptions=0)
    assert env.envfleet_probe.cpu_share == pytest.approx(0.1)
    assert env.envfleet_probe.step_s == pytest.approx(0.025)


def test_a_native_env_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "process_time", lambda: 0.0)  # as if another process had every core
    result = envfleet.tune("CartPole-v1", seconds=1)
    assert not any("waiting" in note for note in result.notes)
    assert max(case.num_workers for case in result.cases) <= _native.usable_cores()


def test_a_probe_that_uses_up_the_time_is_told() -> None:
    with pytest.raises(
        EnvfleetError, match=r"within 0\.1 s, but probing one env took .*; pass seconds=\d+, or --seconds \d+ on the"
    ):
        envfleet.tune(Env, seconds=0.1, backends="serial", num_envs=2)


def test_rows_without_figures_are_aligned() -> None:
    measured = Case("serial", 4, 4, 1, [1e6, 2e6])
    skipped = Case("processes", 1024, 512, 16, error="skipped: the time was used up")
    lines = str(Tuning("'CartPole-v1'", {}, (measured, skipped), ())).splitlines()[2:5]
    header, first, second = lines
    for name, cells in {"num_envs": ("4", "1,024"), "batch_size": ("4", "512"), "workers": ("1", "16")}.items():
        end = header.index(name) + len(name)
        assert [line[:end].split()[-1] for line in (first, second)] == list(cells)
    assert first.index("sync") == second.index("async") == header.index("mode")
    assert second.index("skipped") == header.index("workers") + len("workers") + 2


# --- envs that do not fit --------------------------------------------------------------------------


def test_a_case_that_fails_is_listed() -> None:
    lock = threading.Lock()

    def cannot_travel() -> Env:
        with lock:
            return Env()

    result = envfleet.tune(cannot_travel, num_envs=2, seconds=1, backends=["serial", "processes"])
    assert result.best == {"backend": "serial", "num_envs": 2}
    failed = [case for case in result.cases if not case.was_measured]
    assert failed
    assert all(case.backend == "processes" and "cloudpickle" in (case.error or "") for case in failed)
    assert "ConfigError: backend='processes' expected a factory" in str(result)


def test_an_env_that_fails_everywhere_raises_what_it_raised() -> None:
    with pytest.raises(EnvError, match="joint 3 exploded"):
        envfleet.tune(Env, trouble="raises", num_envs=2, seconds=1)


def test_an_env_that_ends_its_process_does_not_end_this_one() -> None:
    with pytest.raises(WorkerDied, match="exit code 3"):
        envfleet.tune(Env, trouble="exits", num_envs=2, seconds=1)


def test_what_cannot_be_done_in_time_is_left_out() -> None:
    result = envfleet.tune(
        Env, sleep_s=1.2, num_envs=8, seconds=8, backends=["serial", "processes"], num_workers=[1, 8]
    )
    by_case = {(case.backend, case.num_workers): case for case in result.cases if case.mode == "sync"}
    assert "skipped" in (by_case["serial", 1].error or "")
    assert by_case["processes", 8].was_measured
    assert result.best["num_workers"] == 8


def test_a_wedged_env_is_given_up() -> None:
    with pytest.raises(RecvTimeout, match=r"expected a step of Env within .*, got none"):
        envfleet.tune(Env, sleep_s=3600.0, num_envs=2, seconds=1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"backend": "serial"}, "expected backends, got backend='serial'"),
        ({"batch_size": 4}, "expected batch_sizes"),
        ({"backends": ["abacus"]}, "'abacus'"),
        ({"backends": []}, r"backends expected names"),
        ({"seconds": 0}, "seconds expected a number above 0, got 0"),
        ({"num_envs": 0}, "num_envs expected an integer from 1"),
        ({"num_envs": []}, "num_envs expected an integer or a list"),
        ({"num_workers": [1, "two"]}, "num_workers expected an integer"),
        ({"num_envs": 2, "batch_sizes": 4}, "batch_sizes expected a size of at most num_envs=2"),
        (
            {"autoreset_mode": "disabled"},
            "autoreset_mode expected 'next_step' or 'same_step' .* got 'disabled'",
        ),
        ({"backends": ["native"]}, "backend='native' expected an env in C\\+\\+"),
    ],
)
def test_wrong_options(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        envfleet.tune(Env, **{"seconds": 1, "backends": "serial", **options})


def test_unknown_env() -> None:
    with pytest.raises(envfleet.UnknownEnvError, match="did you mean LunarLander-v3"):
        envfleet.tune("LunarLandr-v3", seconds=1)
