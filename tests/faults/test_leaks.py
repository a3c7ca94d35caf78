"""Memory, threads and descriptors stay flat over many pools and many steps."""

from __future__ import annotations

import gc

import numpy as np
import psutil
import pytest

import envfleet

PROCESS = psutil.Process()


def resources() -> tuple[int, int, int]:
    gc.collect()
    return PROCESS.memory_info().rss, PROCESS.num_threads(), PROCESS.num_fds()


def cycle(batch_size: int) -> None:
    with envfleet.make(
        "CartPole-v1", num_envs=256, batch_size=batch_size, num_threads=3, autoreset_mode="same_step"
    ) as envs:
        envs.async_reset(seed=0)
        for _ in range(4):
            info = envs.recv()[4]
            envs.send(np.zeros(batch_size, dtype=np.int64), info["env_id"])


@pytest.mark.parametrize("batch_size", [256, 64])
def test_make_step_close(batch_size):
    for _ in range(50):
        cycle(batch_size)
    memory, threads, descriptors = resources()
    for _ in range(400):
        cycle(batch_size)
    memory_after, threads_after, descriptors_after = resources()
    assert threads_after == threads
    assert descriptors_after == descriptors
    # 400 pools of 256 envs are over 20 MB: a leak of each would show.
    assert memory_after - memory < 4 * 2**20


def test_stepping_allocates_no_buffers_in_the_steady_state():
    pool = envfleet.make_pool("CartPole-v1", num_envs=64)
    pool.reset(seed=0)
    actions = np.zeros(64, dtype=np.int64)
    for _ in range(10):
        batch = pool.step(actions)
    before = pool.executor._native.num_buffers
    for _ in range(10_000):
        batch = pool.step(actions)
    assert len(batch) == 64
    assert pool.executor._native.num_buffers == before


def test_errors_leak_nothing():
    pool = envfleet.make_pool("Faulty-v0", num_envs=8, on_error="restart", max_restarts=10**9)
    pool.reset(seed=0)
    for _ in range(500):
        pool.step([1] * 8)
        pool.step([0] * 8)
    before = resources()
    for _ in range(3000):
        pool.step([1] * 8)
        pool.step([0] * 8)
    after = resources()
    assert after[0] - before[0] < 3 * 2**20
    assert after[1:] == before[1:]


def test_making_65536_envs_is_small():
    gc.collect()
    before = PROCESS.memory_info().rss
    pool = envfleet.make_pool("CartPole-v1", num_envs=65_536)
    pool.reset(seed=0)
    assert PROCESS.memory_info().rss - before < 200 * 2**20
