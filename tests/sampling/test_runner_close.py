"""A Runner that is closed or dropped: its generators' finally blocks, its workers, its trajectories, its threads."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import time
from functools import partial
from itertools import islice
from pathlib import Path

import psutil
import pytest
from sampling_probes import BACKENDS, counting, slow_start, told
from support.traces import alive, wait_until

import envfleet
from envfleet.sampling import Runner

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("way", ["close", "with", "del"])
def test_finally_blocks_run_and_workers_end(backend, way, tmp_path):
    runner = Runner([partial(counting, index) for index in range(3)], backend=backend, log=str(tmp_path))
    stream = runner.trajs()
    next(stream)
    pids = runner.worker_pids
    if way == "with":
        with runner:
            pass
    elif way == "close":
        runner.close()
        runner.close()
    else:
        del runner  # while its iterator lives
    assert sorted(file.name for file in tmp_path.iterdir()) == ["closed-0", "closed-1", "closed-2"]
    assert wait_until(lambda: not alive(pids))
    with pytest.raises(envfleet.PoolClosedError):
        next(stream)
    if way != "del":
        assert runner.closed
        with pytest.raises(envfleet.PoolClosedError, match="make a new runner"):
            runner.trajs()
        with pytest.raises(envfleet.PoolClosedError):
            runner.broadcast(1)


def busy(index, folder):
    """In the middle of a trajectory, for ever; its finally block leaves a mark."""
    yield "ready"
    try:
        Path(folder, f"runs-{index}").touch()
        while True:
            time.sleep(60)
    finally:
        Path(folder, f"closed-{index}").touch()
    yield


def waiting(stream):
    """A thread that waits for the stream until its runner is closed."""

    def wait():
        with pytest.raises(envfleet.PoolClosedError):
            next(stream)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_a_trajectory_that_is_under_way_is_interrupted(tmp_path):
    with Runner([partial(busy, index) for index in range(2)], folder=tmp_path) as runner:
        thread = waiting(runner.trajs())
        assert wait_until(lambda: (tmp_path / "runs-0").exists() and (tmp_path / "runs-1").exists())
    thread.join(10)  # whom close() in another thread woke up
    assert not thread.is_alive()
    assert (tmp_path / "closed-0").exists()
    assert (tmp_path / "closed-1").exists()


def stubborn(index, folder):
    yield "ready"
    Path(folder, "runs").touch()
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(60)


def test_who_does_not_want_to_end_is_killed(tmp_path):
    runner = Runner([partial(stubborn, 0)], folder=tmp_path)
    thread = waiting(runner.trajs())
    assert wait_until(lambda: (tmp_path / "runs").exists())
    pids = runner.worker_pids
    runner.close()
    thread.join()
    assert alive(pids) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_finally_block_raises_is_a_warning(backend):
    runner = Runner([bad_end], backend=backend)
    next(runner.trajs())
    with pytest.warns(RuntimeWarning, match="generator 0 raised while it was closed: ValueError: not like this"):
        runner.close()


def bad_end():
    yield "ready"
    try:
        while True:
            yield 1
    finally:
        raise ValueError("not like this")


def test_a_sigterm_from_elsewhere_runs_finally_blocks_and_is_told(tmp_path):
    with Runner([partial(counting, 0)], log=str(tmp_path), start_method="spawn") as runner:
        stream = runner.trajs()
        next(stream)
        os.kill(runner.worker_pids[0], signal.SIGTERM)
        with pytest.raises(envfleet.WorkerDied, match="SIGTERM"):
            for _ in stream:
                pass
        assert (tmp_path / "closed-0").exists()


def test_trajectories_outlive_their_runner():
    with Runner([partial(counting, 0)], size=600_000) as runner:
        kept = list(islice(runner.trajs(), 3))
    del runner
    assert [float(t["data"].sum()) for t in kept] == [600_000 * t["count"] for t in kept]
    before = _mapped_bytes()
    del kept
    gc.collect()
    assert before - _mapped_bytes() >= 3 * 600_000 * 4


def _mapped_bytes():
    """Of the unnamed shared memory that trajectories lie in."""
    maps = psutil.Process().memory_maps(grouped=False)
    return sum(own.size for own in maps if "memfd:envfleet" in own.path)


def test_runner_after_runner():
    for index in range(30):
        runner = Runner([partial(counting, index)])
        assert next(runner.trajs())["index"] == index
        if index % 2:
            runner.close()


def test_two_threads_in_one_stream(tmp_path):
    with Runner([partial(told, 0)], folder=tmp_path) as runner:
        stream = runner.trajs("hang")
        thread = waiting(stream)
        assert wait_until(lambda: (tmp_path / "hangs-0").exists())
        with pytest.raises(envfleet.CallOrderError, match="second thread"):
            next(stream)
    thread.join()


def test_slow_start_probe(tmp_path):
    generator = slow_start(0, tmp_path)
    assert not (tmp_path / "starts-0").exists()
    generator.close()
