"""Ends of a Runner: close, drop, exit, kills, Ctrl-C, forks; and what is left behind, which is nothing."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial
from itertools import islice
from pathlib import Path

import psutil
import pytest
from sampling_probes import counting, slow_start, told
from traces import Traces, alive, shared_files, wait_until

import envfleet
from envfleet.sampling import Runner

TESTS = Path(__file__).parents[1]
BACKENDS = ["serial", "processes"]
START_METHODS = ["forkserver", "spawn", "fork"]

PRELUDE = """\
import json, os, signal, sys, threading, time
from functools import partial
from itertools import islice
import envfleet, psutil
from envfleet.sampling import Runner
from sampling_probes import counting, told
"""


@pytest.fixture(autouse=True)
def nothing_left():
    """No child, no descriptor. The fork server of this process stays."""
    Runner([partial(counting, 0)]).close()
    before = Traces.now()
    yield
    gc.collect()
    assert wait_until(lambda: Traces.now().children <= before.children)
    assert wait_until(lambda: not Traces.now().descriptors - before.descriptors), (
        Traces.now().descriptors - before.descriptors
    )


@pytest.fixture
def script(tmp_path):
    """Starts a script in a session of its own; what is left of it at the end is ended."""
    started = []
    (tmp_path / "tmp").mkdir()

    def start(code, **options):
        file = tmp_path / "script.py"
        file.write_text(PRELUDE + textwrap.dedent(code))
        path = os.pathsep.join([str(TESTS), str(TESTS / "sampling"), os.environ.get("PYTHONPATH", "")])
        process = subprocess.Popen(
            [sys.executable, "-W", "error", str(file)],
            env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path / "tmp")},
            cwd=tmp_path,
            text=True,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **options,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        for survivor in family(tmp_path):
            survivor.kill()
        process.communicate()


def family(tmp_path):
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TMPDIR") == str(tmp_path / "tmp") and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def run(script, code, tmp_path):
    process = script(code)
    out, err = process.communicate(timeout=120)
    assert wait_until(lambda: not family(tmp_path)), f"left behind: {family(tmp_path)}"
    assert list((tmp_path / "tmp").iterdir()) == []
    return process.returncode, out, err


# --- close ------------------------------------------------------------------------------------------------


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


# --- threads and forks ----------------------------------------------------------------------------------------


def test_two_threads_in_one_stream(tmp_path):
    with Runner([partial(told, 0)], folder=tmp_path) as runner:
        stream = runner.trajs("hang")
        thread = waiting(stream)
        assert wait_until(lambda: (tmp_path / "hangs-0").exists())
        with pytest.raises(envfleet.CallOrderError, match="second thread"):
            next(stream)
    thread.join()


def test_a_runner_used_in_a_fork_says_so(script, tmp_path):
    code = """
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, which is the subject
        runner = Runner([partial(counting, 0)])
        stream = runner.trajs()
        next(stream)
        pid = os.fork()
        if pid == 0:
            for call in (lambda: next(stream), runner.trajs, lambda: runner.broadcast(1)):
                try:
                    call()
                except envfleet.ForkedPoolError as error:
                    print("a fork of process" in str(error), flush=True)
            runner.close()
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        print(next(stream)["count"])
    """
    assert run(script, code, tmp_path) == (0, "True\nTrue\nTrue\n2\n", "")


# --- the parent's end -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start_method", START_METHODS)
def test_workers_of_a_killed_parent_leave(script, tmp_path, start_method):
    """In the middle of a trajectory, with large ones and weights in shared memory, and a manager."""
    before = shared_files()
    process = script(f"""
        import numpy as np
        makers = [partial(counting, 0), partial(told, 1)]
        def context(manager):
            return {{"folder": {str(tmp_path)!r}}}
        runner = Runner(
            [partial(told, 0), partial(told, 1)], start_method={start_method!r}, context_fn=context, prefetch=4
        )
        runner.broadcast(np.zeros(1_000_000))
        big = Runner([partial(counting, index) for index in range(2)], size=1_000_000)
        kept = list(islice(big.trajs(), 3))
        stream = runner.trajs("hang", 1)
        next(stream)
        print(json.dumps(runner.worker_pids + big.worker_pids), flush=True)
        for trajectory in stream:
            pass
    """)
    pids = json.loads(process.stdout.readline() or process.communicate()[1])
    assert wait_until(lambda: (tmp_path / "hangs-1").exists())
    assert alive(pids) == pids
    process.kill()
    process.wait()
    # A second is what is promised; the bound is for loaded machines.
    assert wait_until(lambda: not alive(pids)), f"still alive: {alive(pids)}"
    assert wait_until(lambda: not family(tmp_path)), f"still alive: {family(tmp_path)}"
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not {file for file in shared_files() - before if "vizdoom" not in file and str(tmp_path) in file}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("ending", ["sys.exit(5)", "raise ValueError('over')", "pass"])
def test_other_ends_of_a_script_leave_nothing_and_run_finally_blocks(script, tmp_path, backend, ending):
    code = f"""
        runner = Runner([partial(counting, index) for index in range(2)], backend={backend!r}, log={str(tmp_path)!r})
        stream = runner.trajs()
        next(stream)
        {ending}
    """
    code, _, err = run(script, code, tmp_path)
    assert code == {"s": 5, "r": 1, "p": 0}[ending[0]]
    assert (tmp_path / "closed-0").exists()
    assert (tmp_path / "closed-1").exists()
    assert err.count("Traceback") == (ending[0] == "r")


# --- Ctrl-C ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["os.getpid()", "0"], ids=["process", "group"])
def test_ctrl_c_while_waiting_leaves_the_runner_usable(script, tmp_path, target):
    code = f"""
        def slow(index):
            request = yield "ready"
            count = 0
            while True:
                count += 1
                time.sleep(1.0)
                request = yield index, count, request
        runner = Runner([partial(slow, index) for index in range(2)], ordered=True)
        stream = runner.trajs("old")
        threading.Timer(0.4, lambda: os.kill({target}, signal.SIGINT)).start()
        try:
            next(stream)
        except KeyboardInterrupt:
            print("interrupted")
        print(next(stream), next(stream))  # nothing was lost
        print(next(runner.trajs("new"))[2])
        runner.close()
    """
    out = "interrupted\n(0, 1, ('old',)) (1, 1, ('old',))\n('new',)\n"
    assert run(script, code, tmp_path) == (0, out, "")


def test_ctrl_c_at_any_moment(script, tmp_path):
    """Many of them, into a loop that does nothing but take: it stays in step and ends."""
    code = """
        runner = Runner([partial(counting, index) for index in range(2)], prefetch=2)
        is_over = threading.Event()
        def interrupt():
            while not is_over.wait(0.003):
                os.kill(os.getpid(), signal.SIGINT)
        num_taken = num_interrupts = 0
        stream = runner.trajs()
        next(stream)
        thread = threading.Thread(target=interrupt)
        thread.start()
        while num_interrupts < 150 or num_taken < 200:
            try:
                for _ in range(200):
                    assert next(stream)["request"] is None
                    num_taken += 1
            except KeyboardInterrupt:
                num_interrupts += 1
        while True:
            try:
                is_over.set()
                thread.join()
                break
            except KeyboardInterrupt:
                pass
        try:
            time.sleep(0.1)
        except KeyboardInterrupt:
            pass
        counts = {}
        for trajectory in runner.trajs("after"):
            counts.setdefault(trajectory["index"], []).append(trajectory["count"])
            if len(counts) == 2 and min(map(len, counts.values())) > 5:
                break
        print(sorted(counts), all(own == list(range(own[0], own[0] + len(own))) for own in counts.values()))
    """
    assert run(script, code, tmp_path) == (0, "[0, 1] True\n", "")


def test_ctrl_c_while_a_runner_is_made_leaves_nothing(script, tmp_path):
    code = f"""
        from sampling_probes import slow_start, wait_and_interrupt
        threading.Thread(target=wait_and_interrupt, args=({str(tmp_path)!r}, "starts-1")).start()
        try:
            Runner([partial(counting, 0), partial(slow_start, 1, folder={str(tmp_path)!r})])
        except KeyboardInterrupt:
            print("interrupted", len(psutil.Process().children(recursive=True)))
    """
    returncode, out, err = run(script, code, tmp_path)
    assert (returncode, out, err) == (0, "interrupted 1\n", "")  # the fork server


# --- scripts ----------------------------------------------------------------------------------------------------------

GUARDLESS = """
from collections import namedtuple
from functools import partial
from itertools import islice
import numpy as np
from envfleet.sampling import Runner, weights

print("main")  # once: no worker runs this file again
offset = 3
Trajectory = namedtuple("Trajectory", "index data weights")

def generator(index):
    yield "ready"
    while True:
        yield Trajectory(index + offset, np.full(100_000, index), weights().value)

with Runner([partial(generator, index) for index in range(2)], start_method="METHOD", ordered=True) as runner:
    runner.broadcast({"w": 1})
    for trajectory in islice(runner.trajs(), 4):
        assert isinstance(trajectory, Trajectory)
        print(trajectory.index, trajectory.data[-1], trajectory.weights)
"""


@pytest.mark.parametrize("start_method", START_METHODS)
def test_a_script_needs_no_guard(script, tmp_path, start_method):
    lines = "3 0 {'w': 1}\n4 1 {'w': 1}\n"
    got = run(script, GUARDLESS.replace("METHOD", start_method), tmp_path)
    assert got == (0, f"main\n{lines}{lines}", "")


def test_nobody_polls(script, tmp_path):
    """The parent waits two seconds for a trajectory: its processor time is what the start took, not more."""
    code = """
        def slow(index):
            yield "ready"
            while True:
                time.sleep(2)
                yield index
        runner = Runner([partial(slow, index) for index in range(2)])
        stream = runner.trajs()
        children = psutil.Process().children(recursive=True)
        def times():
            return [sum(child.cpu_times()[:2]) for child in [psutil.Process(), *children]]
        before = times()
        next(stream)
        print(max(after - own for after, own in zip(times(), before)) < 0.1, len(children))
        runner.close()
    """
    assert run(script, code, tmp_path) == (0, "True 3\n", "")


def test_slow_start_probe(tmp_path):
    generator = slow_start(0, tmp_path)
    assert not (tmp_path / "starts-0").exists()
    generator.close()
