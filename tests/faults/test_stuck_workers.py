"""A worker process that is stuck or late, not dead: step_timeout, stops, close()."""

from __future__ import annotations

import os
import signal
import threading
import warnings

import numpy as np
import pytest
from misbehaving_pools import (
    STEP,
    actions,
    assert_both_workers_usable,
    assert_second_worker_kept,
    misbehaving_pools,
    on_two_workers,
    worker_pids,
)
from support.faulty_env import Misbehavior
from support.python_probes import SleepyEnv
from support.traces import alive, is_alive, wait_until

from envfleet import RecvTimeout
from envfleet.core import errors

# CPython says that fork() and threads mix badly; pytest's own timeout thread is one.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


STEP_TIMEOUT = 2.0  # what healthy workers stay below on a loaded machine


@pytest.fixture
def make():
    with misbehaving_pools(**on_two_workers("processes")) as make:
        yield make


@pytest.mark.parametrize("trouble", [Misbehavior.SLEEP, Misbehavior.SIGSTOP], ids=lambda trouble: trouble.name)
def test_a_stuck_env_is_ended_by_the_step_timeout(make, trouble):
    """A late answer (that of SLEEP comes after 20 s) never shows up in a later batch."""
    pool = make(step_timeout=STEP_TIMEOUT)
    pool.reset(seed=0)
    stuck = worker_pids(pool)[0]
    with pytest.raises(errors.WorkerDied, match="step_timeout") as caught:
        pool.step(actions(trouble, 1))
    assert_second_worker_kept(caught.value)
    assert not is_alive(stuck)
    assert_both_workers_usable(pool)


def test_the_step_timeout_bounds_asynchronous_steps_too(make):
    pool = make(batch_size=2, step_timeout=STEP_TIMEOUT)
    pool.reset(seed=0)
    pool.send(actions(Misbehavior.SIGSTOP, 1), [0, 1, 2, 3])
    rows, messages = [], []
    for _ in range(2):
        try:
            rows += pool.recv(timeout=30).env_id.tolist()
        except errors.WorkerDied as error:
            messages.append(str(error))
            rows += error.batch.env_id.tolist()
    assert sorted(rows) == [0, 1, 2, 3]
    assert messages
    assert all("step_timeout" in message for message in messages)
    pool.reset()


def test_the_step_timeout_leaves_idle_workers_alone(make):
    pool = make(step_timeout=STEP_TIMEOUT)
    pool.reset(seed=0)
    before = worker_pids(pool)
    threading.Event().wait(1.5 * STEP_TIMEOUT)  # longer than a step may take, with nothing to do
    assert pool.step([STEP] * 4).obs[:, 1].tolist() == [1] * 4
    assert worker_pids(pool) == before


def test_the_step_timeout_with_restart_goes_on(make):
    pool = make(step_timeout=STEP_TIMEOUT, on_error="restart")
    pool.reset(seed=0)
    batch = pool.step(actions(Misbehavior.SIGSTOP, 1))
    assert batch.truncated[1]
    assert "step_timeout" in batch.info["error"][1]
    assert not batch.truncated[[2, 3]].any()
    batch = pool.step([STEP] * 4)
    assert batch.elapsed_step[1:].tolist() == [0, 2, 2]
    assert_both_workers_usable(pool)


def test_a_stopped_worker_that_goes_on_in_time_is_only_late(make):
    pool = make(SleepyEnv)
    pool.reset()
    stopped = worker_pids(pool)[0]
    os.kill(stopped, signal.SIGSTOP)
    with pytest.raises(RecvTimeout):
        pool.step(np.zeros(4, dtype=np.float32), timeout=0.2)
    os.kill(stopped, signal.SIGCONT)
    assert pool.recv().obs.tolist() == [1] * 4


def test_close_ends_a_stopped_worker(make):
    pool = make()
    pool.reset(seed=0)
    pids = worker_pids(pool)
    os.kill(pids[0], signal.SIGSTOP)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # that it had to be killed may be said
        pool.close()
    assert wait_until(lambda: not alive(pids))
