"""An exception of a signal handler in the midst of a call: it had not begun, it is done, or the pool says so."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support.gates import Gate

from envfleet import CallOrderError, EnvError, Pool, RecvTimeout

# In milliseconds. An env whose steps were short so far may run in the caller's thread, where no signal is handled.
SLOW = 25.0
SLOW_ROW = np.full(2, SLOW, np.float32)


@contextlib.contextmanager
def interrupted(gate: Gate, *, opens: bool = False, again: bool = False) -> Iterator[None]:
    """Interrupt the call in the block while an env is at the gate, which opens then, or a second Ctrl-C follows."""
    is_inside = False
    is_handled = threading.Event()
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))

    def handle(*arguments: Any) -> None:
        if not is_inside:  # on a busy machine, the second one may come when the call has ended
            return
        is_first = not is_handled.is_set()
        is_handled.set()
        if opens:
            gate.open()
        elif again and is_first:
            timer.start()
        signal.default_int_handler(*arguments)

    def interrupt() -> None:
        gate.wait_until_reached()
        while not is_handled.wait(0.05):  # an env that an earlier call has sent may be there before the block begins
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, handle)
    thread = threading.Thread(target=interrupt)
    thread.start()
    is_inside = True
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        is_inside = False
        is_handled.set()
        thread.join()
        if timer.ident is not None:
            timer.join()
        signal.signal(signal.SIGINT, before)


def gated(gate: Gate) -> np.ndarray:
    """Let env 1 of two wait at the gate."""
    return np.array([SLOW, gate.action], np.float32)


def runs_in_this_thread(pool: Pool) -> bool:
    return pool.spec.backend == "serial"


def assert_starts_afresh(pool: Pool) -> None:
    """A reset of an interrupted pool leaves it as a new one."""
    assert pool.reset(seed=3).obs.tolist() == [0] * pool.num_envs
    assert pool.num_in_flight == 0
    for count in (1, 2):
        assert pool.step(np.full(pool.num_envs, SLOW, np.float32)).obs.tolist() == [count] * pool.num_envs


def assert_interrupted(pool: Pool) -> None:
    """Every call but a reset of all envs says so."""
    calls: list[Callable[[], Any]] = [
        lambda: pool.step(SLOW_ROW),
        lambda: pool.send(SLOW_ROW),
        pool.recv,
        lambda: pool.reset([0]),
        pool.drop_pending,
        pool.observe,
        pool.get_state,
        lambda: pool.get_attr("spec"),
        lambda: pool.call("render"),
        pool.render_all,
    ]
    for call in calls:
        with pytest.raises(CallOrderError, match=r"interrupted; reset\(\) all envs first"):
            call()
    assert len(pool.stats().envs) == pool.num_envs
    assert pool.seeds


@pytest.mark.ray_core
def test_a_step_that_finishes_in_time_counts_as_done(make):
    pool = make("Sleepy-v0", num_envs=2, num_threads=2)
    pool.reset()
    with Gate() as gate, interrupted(gate, opens=True):
        pool.step(gated(gate))
    if runs_in_this_thread(pool):  # Ctrl-C struck the env itself
        assert_interrupted(pool)
        assert_starts_afresh(pool)
    else:
        assert pool.num_in_flight == 0
        assert pool.step(SLOW_ROW).obs.tolist() == [2, 2]


@pytest.mark.ray_core
def test_a_step_that_does_not_finish_leaves_the_pool_interrupted(make):
    pool = make("Sleepy-v0", num_envs=2, num_threads=2)
    pool.reset()
    with Gate() as gate:
        with interrupted(gate, again=True):
            pool.step(gated(gate))
        assert_interrupted(pool)
        gate.open()
        assert_starts_afresh(pool)


@pytest.mark.parametrize("batch_size", [4, 2])
def test_a_step_of_an_asynchronous_pool(make, batch_size):
    pool = make("Sleepy-v0", num_envs=4, num_threads=4, batch_size=batch_size)
    pool.reset()
    ids = np.arange(4, dtype=np.int32)
    with Gate() as gate:
        with interrupted(gate, again=True):
            pool.step(np.full(4, gate.action, np.float32), ids)
        with pytest.raises(CallOrderError, match="interrupted"):
            pool.recv()
        gate.open()
        assert pool.reset().obs.tolist() == [0] * 4
        assert len(pool.step(np.full(4, SLOW, np.float32), ids)) == batch_size


@pytest.mark.ray_core
def test_a_recv_that_is_interrupted_has_not_begun(make):
    pool = make("Sleepy-v0", num_envs=2, num_threads=2)
    pool.reset()
    with Gate() as gate:
        pool.send(gated(gate))
        with interrupted(gate):
            pool.recv()
        gate.open()
        if runs_in_this_thread(pool):
            assert_interrupted(pool)
            assert_starts_afresh(pool)
        else:
            assert pool.num_in_flight == 2
            assert pool.recv().obs.tolist() == [1, 1]


def test_the_reset_of_an_interrupted_pool_may_be_interrupted_and_run_out_of_time(make):
    pool = make("Sleepy-v0", num_envs=2, num_threads=2)
    pool.reset()
    with Gate() as gate:
        with interrupted(gate, again=True):
            pool.step(gated(gate))
        if not runs_in_this_thread(pool):  # there, nothing is left to wait for
            with interrupted(gate):
                pool.reset()
            with pytest.raises(RecvTimeout):
                pool.reset(timeout=0.01)
        assert_interrupted(pool)
        gate.open()
        pool.async_reset()
        assert pool.recv().obs.tolist() == [0, 0]
        assert pool.step(SLOW_ROW).obs.tolist() == [1, 1]


def test_an_interrupted_pool_can_be_closed(make):
    pool = make("Sleepy-v0", num_envs=2, num_threads=2)
    pool.reset()
    with Gate() as gate:
        with interrupted(gate, again=True):
            pool.step(gated(gate))
        gate.open()
        pool.close()
    assert pool.closed


def test_a_reset_that_is_interrupted(make):
    pool = make("SlowReset-v0", num_envs=2, num_threads=2)
    pool.reset()
    with Gate() as gate:
        pool.step(gated(gate))
        with interrupted(gate, again=True):
            pool.reset()
        assert_interrupted(pool)
        gate.open()
        assert_starts_afresh(pool)


@pytest.mark.parametrize("on_error", ["raise", "restart"])
def test_a_fault_in_a_batch_that_was_lost(make, on_error):
    """The next call reports it, or has restarted the env."""
    pool = make("Sleepy-v0", num_envs=3, num_threads=3, on_error=on_error)
    pool.reset()
    row = np.full(3, SLOW, np.float32)
    with Gate() as gate, interrupted(gate, opens=True):
        pool.step(np.array([SLOW, gate.action, 7777], np.float32))
    if on_error == "raise":
        with pytest.raises(EnvError, match=r"env 2 .*batch was lost") as caught:
            pool.step(row)
        assert caught.value.env_id == 2
        with pytest.raises(CallOrderError, match="raised earlier"):
            pool.step(row)
        pool.reset([2])
    else:
        assert pool.step(row).obs.tolist() == [2, 2, 0]
    assert pool.reset().obs.tolist() == [0, 0, 0]
    assert pool.step(row).obs.tolist() == [1, 1, 1]
