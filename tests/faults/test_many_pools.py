"""Many workers, many pools at once, many pools one after the other, each start method: the same rows, nothing left."""

from __future__ import annotations

import os
import threading

import numpy as np
import psutil
import pytest
from support.faulty_env import MisbehavingEnv, Misbehavior
from support.python_probes import SleepyEnv
from support.space_env import SpaceEnv
from support.traces import Traces, assert_nothing_left, wait_until

import envfleet

STEP = Misbehavior.STEP
START_METHODS = ["forkserver", "spawn", "fork"]


@pytest.mark.parametrize("backend", ["threads", "processes"])
def test_more_workers_than_cores(backend):
    num_workers = 4 * len(os.sched_getaffinity(0)) + 3
    pools = [
        envfleet.make_pool(SpaceEnv, num_envs=num_workers + 2, env_kwargs={"kind": "discrete"}, backend=own, **options)
        for own, options in ((backend, {"num_workers": num_workers}), ("serial", {}))
    ]
    try:
        batches = [pool.reset(seed=0) for pool in pools]
        for _ in range(20):
            np.testing.assert_array_equal(batches[0].obs, batches[1].obs)
            np.testing.assert_array_equal(batches[0].elapsed_step, batches[1].elapsed_step)
            batches = [pool.step(np.full(num_workers + 2, 1)) for pool in pools]
    finally:
        for pool in pools:
            pool.close()


def test_many_pools_at_once():
    before_pools = [
        envfleet.make_pool(MisbehavingEnv, num_envs=2, num_workers=1, backend="processes") for _ in range(10)
    ]
    starts = [pool.reset(seed=5).obs.tolist() for pool in before_pools]
    assert all(own == starts[0] for own in starts)
    # Closed in another order than made.
    for pool in before_pools[::2] + before_pools[1::2]:
        assert pool.step([STEP] * 2).obs[:, 1].tolist() == [1, 1]
        pool.close()


def cycle(backend: str, start_method: str | None = None) -> None:
    options = {} if backend == "serial" else {"num_workers": 2}
    if start_method is not None:
        options["start_method"] = start_method
    with envfleet.make_pool(MisbehavingEnv, num_envs=4, backend=backend, **options) as pool:
        pool.reset(seed=0)
        pool.step([STEP] * 4)
        pool.send([STEP] * 4)


def assert_flat(backend: str, start_method: str | None, num_cycles: int) -> None:
    for _ in range(max(3, num_cycles // 10)):
        cycle(backend, start_method)
    before, process = Traces.now(), psutil.Process()
    memory, num_threads = process.memory_info().rss, process.num_threads()
    for _ in range(num_cycles):
        cycle(backend, start_method)
    assert_nothing_left(before)
    assert wait_until(lambda: process.num_threads() <= num_threads)
    # A leak of one page a cycle is 4 kB; the rest is how the allocator breathes.
    assert process.memory_info().rss - memory < 3 * 2**20 + 4096 * num_cycles


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("backend", "start_method", "num_cycles"),
    [
        ("serial", None, 200),
        ("threads", None, 100),
        ("processes", "forkserver", 30),
        ("processes", "fork", 20),
        ("processes", "spawn", 3),
    ],
)
def test_making_and_closing_leaves_nothing(backend, start_method, num_cycles):
    assert_flat(backend, start_method, num_cycles)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", ["serial", "threads", "processes"])
def test_making_and_closing_a_thousand_times_leaves_nothing(backend):
    assert_flat(backend, None, 1000)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_start_methods_give_the_same_rollout():
    rollouts = []
    for start_method in START_METHODS:
        with envfleet.make_pool(
            SpaceEnv,
            num_envs=3,
            num_workers=2,
            backend="processes",
            start_method=start_method,
            env_kwargs={"kind": "multi_discrete"},
        ) as pool:
            batches = [pool.reset(seed=2)]
            action = np.broadcast_to(pool.spec.action_space.start, (3, 2, 3))
            batches += [pool.step(np.ascontiguousarray(action)) for _ in range(15)]
            rollouts.append([(own.obs.tolist(), own.reward.tolist(), own.info["count"].tolist()) for own in batches])
    assert rollouts[0] == rollouts[1] == rollouts[2]


def test_the_gil_is_free_while_the_caller_waits(gate):
    """Other threads of the caller run while workers step: the step ends when one of them opens the gate."""
    with envfleet.make_pool(SleepyEnv, num_envs=2, num_workers=2, backend="processes") as pool:
        pool.reset()
        pool.send(np.array([gate.action, gate.action], dtype=np.float32))
        seen = []

        def open_the_gate():
            gate.wait_until_reached()
            seen.append(pool.num_in_flight)
            gate.open()

        opener = threading.Thread(target=open_the_gate)
        opener.start()
        assert pool.recv().obs.tolist() == [1, 1]
        opener.join()
        assert seen == [2]
