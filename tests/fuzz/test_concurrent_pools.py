"""Threads that make, step, misuse and close pools at the same time.

Each thread has pools of its own, which nobody else may disturb: every batch of theirs is held against a model. On
top of that all threads use the same shared pools, against the rules. Whatever happens, a call gives a correct batch
or raises what is documented, and in the end no process, descriptor or shared memory is left.

A failure prints its seed; ENVFLEET_FUZZ_SEED=<seed> runs the same operations again (the schedule is the system's).
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import random
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import pytest
from support.python_probes import FaultyEnv
from support.traces import Traces, assert_nothing_left, wait_until

import envfleet
from envfleet import (
    ActionError,
    CallOrderError,
    EnvError,
    EnvIdError,
    Pool,
    PoolClosedError,
    RecvTimeout,
    WorkerDied,
)

# What a second thread inside the same pool may see.
SECOND_THREAD_SEES: tuple[type[Exception], ...] = (CallOrderError, PoolClosedError)
# What threads do to a pool that they share.
SHARED_CALLS = ("step", "step_some", "reset", "send", "recv", "bad_action", "num_in_flight", "close", "close")

NUM_THREADS = 4
PATIENCE_S = 240.0  # for a thread; it only ends a test that hangs
STEP, THROW = FaultyEnv.STEP, FaultyEnv.THROW
KINDS = [
    ("native", None),
    ("serial", None),
    ("threads", None),
    ("processes", "forkserver"),
    ("processes", "fork"),
    ("processes", "spawn"),
]
SHORT = {"native": 150, "serial": 80, "threads": 80, "forkserver": 40, "fork": 40, "spawn": 4}


def make(kind: tuple[str, str | None], rng: random.Random) -> Pool:
    backend, start_method = kind
    num_envs = rng.randint(1, 4)
    options: dict[str, Any] = {"num_envs": num_envs, "seed": 0}
    if backend == "native":
        return envfleet.make_pool("Faulty-v0", num_threads=rng.randint(1, 2), **options)
    if backend != "serial":
        options["num_workers"] = rng.randint(1, num_envs) if start_method != "spawn" else 1
    if start_method is not None:
        options["start_method"] = start_method
    return envfleet.make_pool(FaultyEnv, backend=backend, **options)


class OwnPool:
    """A pool of one thread, and how many steps each env has made since its reset."""

    def __init__(self, kind: tuple[str, str | None], rng: random.Random) -> None:
        self._rng = rng
        self.pool = make(kind, rng)
        self._has_workers = kind[0] == "processes"
        self._counts = np.zeros(self.pool.num_envs, dtype=np.int64)
        self.reset()

    def run_one(self) -> None:
        """One operation, or one mistake."""
        calls = [self.step, self.step, self.step_some, self.send_and_receive, self.reset]
        calls += [self.misuse, self.raise_in_env]
        if self._has_workers:
            calls += [self.kill_worker]
        self._rng.choice(calls)()

    def reset(self) -> None:
        batch = self.pool.reset()
        self._counts[:] = 0
        self._compare(batch)

    def step(self) -> None:
        batch = self.pool.step([STEP] * self.pool.num_envs)
        self._counts += 1
        self._compare(batch)

    def step_some(self) -> None:
        ids = self._some_ids()
        batch = self.pool.step([STEP] * len(ids), ids)
        self._counts[ids] += 1
        self._compare(batch, ids)

    def send_and_receive(self) -> None:
        ids = self._some_ids()
        self.pool.send([STEP] * len(ids), ids)
        assert self.pool.num_in_flight == len(ids)
        with pytest.raises((CallOrderError, EnvIdError)):
            self.pool.send([STEP] * len(ids), ids)
        with contextlib.suppress(RecvTimeout):
            batch = self.pool.recv(timeout=0.0)
            self._counts[ids] += 1
            self._compare(batch, ids)
            return
        batch = self.pool.recv()
        self._counts[ids] += 1
        self._compare(batch, ids)

    def misuse(self) -> None:
        num_envs = self.pool.num_envs
        with pytest.raises(ActionError):
            self.pool.step([99] * num_envs)
        with pytest.raises(ActionError):
            self.pool.step([STEP] * (num_envs + 1))
        with pytest.raises(EnvIdError):
            self.pool.step([STEP], [num_envs])
        with pytest.raises(CallOrderError):
            self.pool.recv()

    def raise_in_env(self) -> None:
        with pytest.raises(EnvError, match="joint 3 exploded") as caught:
            self.pool.step([THROW] * self.pool.num_envs)
        assert {fault.env_id for fault in caught.value.faults} == set(range(self.pool.num_envs))
        self.reset()

    def kill_worker(self) -> None:
        pids = self.pool.executor.worker_pids
        os.kill(self._rng.choice(pids), signal.SIGKILL)
        with contextlib.suppress(WorkerDied):
            while True:
                self.step()
        self.reset()

    def close(self) -> None:
        self.pool.close()
        self.pool.close()
        with pytest.raises(PoolClosedError):
            self.pool.step([STEP] * self.pool.num_envs)

    def _some_ids(self) -> list[int]:
        return sorted(self._rng.sample(range(self.pool.num_envs), self._rng.randint(1, self.pool.num_envs)))

    def _compare(self, batch: envfleet.Batch, ids: list[int] | None = None) -> None:
        expected = self._counts if ids is None else self._counts[ids]
        assert batch.env_id.tolist() == (list(range(self.pool.num_envs)) if ids is None else ids)
        assert batch.obs[:, 1].tolist() == expected.tolist()


class SharedPool:
    """A pool that all threads use at once; a new one follows when it was closed."""

    def __init__(self, kind: tuple[str, str | None], rng: random.Random) -> None:
        self._kind, self._rng = kind, rng
        self._lock = threading.Lock()
        self._pool = make(kind, rng)

    def run_one(self, rng: random.Random) -> None:
        """One call, whatever the others do."""
        with self._lock:
            if self._pool.closed:
                self._pool = make(self._kind, self._rng)
            pool = self._pool
        try:
            batch = getattr(self, f"_{rng.choice(SHARED_CALLS)}")(pool)
        except (*SECOND_THREAD_SEES, RecvTimeout):
            return
        if batch is not None:
            assert 1 <= len(batch) <= pool.num_envs
            assert batch.env_id.tolist() == sorted(set(batch.env_id.tolist()))
            assert (batch.obs[:, 1] >= 0).all()

    def close(self) -> None:
        self._pool.close()

    def _step(self, pool: Pool) -> envfleet.Batch:
        return pool.step([STEP] * pool.num_envs)

    def _step_some(self, pool: Pool) -> envfleet.Batch | None:
        with contextlib.suppress(EnvIdError):  # one that another thread has sent
            return pool.step([STEP], [pool.num_envs - 1])
        return None

    def _reset(self, pool: Pool) -> envfleet.Batch:
        return pool.reset()

    def _send(self, pool: Pool) -> None:
        with contextlib.suppress(EnvIdError):
            pool.send([STEP] * pool.num_envs)

    def _recv(self, pool: Pool) -> envfleet.Batch:
        return pool.recv(timeout=1.0)

    def _bad_action(self, pool: Pool) -> None:
        with pytest.raises((ActionError, *SECOND_THREAD_SEES)):
            pool.step([99] * pool.num_envs)

    def _num_in_flight(self, pool: Pool) -> None:
        assert 0 <= pool.num_in_flight <= pool.num_envs

    def _close(self, pool: Pool) -> None:
        pool.close()


def work(kind: tuple[str, str | None], seed: str, num_operations: int, shared: SharedPool) -> None:
    """What one thread does."""
    rng = random.Random(seed)
    pools = [OwnPool(kind, rng)]
    try:
        for _ in range(num_operations):
            dice = rng.random()
            if dice < 0.15 and len(pools) < 3:
                pools.append(OwnPool(kind, rng))
            elif dice < 0.25 and len(pools) > 1:
                pools.pop(rng.randrange(len(pools))).close()
            elif dice < 0.5:
                shared.run_one(rng)
            else:
                rng.choice(pools).run_one()
    finally:
        for own in pools:
            own.pool.close()


def run_all(target: Callable[[int], None], seed: str) -> None:
    """Runs it in threads; fails on the first exception of any, or when one hangs."""
    failures: list[str] = []

    def run(number: int) -> None:
        try:
            target(number)
        except BaseException:
            failures.append(traceback.format_exc())

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(NUM_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    if any(thread.is_alive() for thread in threads):
        faulthandler.dump_traceback(sys.stderr)
        failures.append("a thread hangs")
    assert not failures, f"ENVFLEET_FUZZ_SEED={seed}\n" + "\n".join(failures)


def fuzz(kind: tuple[str, str | None], num_operations: int) -> None:
    seed = os.environ.get("ENVFLEET_FUZZ_SEED") or str(random.SystemRandom().getrandbits(32))
    print(f"ENVFLEET_FUZZ_SEED={seed}")
    rng = random.Random(seed)
    bystander = OwnPool(kind, rng)
    make(kind, rng).close()
    before, num_threads = Traces.now(), psutil.Process().num_threads()
    shared = SharedPool(kind, rng)
    run_all(lambda number: work(kind, f"{seed}/{number}", num_operations, shared), seed)
    shared.close()
    for _ in range(3):
        bystander.step()  # nobody has touched it
    assert_nothing_left(before)
    assert wait_until(lambda: psutil.Process().num_threads() <= num_threads), f"ENVFLEET_FUZZ_SEED={seed}"
    bystander.close()


pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(filter(None, kind)))


@each_kind
def test_threads_with_pools_of_their_own_and_shared_ones(kind):
    fuzz(kind, SHORT[kind[1] or kind[0]])


@pytest.mark.soak
@pytest.mark.timeout(3600)
@each_kind
def test_threads_with_pools_of_their_own_and_shared_ones_for_long(kind):
    fuzz(kind, 8 * SHORT[kind[1] or kind[0]])
