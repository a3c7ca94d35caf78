"""The call guard of a pool on Ray: close() in a signal handler, and a second thread."""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

import numpy as np
import pytest
from support.python_probes import SleepyEnv

from envfleet import CallOrderError, PoolClosedError

pytest.importorskip("ray")

SLOW = np.full(2, 1500, np.float32)


def test_close_in_a_signal_handler_ends_the_interrupted_call(make_direct):
    """Where messages go through Ray, the present batch is waited for: nothing wakes up a ray.get()."""
    pool = make_direct(SleepyEnv, num_workers=2, num_envs=2)
    pool.reset()
    seen = []

    def close(number: int, frame: Any) -> None:
        pool.close()
        seen.append((pool.closed, pool.executor.call_guard.is_ended))

    before = signal.signal(signal.SIGALRM, close)
    try:
        pool.send(SLOW)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(PoolClosedError):
            pool.recv()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert seen == [(True, False)]
    assert pool.executor.call_guard.is_ended


def test_a_second_thread_is_turned_away(make):
    pool = make(SleepyEnv, num_workers=2, num_envs=2)
    pool.reset()
    thread = threading.Thread(target=pool.step, args=(SLOW,))
    thread.start()
    while pool.num_in_flight == 0:
        time.sleep(0.001)
    assert pool.stats().num_steps == 0
    for call in (pool.observe, pool.get_state, pool.reset, pool.recv, lambda: pool.step(SLOW)):
        with pytest.raises(CallOrderError):
            call()
    thread.join(60)
    assert pool.step(np.zeros(2, np.float32)).obs.tolist() == [2, 2]
