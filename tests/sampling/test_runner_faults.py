"""Generators that raise, exit, hang or yield what cannot travel; workers that are killed."""

from __future__ import annotations

import os
import pickle
import random
import resource
import signal
import threading
import traceback
from functools import partial
from itertools import islice

import numpy as np
import psutil
import pytest
from sampling_probes import counting, dies_after_one, told
from support.traces import alive, wait_until

import envfleet
from envfleet.sampling import GeneratorDied, GeneratorError, Runner

BACKENDS = ["serial", "processes"]


def runner_of(count, backend="processes", generator=told, **options):
    return Runner([partial(generator, index) for index in range(count)], backend=backend, ordered=True, **options)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("prefetch", [1, 4])
def test_an_exception_is_told_with_its_traceback_and_the_others_go_on(backend, prefetch):
    with runner_of(3, backend, prefetch=prefetch) as runner:
        stream = runner.trajs("raise", 1)
        assert next(stream) == 0
        with pytest.raises(GeneratorError, match=r"generator 1 raised in trajs.*trouble in 1") as caught:
            next(stream)
        error = caught.value
        assert error.generator == 1
        assert isinstance(error.__cause__, ValueError)
        assert 'raise ValueError(f"trouble in {index}")' in error.env_traceback
        for own in (error, pickle.loads(pickle.dumps(error))):
            text = "".join(traceback.format_exception(own))
            assert text.startswith(error.env_traceback)
            assert text.count("trouble in {index}") == 1
        assert "envfleet/sampling" not in error.env_traceback
        assert isinstance(error, envfleet.EnvError)
        assert list(islice(stream, 4)) == [2, 0, 2, 0]
        assert list(islice(runner.trajs(), 3)) == [0, 1, 2]  # started again


@pytest.mark.parametrize("backend", BACKENDS)
def test_when_all_have_raised_the_stream_is_over(backend):
    with runner_of(2, backend) as runner:
        stream = runner.trajs("raise")
        for _ in range(2):
            with pytest.raises(GeneratorError, match="trouble"):
                next(stream)
        with pytest.raises(StopIteration):
            next(stream)


def test_an_exception_that_cannot_travel_is_text():
    with runner_of(2) as runner:
        stream = runner.trajs("raise_odd", 0)
        with pytest.raises(GeneratorError, match="TwoArgumentError: 1 and 2") as caught:
            next(stream)
        printed = "".join(traceback.format_exception(caught.value))
        assert printed.count("raise TwoArgumentError") == 1, printed
        assert next(stream) == 1


def test_sys_exit_is_an_exception_like_another():
    with runner_of(1) as runner:
        with pytest.raises(GeneratorError, match="SystemExit: 3"):
            next(runner.trajs("sys_exit"))
        assert next(runner.trajs()) == 0


def test_a_trajectory_that_cannot_be_pickled():
    with runner_of(2) as runner:
        stream = runner.trajs("lock", 0)
        with pytest.raises(GeneratorError, match="pickle"):
            next(stream)
        assert next(stream) == 1
        assert next(runner.trajs()) == 0


@pytest.mark.parametrize(
    ("deed", "message", "exit_code", "number"),
    [
        ("os_exit", "ended with exit code 7", 7, None),
        ("kill", "was killed by SIGKILL", None, signal.SIGKILL),
    ],
)
@pytest.mark.parametrize("start_method", ["forkserver", "fork"])
def test_a_worker_that_dies_is_told_and_comes_back(deed, message, exit_code, number, start_method):
    with runner_of(3, start_method=start_method) as runner:
        assert list(islice(runner.trajs(), 3)) == [0, 1, 2]
        pids = runner.worker_pids
        stream = runner.trajs(deed, 1)
        assert next(stream) == 0
        with pytest.raises(GeneratorDied, match=message) as caught:
            next(stream)
        assert isinstance(caught.value, envfleet.WorkerDied)
        assert (caught.value.generator, caught.value.exit_code, caught.value.signal) == (1, exit_code, number)
        assert list(islice(stream, 3)) == [2, 0, 2]
        assert list(islice(runner.trajs(), 3)) == [0, 1, 2]
        assert [own == old for own, old in zip(runner.worker_pids, pids, strict=True)] == [True, False, True]


def forking(fork_at):
    """Counts; at this number, or before the first one, it forks and both processes go on."""
    if fork_at == "start":
        os.fork()
    yield "ready"
    for number in range(4):
        if number == fork_at:
            os.fork()
        yield os.getpid(), number
    if fork_at == "end":
        os.fork()


@pytest.mark.parametrize("fork_at", ["start", 0, 2, "end"])
def test_a_child_that_comes_back_from_a_generator_ends(fork_at):
    """Two processes would send trajectories, and the child would outlive the runner."""
    with Runner([partial(forking, fork_at)], backend="processes") as runner:
        trajectories = list(runner.trajs())
        assert [number for _, number in trajectories] == [0, 1, 2, 3]
        (worker,) = {pid for pid, _ in trajectories}
        assert wait_until(lambda: not running_children(worker))


def running_children(pid):
    children = psutil.Process(pid).children(recursive=True)
    return [child for child in children if child.status() != psutil.STATUS_ZOMBIE]


def test_errors_travel_themselves():
    with runner_of(1) as runner:
        for deed, kind in (("raise", GeneratorError), ("kill", GeneratorDied)):
            with pytest.raises(kind) as caught:
                next(runner.trajs(deed))
            again = pickle.loads(pickle.dumps(caught.value))
            assert type(again) is kind
            assert str(again) == str(caught.value)
            assert again.generator == 0


def test_a_death_between_two_streams_is_a_warning():
    with runner_of(2, generator=counting) as runner:
        assert next(runner.trajs())["count"] == 1
        pid = runner.worker_pids[1]
        os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: not alive([pid]) and bool(runner._backend._queue.late_faults))
        with pytest.warns(RuntimeWarning, match="generator 1 was lost.*SIGKILL"):
            got = list(islice(runner.trajs(), 4))
        assert [(t["index"], t["count"]) for t in got][1::2] == [(1, 1), (1, 2)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_restart_goes_on_with_a_warning(backend):
    runner = runner_of(2, backend, generator=fails_every_third, on_error="restart")
    with pytest.warns(RuntimeWarning, match="started again"):
        got = list(islice(runner.trajs(), 12))
    runner.close()
    assert got == [(index, count) for count in (1, 2, 1, 2, 1, 2) for index in (0, 1)]


def fails_every_third(index):
    yield "ready"
    yield index, 1
    yield index, 2
    raise ValueError("the third")


def test_restart_has_a_limit_and_brings_workers_back():
    with runner_of(2, on_error="restart", max_restarts=2) as runner:
        runner.broadcast("kept")
        stream = runner.trajs("kill", 1)
        assert next(stream) == 0
        with pytest.warns(RuntimeWarning, match="at most 2"), pytest.raises(GeneratorDied, match="2 times"):
            next(stream)
        assert next(stream) == 0


def test_a_restarted_worker_has_the_weights():
    from sampling_probes import with_weights

    with runner_of(1, generator=with_weights) as runner:
        runner.broadcast("first")
        assert next(runner.trajs()) == (1, "first")
        pid = runner.worker_pids[0]
        os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: bool(runner._backend._queue.late_faults))
        with pytest.warns(RuntimeWarning, match="lost"):
            assert next(runner.trajs()) == (1, "first")


@pytest.mark.filterwarnings("ignore:generator 0 was lost:RuntimeWarning")
def test_a_restarted_generator_has_the_weights_at_its_start():
    value = np.arange(100_000)  # in memory of its own
    with runner_of(1, generator=dies_after_one, on_error="restart") as runner:
        runner.broadcast("old")
        assert runner.broadcast(value) == 2
        stream = runner.trajs()
        assert next(stream) == (0, None)
        for version, held in islice(stream, 4):
            assert version == 2
            np.testing.assert_array_equal(held, value)


def test_a_generator_that_hangs_does_not_hold_up_the_others(tmp_path):
    options = {"folder": tmp_path, "backend": "processes"}
    with Runner([partial(told, index) for index in range(3)], **options) as runner:
        seen = set()
        for index in runner.trajs("hang", 1):
            seen.add(index)
            if len(seen) == 2:
                break
        assert seen == {0, 2}


def test_traj_timeout_ends_a_generator_that_hangs(tmp_path):
    with runner_of(2, folder=tmp_path, traj_timeout=4.0) as runner:
        stream = runner.trajs("hang", 0)
        with pytest.raises(GeneratorDied, match="traj_timeout=4 s"):
            next(stream)
        assert next(stream) == 1
        assert list(islice(runner.trajs(), 2)) == [0, 1]


def test_traj_timeout_is_not_for_a_caller_who_takes_long():
    """Finished trajectories that are not taken do not count as silence."""
    with runner_of(2, generator=counting, traj_timeout=4.0) as runner:
        stream = runner.trajs()
        next(stream)
        threading.Event().wait(5.0)
        assert [t["count"] for t in islice(stream, 3)] == [1, 2, 2]


def test_an_exception_of_a_dropped_stream_is_a_warning(tmp_path):
    with runner_of(1, generator=raises_after_a_file, folder=tmp_path) as runner:
        stream = runner.trajs()
        assert next(stream) == 1
        assert wait_until(lambda: (tmp_path / "begun").exists())
        del stream
        (tmp_path / "now").touch()
        assert wait_until(lambda: bool(runner._backend._queue.late_faults))
        with pytest.warns(RuntimeWarning, match="generator 0 raised.*no iterator was waiting"):
            assert next(runner.trajs()) == 1


def raises_after_a_file(index, folder):
    from time import sleep

    yield "ready"
    yield 1
    (folder / "begun").touch()
    while not (folder / "now").exists():
        sleep(0.005)
    (folder / "now").unlink()
    raise ValueError("late")


def without_descriptors(index, num_trajectories):
    """From its first trajectory to its end its process can open nothing."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield "ready"
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
    try:
        yield from range(num_trajectories)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("arrives", ["request", "weights"])
def test_a_parcel_that_a_worker_cannot_open_is_told_and_the_worker_comes_back(arrives):
    large = np.zeros(100_000)  # more than a message holds
    with runner_of(1, generator=without_descriptors, num_trajectories=5) as runner:
        stream = runner.trajs()
        assert next(stream) == 0
        if arrives == "weights":
            runner.broadcast(large)
        else:
            stream = runner.trajs(large)
        with pytest.raises(GeneratorError, match="too many open files"):
            list(stream)
        assert next(runner.trajs(large)) == 0


def test_a_parcel_that_a_worker_cannot_open_is_survived_with_restarts():
    with runner_of(1, generator=without_descriptors, num_trajectories=5, on_error="restart") as runner:
        assert next(runner.trajs()) == 0
        with pytest.warns(RuntimeWarning, match="too many open files"):
            assert next(runner.trajs(np.zeros(100_000))) == 0


def test_a_worker_that_cannot_be_started_again_is_told():
    with runner_of(2) as runner:
        stream = runner.trajs("kill", 1)
        assert next(stream) == 0
        with pytest.raises(GeneratorDied):
            next(stream)
        lowest_free = os.dup(0)
        os.close(lowest_free)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
        try:
            stream = runner.trajs()
            assert next(stream) == 0
            with pytest.raises(GeneratorError, match=r"could not be started.*Too many open files"):
                next(stream)
            assert next(stream) == 0
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert list(islice(runner.trajs(), 2)) == [0, 1]


def test_random_kills_lose_nothing_else():
    """Whoever is killed, every trajectory that comes is whole, and each generator's count goes on or starts over."""
    random.seed(3)
    runner = runner_of(3, generator=counting, size=50_000, on_error="restart", prefetch=2)
    with runner, pytest.warns(RuntimeWarning, match="SIGKILL"):
        assert take_and_kill(runner, 120) == 10


def take_and_kill(runner, num_trajectories):
    num_kills = 0
    last = {0: 0, 1: 0, 2: 0}
    for number, trajectory in enumerate(islice(runner.trajs(), num_trajectories)):
        assert trajectory["index"] == number % 3  # ordered
        assert (trajectory["data"] == trajectory["count"]).all()
        assert trajectory["count"] in (1, last[trajectory["index"]] + 1)
        last[trajectory["index"]] = trajectory["count"]
        if number % 12 == 5:
            os.kill(random.choice(runner.worker_pids), signal.SIGKILL)
            num_kills += 1
    return num_kills
