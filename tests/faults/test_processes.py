"""What a whole process sees: forks, exits, signals, threads."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.gates import Gate, close_when_reached

import envfleet
from envfleet import CallOrderError, ForkedPoolError

PROBE = Path(__file__).parents[1] / "plugins" / "probe.cc"


def run_script(code: str, **kwargs) -> subprocess.CompletedProcess:
    prelude = (
        "import sys\n"
        f"sys.path.insert(0, {str(PROBE.parents[1])!r})\n"
        "import envfleet, numpy as np, os, signal, threading\n"
        "from support.gates import Gate\n"
        f"envfleet.compile({str(PROBE)!r})\n"
    )
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", prelude + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **kwargs,
    )


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # that fork and threads mix badly is the point
@pytest.mark.parametrize("batch_size", [4, 2])
def test_a_forked_child_is_told_and_the_parent_goes_on(batch_size):
    pool = envfleet.make_pool("Sleepy-v0", num_envs=4, batch_size=batch_size, num_threads=2)
    pool.reset()
    pool.step(np.ones(4, dtype=np.float32), np.arange(4, dtype=np.int32))
    if batch_size == 2:
        pool.recv()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            pool.step(np.zeros(4, dtype=np.float32), np.arange(4, dtype=np.int32))
        except ForkedPoolError as error:
            status = 0 if "make a new pool" in str(error) else 2
        try:
            pool.close()
            del pool
            fresh = envfleet.make_pool("Sleepy-v0", num_envs=2, num_threads=2)
            fresh.reset()
            fresh.step(np.ones(2, dtype=np.float32))
            fresh.close()
        except BaseException:
            status = 3
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(pool.step(np.zeros(4, dtype=np.float32), np.arange(4, dtype=np.int32))) == batch_size


@pytest.mark.parametrize("batch_size", [8, 3])
def test_exit_with_work_in_flight_is_clean(batch_size):
    result = run_script(f"""
        envs = envfleet.make("Sleepy-v0", num_envs=8, batch_size={batch_size}, num_threads=2)
        envs.reset()
        envs.send(np.full(8, 20, dtype=np.float32), np.arange(8, dtype=np.int32))
        held = [envs.recv()]
        if {batch_size} == 3:
            envs.send(np.full(3, 20, dtype=np.float32), held[0][4]["env_id"])
        print("leaving")
    """)
    assert (result.returncode, result.stdout, result.stderr) == (0, "leaving\n", "")


def test_a_pool_dropped_with_work_in_flight_is_clean():
    result = run_script("""
        for _ in range(20):
            pool = envfleet.make_pool("Sleepy-v0", num_envs=4, batch_size=2, num_threads=2)
            pool.reset()
            pool.send(np.full(4, 5, dtype=np.float32), np.arange(4, dtype=np.int32))
        arrays = pool.recv()
        del pool
        assert len(arrays.obs) == 2
        print(threading.active_count())
    """)
    assert (result.returncode, result.stdout, result.stderr) == (0, "1\n", "")


@pytest.mark.parametrize(
    ("call", "after", "obs"),
    [("envs.step(slow)", "envs.reset()", "[0, 0]"), ("(envs.send(slow), envs.recv())", "envs.recv()", "[1, 1]")],
)
def test_ctrl_c_reaches_a_caller_who_waits(call, after, obs):
    """An env that does not come back within a second leaves the pool interrupted; recv() had not begun."""
    result = run_script(f"""
        envs = envfleet.make("Sleepy-v0", num_envs=2, num_threads=2)
        envs.reset()
        with Gate() as gate:
            slow = np.array([gate.action, 1], dtype=np.float32)
            try:
                gate.interrupt_when_reached()
                {call}
            except KeyboardInterrupt:
                gate.open()  # not before: the caller was interrupted while the env was inside
                print("interrupted", {after}[0].tolist())
    """)
    assert (result.stdout, result.stderr) == (f"interrupted {obs}\n", "")


def test_a_stuck_env_does_not_hold_up_close_for_ever():
    result = run_script("""
        import warnings
        envs = envfleet.make("Sleepy-v0", num_envs=2, num_threads=2)
        envs.reset()
        with Gate() as gate, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            envs.send(np.array([gate.action, gate.action], dtype=np.float32))
            gate.wait_until_reached()
            envs.close()  # the gate stays closed
        print(caught[0].category.__name__)
        sys.stdout.flush()
    """)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "ResourceWarning\n"


def test_a_second_thread_is_told_that_the_pool_is_in_use(gate):
    pool = envfleet.make_pool("Sleepy-v0", num_envs=2, num_threads=2)
    pool.reset()
    errors = []

    def intrude():
        gate.wait_until_reached()
        try:
            pool.step(np.zeros(2, dtype=np.float32))
        except CallOrderError as error:
            errors.append(str(error))
        gate.open()

    intruder = threading.Thread(target=intrude)
    intruder.start()
    pool.step(np.array([gate.action, gate.action], dtype=np.float32))
    intruder.join()
    assert "two threads" in errors[0]


def test_other_python_threads_run_while_envs_step(gate):
    """The GIL is free while a slow env works: the step ends when another thread opens the gate."""
    pool = envfleet.make_pool("Sleepy-v0", num_envs=1, num_threads=1)
    pool.reset()
    opened_inside = []

    def open_the_gate():
        gate.wait_until_reached()
        opened_inside.append(not is_over.is_set())
        gate.open()

    is_over = threading.Event()
    opener = threading.Thread(target=open_the_gate)
    opener.start()
    pool.step(np.array([gate.action], dtype=np.float32))
    is_over.set()
    opener.join()
    assert opened_inside == [True]


NUM_SHORT_CALLS = 1000  # after which the pool expects the next one to be short, too
ZERO = np.zeros(1, dtype=np.float32)


def _fail_and_rebuild(pool: envfleet.Pool, gate: Gate) -> None:
    pool.step(np.array([gate.action], dtype=np.float32))


# By the method that waits, as numbered in probe.cc: a call of the pool that runs it.
WAITING_CALLS = {
    "reset": (1, lambda pool, gate: pool.reset()),
    "step": (2, lambda pool, gate: pool.step(ZERO)),
    "observe": (3, lambda pool, gate: pool.observe()),
    "save": (4, lambda pool, gate: pool.get_state()),
    "load": (5, lambda pool, gate: pool.set_state(pool.get_state())),
    "render": (6, lambda pool, gate: pool.render(0)),
    "fields_changed": (7, lambda pool, gate: pool.set_attr("gate", gate.number)),
    "constructor": (0, _fail_and_rebuild),
}


@contextlib.contextmanager
def _opened_by_another_thread(gate: Gate) -> Iterator[None]:
    """Another Python thread opens the gate. If it cannot run, the env raises after a while."""

    def open_the_gate() -> None:
        gate.wait_until_reached()
        gate.open()

    opener = threading.Thread(target=open_the_gate)
    opener.start()
    yield
    opener.join()


@pytest.mark.parametrize("method", WAITING_CALLS)
def test_other_python_threads_run_while_a_method_waits_that_was_short_before(gate, method):
    number, call = WAITING_CALLS[method]
    options = {"on_error": "restart", "max_restarts": 1, "render_mode": "rgb_array"}
    pool = envfleet.make_pool("Waiting-v0", num_envs=1, num_threads=1, **options)
    pool.reset()
    for _ in range(NUM_SHORT_CALLS):
        pool.step(ZERO)
        if method not in ("fields_changed", "constructor"):
            call(pool, gate)
    pool.set_attr("method", number)
    if method != "fields_changed":  # which waits as soon as there is a gate
        pool.set_attr("gate", gate.number)
    with _opened_by_another_thread(gate):
        call(pool, gate)
    assert len(pool.step(ZERO)) == 1


def test_other_python_threads_run_while_send_waits_in_a_step_that_was_short_before(gate):
    pool = envfleet.make_pool("Sleepy-v0", num_envs=2, batch_size=1, num_threads=1)
    pool.async_reset()
    for _ in range(NUM_SHORT_CALLS):
        pool.send(ZERO, pool.recv().env_id)
    with _opened_by_another_thread(gate):
        pool.send(np.array([gate.action], dtype=np.float32), pool.recv().env_id)
        assert sorted(int(pool.recv().obs[0]) for _ in range(2))[-1] > NUM_SHORT_CALLS / 2


def test_a_time_limit_ends_a_step_that_waits_after_short_ones(gate):
    pool = envfleet.make_pool("Sleepy-v0", num_envs=1, num_threads=1)
    pool.reset()
    for _ in range(NUM_SHORT_CALLS):
        pool.step(ZERO)
    with pytest.raises(envfleet.RecvTimeout):
        pool.step(np.array([gate.action], dtype=np.float32), timeout=0.05)
    gate.open()
    assert pool.recv().obs.tolist() == [NUM_SHORT_CALLS + 1]


def test_ctrl_c_during_a_step_that_waits_after_short_ones_is_handled_when_it_returns():
    result = run_script("""
        pool = envfleet.make_pool("Sleepy-v0", num_envs=1, num_threads=1)
        pool.reset()
        for _ in range(1000):
            pool.step(np.zeros(1, dtype=np.float32))
        with Gate() as gate:
            interrupter = gate.interrupt_when_reached()
            threading.Thread(target=lambda: (interrupter.join(), gate.open())).start()
            try:
                pool.step(np.array([gate.action], dtype=np.float32))
            except KeyboardInterrupt:
                print("interrupted", pool.num_in_flight, pool.step(np.zeros(1, dtype=np.float32)).obs.tolist())
    """)
    assert (result.stdout, result.stderr) == ("interrupted 0 [1002]\n", "")


def test_many_pools_in_one_process():
    pools = [envfleet.make_pool("CartPole-v1", num_envs=8, num_threads=2, seed=7) for _ in range(40)]
    first = [pool.reset().obs for pool in pools]
    rows = [[pool.step(np.zeros(8, dtype=np.int64)).obs for pool in pools] for _ in range(5)]
    for same in (first, *rows):
        for other in same[1:]:
            np.testing.assert_array_equal(other, same[0])
    for pool in pools:
        pool.close()


def test_signals_module_is_left_alone():
    before = signal.getsignal(signal.SIGINT)
    envfleet.make("CartPole-v1").close()
    assert signal.getsignal(signal.SIGINT) is before


def test_close_from_another_thread_waits_for_the_call_inside(gate):
    pool = envfleet.make_pool("Sleepy-v0", num_envs=2, num_threads=2)
    pool.reset()
    threads = close_when_reached(pool, gate)
    assert pool.step(np.array([gate.action, gate.action], dtype=np.float32)).obs.tolist() == [1, 1]
    for thread in threads:
        thread.join()
    with pytest.raises(envfleet.PoolClosedError):
        pool.step(np.zeros(2, dtype=np.float32))


def test_reset_options_end_with_their_reset():
    """An autoreset inside a step gets none, as in Gymnasium."""
    envs = envfleet.make("CartPole-v1", num_envs=4)
    twin = envfleet.make("CartPole-v1", num_envs=4)
    envs.reset(seed=0, options={"low": 0.0, "high": 0.001})
    twin.reset(seed=0)
    seen = []
    for _ in range(60):
        obs, *_, info = envs.step(np.ones(4, dtype=np.int64))
        seen += obs[info["elapsed_step"] == 0].tolist()
    assert seen
    assert np.abs(seen).max() > 0.001


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="pinning is Linux's")
def test_threads_are_pinned_on_request():
    import psutil

    cores = sorted(os.sched_getaffinity(0))
    before = {thread.id for thread in psutil.Process().threads()}
    pool = envfleet.make_pool("Sleepy-v0", num_envs=2, num_threads=2, thread_affinity_offset=0)
    pool.reset()
    pool.step(np.ones(2, dtype=np.float32))
    own = [thread.id for thread in psutil.Process().threads() if thread.id not in before]
    assert own
    assert all(len(os.sched_getaffinity(thread)) == 1 for thread in own)
    assert {next(iter(os.sched_getaffinity(thread))) for thread in own} <= set(cores)
    assert sorted(os.sched_getaffinity(0)) == cores  # the caller's own thread is left alone
