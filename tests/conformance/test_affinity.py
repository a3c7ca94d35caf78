"""thread_affinity_offset pins the workers of every backend."""

from __future__ import annotations

import os

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import envfleet

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system cannot pin threads")


class AffinityEnv(gymnasium.Env):
    """Observes the first core that its thread may run on, and how many there are."""

    observation_space = spaces.Box(0, 2**16, (2,), np.int64)
    action_space = spaces.Discrete(2)

    def seen(self):
        cores = os.sched_getaffinity(0)
        return np.array([min(cores), len(cores)])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.seen(), {}

    def step(self, action):
        if action == 1:
            os._exit(1)
        return self.seen(), 0.0, False, False, {}


@pytest.mark.parametrize("backend", ["processes", "threads"])
def test_worker_i_runs_on_core_offset_plus_i(backend: str) -> None:
    cores = sorted(os.sched_getaffinity(0))
    with envfleet.make(AffinityEnv, num_envs=6, num_workers=3, backend=backend, thread_affinity_offset=1) as envs:
        envs.reset(seed=0)
        obs = envs.step(np.zeros(6, int))[0]
        expected = [cores[(1 + worker) % len(cores)] for worker in range(3) for _ in range(2)]
        assert obs.tolist() == [[core, 1] for core in expected]
    assert sorted(os.sched_getaffinity(0)) == cores, "the caller is not pinned"


@pytest.mark.parametrize("backend", ["processes", "threads"])
def test_without_an_offset_no_worker_is_pinned(backend: str) -> None:
    cores = os.sched_getaffinity(0)
    with envfleet.make(AffinityEnv, num_envs=2, num_workers=2, backend=backend) as envs:
        assert envs.reset(seed=0)[0].tolist() == [[min(cores), len(cores)]] * 2


def test_a_worker_that_replaces_a_dead_one_is_pinned_too() -> None:
    cores = sorted(os.sched_getaffinity(0))
    with envfleet.make(
        AffinityEnv, num_envs=2, num_workers=2, backend="processes", thread_affinity_offset=0, on_error="restart"
    ) as envs:
        envs.reset(seed=0)
        envs.step(np.array([0, 1]))
        obs = envs.step(np.zeros(2, int))[0]
        assert obs.tolist() == [[cores[worker % len(cores)], 1] for worker in range(2)]


@pytest.mark.parametrize("backend", ["processes", "threads"])
def test_workers_run_on_the_cores_of_the_thread_that_makes_the_pool(backend: str) -> None:
    # Also if the fork server, which worker processes come from, was started before, with all cores.
    envfleet.make(AffinityEnv, num_envs=1, num_workers=1, backend=backend).close()
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        envs = envfleet.make(AffinityEnv, num_envs=2, num_workers=2, backend=backend)
    finally:
        os.sched_setaffinity(0, cores)
    with envs:
        assert envs.reset(seed=0)[0].tolist() == [[max(cores), 1]] * 2


class LargeEnv(gymnasium.Env):
    """Observes a megabyte."""

    observation_space = spaces.Box(0, 255, (2**20,), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.ones(2**20, np.uint8), {}


def test_only_workers_write_rows_first() -> None:
    """Linux puts a page on the NUMA node of whoever writes it first: the caller must leave that to the worker."""
    with envfleet.make_pool(LargeEnv, num_envs=4, num_workers=2, backend="processes") as pool:
        memory = pool.executor._memory.fileno()

        def num_bytes_written() -> int:
            return os.fstat(memory).st_blocks * 512

        assert num_bytes_written() < 2**20, "before the first reset no row exists"
        pool.reset(seed=0, env_ids=np.array([2]))
        assert 2**20 <= num_bytes_written() < 2 * 2**20, "a reset of one env writes one row"
