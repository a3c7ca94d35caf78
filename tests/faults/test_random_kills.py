"""Workers are killed at random while a pool runs: no row is lost, none comes twice, and the run goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import threading

import numpy as np
import psutil
import pytest
from misbehaving_pools import misbehaving_pools, on_two_workers, worker_pids
from support.ledger import Ledger
from support.python_probes import FaultyEnv

# CPython says that fork() and threads mix badly; pytest's own timeout thread is one.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture
def make():
    with misbehaving_pools(**on_two_workers("processes")) as make:
        yield make


def long_run(make, num_steps: int, batch_size: int) -> None:
    num_envs, rng = 8, np.random.default_rng(0)
    pool = make(
        FaultyEnv,
        num_envs=num_envs,
        batch_size=batch_size,
        num_workers=4,
        length=50,
        on_error="restart",
        max_restarts=10**9,
    )
    first = pool.reset(seed=0)
    assert first.elapsed_step.tolist() == [0] * num_envs
    ledger, num_kills, stop = Ledger(num_envs, length=50), 0, threading.Event()

    def kill_one(number: float) -> None:
        pids = worker_pids(pool)
        pid = pids[int(number * len(pids))]
        # Not one that is being replaced: its number may belong to somebody else by now.
        if pid > 0 and pid in {child.pid for child in psutil.Process().children(recursive=True)}:
            with contextlib.suppress(ProcessLookupError):  # it was gone between the look and the shot
                os.kill(pid, signal.SIGKILL)

    def kill_at_random() -> None:
        """Kill in the midst of steps and rebuilds, but not faster than the run goes on."""
        own = np.random.default_rng(1)
        while progress.acquire() and not stop.wait(float(own.uniform(0.0, 0.02))):
            kill_one(float(own.random()))

    progress = threading.Semaphore(0)  # a permit for every 50 batches
    killer = threading.Thread(target=kill_at_random, daemon=True)
    killer.start()
    try:
        pool.send(np.zeros(num_envs, dtype=np.int64), np.arange(num_envs, dtype=np.int32))
        for step in range(num_steps):
            batch = pool.recv(timeout=60)
            ledger.enter(batch)
            if step % 50 == 0:
                progress.release()
            if rng.random() < 0.005:
                kill_one(float(rng.random()))  # between two steps, beside those in the midst of one
                num_kills += 1
            if step < num_steps - 1:
                pool.send(np.zeros(len(batch), dtype=np.int64), batch.env_id)
    finally:
        stop.set()
        progress.release()
        killer.join()
    assert ledger.num_rows.sum() == num_steps * batch_size
    # Most kills are seen: one may meet a worker that was killed a moment ago.
    assert ledger.num_errors >= num_kills // 2 > 0


@pytest.mark.parametrize("batch_size", [8, 3])
def test_a_run_goes_on_while_workers_are_killed_at_random(make, batch_size):
    long_run(make, 3000, batch_size)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("batch_size", [8, 3])
def test_a_long_run_goes_on_while_workers_are_killed_at_random(make, batch_size):
    long_run(make, 30_000, batch_size)
