"""What Runners promise alike in processes and on Ray: timeouts, calls from other threads, odd trajectories."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
from sampling_probes import Unreadable, counting, slow_start, told, turns
from support.ray_session import ray_session
from support.traces import wait_until

import envfleet
from envfleet.sampling import GeneratorDied, GeneratorError, Runner

pytestmark = [
    # Ray's own: sockets and files that it closes by garbage collection.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    # Of Ray's packages about themselves.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(params=["processes", "ray"])
def backend(request):
    if request.param == "ray":
        ray_session()
    return request.param


# --- traj_timeout ------------------------------------------------------------------------------------------

# It also limits the start of a Ray actor, which imports this module: that takes seconds on a busy machine.
TIMEOUT_S = 12.0


def slow_after_the_first(index, folder, seconds):
    """Its first trajectory takes no time. The time that the others take is what is tested, not how long it is."""
    yield "ready"
    count = 1
    while True:
        yield count, os.getpid()
        count += 1
        Path(folder, f"begun-{count}").touch()
        time.sleep(seconds)


def test_the_rest_of_an_earlier_trajectory_does_not_count(backend, tmp_path):
    generator = partial(slow_after_the_first, 0, str(tmp_path), 7.0)
    with Runner([generator], backend=backend, traj_timeout=TIMEOUT_S) as runner:
        stream = runner.trajs()
        assert next(stream)[0] == 1
        assert wait_until(lambda: (tmp_path / "begun-2").exists(), 20)
        # The second, which was asked for ahead and is dropped, and the third: 14 s together, 7 s each.
        assert next(runner.trajs())[0] == 3


def test_no_timeout_runs_while_there_is_no_stream(backend, tmp_path):
    generator = partial(slow_after_the_first, 0, str(tmp_path), 0.1)
    with Runner([generator], backend=backend, traj_timeout=TIMEOUT_S) as runner:
        stream = runner.trajs()
        _, pid = next(stream)
        assert wait_until(lambda: (tmp_path / "begun-2").exists(), 20)
        stream.close()
        threading.Event().wait(TIMEOUT_S + 1)
        assert next(runner.trajs())[1] == pid


def test_a_start_that_never_ends_is_told_by_the_runner(backend, tmp_path):
    with pytest.raises(
        GeneratorDied, match=r"generator 1 was lost in its start.*no first yield within traj_timeout=12 s"
    ):
        Runner([partial(counting, 0), partial(slow_start, 1, str(tmp_path))], backend=backend, traj_timeout=TIMEOUT_S)
    assert (tmp_path / "starts-1").exists()


def starts_once(index, folder):
    """Its second start never ends."""
    if Path(folder, "started").exists():
        time.sleep(600)
    Path(folder, "started").touch()
    yield from told(index)


@pytest.mark.parametrize("what", ["raise", "kill"])
def test_a_restart_that_never_ends_is_told_by_next(backend, what, tmp_path):
    generators = [partial(counting, 0), partial(starts_once, 1, str(tmp_path))]
    with Runner(generators, backend=backend, traj_timeout=TIMEOUT_S, ordered=True) as runner:
        stream = runner.trajs(what)
        next(stream)
        with pytest.raises(GeneratorError, match="generator 1"):
            next(stream)
        stream = runner.trajs("step")
        next(stream)
        with pytest.raises(GeneratorDied, match=r"generator 1 was lost in its start.*within traj_timeout=12 s"):
            next(stream)
        assert next(stream)["index"] == 0


# --- other threads -----------------------------------------------------------------------------------------


def in_thread(call):
    """A thread that makes the call, and the list that its exception, or else its result, will be in."""
    came: list[object] = []

    def run() -> None:
        try:
            came.append(call())
        except Exception as error:
            came.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, came


def test_closing_an_iterator_ends_a_next_of_another_thread(backend, tmp_path):
    generators = [partial(turns, index, str(tmp_path)) for index in range(2)]
    with Runner(generators, backend=backend) as runner:
        stream = runner.trajs()
        thread, came = in_thread(partial(list, stream))
        assert wait_until(lambda: stream._state is not None, 20)
        stream.close()
        thread.join(20)
        assert came == [[]]
        for index in range(2):
            for count in (1, 2):
                (tmp_path / f"go-{index}-{count}").touch()
        assert {index for index, _ in islice(runner.trajs(), 2)} <= {0, 1}


def test_closing_a_runner_ends_a_next_of_another_thread(backend, tmp_path):
    generators = [partial(told, index, str(tmp_path)) for index in range(2)]
    with Runner(generators, backend=backend) as runner:
        thread, came = in_thread(partial(next, runner.trajs("hang")))
        assert wait_until(lambda: (tmp_path / "hangs-0").exists() and (tmp_path / "hangs-1").exists(), 20)
        runner.close()  # kills them: on Ray a sleep cannot be interrupted
        thread.join(20)
        assert [type(error) for error in came] == [envfleet.PoolClosedError]


def test_ctrl_c_ends_a_stream_and_leaves_the_generators_as_they_are(backend, tmp_path):
    with Runner([partial(turns, 0, str(tmp_path))], backend=backend) as runner:
        stream = runner.trajs()
        thread, _ = in_thread(
            lambda: wait_until(lambda: stream._state is not None, 20) and os.kill(os.getpid(), signal.SIGINT)
        )
        with pytest.raises(KeyboardInterrupt):
            next(stream)
        thread.join()
        with pytest.raises(envfleet.CallOrderError, match=r"interrupted.*call trajs\(\) again"):
            next(stream)
        for count in (1, 2):
            (tmp_path / f"go-0-{count}").touch()
        assert next(runner.trajs()) == (0, 2)


def test_closing_a_runner_from_a_signal_handler_inside_next(backend, tmp_path):
    runner = Runner([partial(turns, index, str(tmp_path)) for index in range(2)], backend=backend)
    previous = signal.signal(signal.SIGUSR1, lambda *_: runner.close())
    try:
        thread, _ = in_thread(
            lambda: wait_until(runner._streams.is_busy.locked, 20) and os.kill(os.getpid(), signal.SIGUSR1)
        )
        with pytest.raises(envfleet.PoolClosedError):
            next(runner.trajs())
        thread.join()
    finally:
        signal.signal(signal.SIGUSR1, previous)
        runner.close()


# --- trajectories that cannot travel ---------------------------------------------------------------------------


def third_is_a_lock(index):
    yield "ready"
    yield 1
    yield 2
    yield threading.Lock()
    while True:
        yield "it must not go on after that"


@pytest.mark.parametrize("prefetch", [1, 4])
def test_after_a_trajectory_that_cannot_be_pickled_a_generator_is_started_again(backend, prefetch):
    with Runner([partial(third_is_a_lock, 0)], backend=backend, prefetch=prefetch) as runner:
        for _ in range(2):
            stream = runner.trajs()
            assert [next(stream), next(stream)] == [1, 2]
            with pytest.raises(GeneratorError, match="pickle"):
                next(stream)
            assert list(stream) == []
    runner = Runner([partial(third_is_a_lock, 0)], backend=backend, prefetch=prefetch, on_error="restart")
    with runner, pytest.warns(RuntimeWarning, match="pickle"):
        assert list(islice(runner.trajs(), 6)) == [1, 2] * 3


def unreadable_here(index):
    yield "ready"
    yield Unreadable()
    while True:
        yield "fine"


def test_a_trajectory_that_this_process_cannot_read(backend):
    with Runner([partial(unreadable_here, 0)], backend=backend) as runner:
        stream = runner.trajs()
        with pytest.raises(GeneratorError, match="could not be unpickled here"):
            next(stream)
        assert next(stream) == "fine"
