"""Ctrl-C on Ray, beyond what tests/conformance/test_interruptions.py states for every backend."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from ray_probes import GatedEnv
from support.gates import Gate
from support.ray_session import ray_session
from support.traces import alive, wait_until

import envfleet
from envfleet import CallOrderError, Pool, RecvTimeout

pytest.importorskip("ray")

STEP = GatedEnv.STEP


@pytest.fixture(scope="module", params=["direct", pytest.param("through Ray", marks=pytest.mark.soak)])
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., Pool]]:
    ray_session()
    transport = {} if request.param == "direct" else {"direct": False}
    pools: list[Pool] = []

    def make_one(**options: Any) -> Pool:
        ray = envfleet.RayConfig(**transport)
        pools.append(envfleet.make_pool(GatedEnv, backend="ray", num_workers=2, num_envs=4, ray=ray, **options))
        return pools[-1]

    yield make_one
    for pool in pools:
        pool.close()


@pytest.fixture(scope="module")
def pool(make: Callable[..., Pool]) -> Pool:
    """One for most tests: starting actors would take most of the time."""
    return make()


@pytest.fixture(scope="module")
def witness(make: Callable[..., Pool]) -> Pool:
    """Another pool of the same cluster, which must not notice anything."""
    witness = make()
    witness.reset(seed=0)
    return witness


@contextlib.contextmanager
def ctrl_c(gate: Gate, *, twice: bool) -> Iterator[None]:
    """Ctrl-C while an env waits at the gate, which opens then, or a second Ctrl-C follows."""
    seconds: list[threading.Timer] = []

    def handle(*arguments: Any) -> None:
        if not twice:
            gate.open()
        elif not seconds:
            seconds.append(threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)))
            seconds[0].start()
        signal.default_int_handler(*arguments)

    before = signal.signal(signal.SIGINT, handle)
    try:
        thread = gate.interrupt_when_reached()
        with pytest.raises(KeyboardInterrupt):
            yield
        for second in [thread, *seconds]:
            second.join()
    finally:
        signal.signal(signal.SIGINT, before)


def rollout(pool: Pool) -> list[list[Any]]:
    """What a pool shows after a reset with a seed, and in a few steps."""
    batches = [pool.reset(seed=5), *(pool.step([STEP] * 4) for _ in range(3))]
    return [batch.obs.tolist() for batch in batches]


@pytest.fixture(scope="module")
def fresh_rollout() -> list[list[Any]]:
    with envfleet.make_pool(GatedEnv, num_envs=4, backend="serial") as fresh:
        return rollout(fresh)


def interrupt_call(pool: Pool, gate: Gate) -> None:
    """Leave a pool interrupted, with env 3 at the gate."""
    with ctrl_c(gate, twice=True):
        pool.call("wait", gate.number, env_ids=[0, 3])


def test_a_call_that_finishes_in_time_counts_as_done(pool):
    before = pool.reset(seed=0).obs
    with Gate() as gate, ctrl_c(gate, twice=False):
        pool.call("wait", gate.number)
    np.testing.assert_array_equal(pool.observe(), before)
    with Gate() as gate:
        gate.open()
        assert pool.call("wait", gate.number) == (gate.number,) * 4


def test_the_reset_after_a_call_that_does_not_finish(pool, witness, fresh_rollout):
    pool.reset(seed=0)
    count = witness.step([STEP] * 4).obs[:, 1]
    with Gate() as gate:
        interrupt_call(pool, gate)
        # Neither waits for the worker that is at the gate.
        with pytest.raises(CallOrderError, match=r"interrupted; reset\(\) all envs first"):
            pool.step([STEP] * 4)
        assert len(pool.stats().envs) == 4
        with pytest.raises(RecvTimeout):
            pool.reset(timeout=0.1)
        np.testing.assert_array_equal(witness.step([STEP] * 4).obs[:, 1], count + 1)
        gate.open()
        assert rollout(pool) == fresh_rollout
    np.testing.assert_array_equal(witness.step([STEP] * 4).obs[:, 1], count + 2)


def test_the_reset_after_steps_that_were_sent_and_a_call(pool, fresh_rollout):
    """What is in flight, and a worker that waits, are both left behind."""
    pool.reset(seed=0)
    with Gate() as gate:
        pool.call("wait_in_step", gate.number, env_ids=[1])
        with ctrl_c(gate, twice=True):
            pool.step([STEP] * 4)
        gate.open()
        pool.async_reset(seed=5)
        assert pool.recv().obs.tolist() == fresh_rollout[0]
    assert rollout(pool) == fresh_rollout


def test_a_worker_that_died_while_the_pool_was_interrupted(pool, fresh_rollout):
    pool.reset(seed=0)
    with Gate() as gate:
        interrupt_call(pool, gate)
        os.kill(pool.executor.worker_pids[1], signal.SIGKILL)
        gate.open()
        assert rollout(pool) == fresh_rollout


def test_a_worker_that_does_not_answer_is_killed_after_step_timeout(make, fresh_rollout):
    pool = make(step_timeout=3.0)
    pool.reset(seed=0)
    pids = pool.executor.worker_pids
    with Gate() as gate:
        interrupt_call(pool, gate)
        assert rollout(pool) == fresh_rollout
    assert [old == new for old, new in zip(pids, pool.executor.worker_pids, strict=True)] == [False, False]


def test_an_interrupted_pool_is_closed_although_its_workers_wait(make):
    pool = make()
    pool.reset()
    pids = pool.executor.worker_pids
    with Gate() as gate:
        interrupt_call(pool, gate)
        pool.close()
        assert wait_until(lambda: not alive(pids))


def test_close_in_the_handler_ends_the_call(make):
    pool = make()
    pool.reset()
    with Gate() as gate:

        def close(*arguments: Any) -> None:
            pool.close()

        before = signal.signal(signal.SIGINT, close)
        try:
            thread = gate.interrupt_when_reached()
            with pytest.raises(envfleet.PoolClosedError):
                pool.call("wait", gate.number)
            thread.join()
        finally:
            signal.signal(signal.SIGINT, before)
    assert pool.executor.call_guard.is_ended
