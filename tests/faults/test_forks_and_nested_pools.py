"""Processes among pools of Python envs: a pool in a forked child, and a pool inside a worker of a pool."""

from __future__ import annotations

import os

import numpy as np
import pytest
from support.faulty_env import MisbehavingEnv, Misbehavior
from support.python_probes import SleepyEnv

import envfleet
from envfleet import ForkedPoolError

STEP = Misbehavior.STEP


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # that fork and threads mix badly is the point
@pytest.mark.parametrize("backend", ["serial", "threads", "processes"])
@pytest.mark.parametrize("batch_size", [4, 2])
def test_a_forked_child_is_told_and_the_parent_goes_on(backend, batch_size):
    ids = np.arange(4, dtype=np.int32)
    with envfleet.make_pool(SleepyEnv, num_envs=4, batch_size=batch_size, backend=backend) as pool:
        pool.reset()
        pool.step(np.ones(4, dtype=np.float32), ids)
        if batch_size == 2:
            pool.recv()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                pool.step(np.zeros(4, dtype=np.float32), ids)
            except ForkedPoolError as error:
                status = 0 if "make a new pool" in str(error) else 2
            try:
                pool.close()
                del pool
                with envfleet.make_pool(SleepyEnv, num_envs=2, backend=backend) as fresh:
                    fresh.reset()
                    fresh.step(np.ones(2, dtype=np.float32))
            except BaseException:
                status = 3
            os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        # What the child closed were its copies.
        assert len(pool.step(np.zeros(4, dtype=np.float32), ids)) == batch_size


def test_a_pool_inside_a_worker_of_a_pool():
    """An env that is itself made of envs: workers may make pools."""

    class Outer(MisbehavingEnv):
        def __init__(self):
            super().__init__()
            self.inner = envfleet.make_pool(MisbehavingEnv, num_envs=2, num_workers=1, backend="processes")

        def step(self, action):
            self.inner.reset(seed=1)
            return *super().step(action)[:4], {"inner": int(self.inner.step([0, 0]).obs[:, 1].sum())}

        def close(self):
            self.inner.close()

    with envfleet.make_pool(lambda: Outer(), num_envs=2, num_workers=2, backend="processes") as pool:
        pool.reset(seed=0)
        assert pool.step([STEP] * 2).info["inner"].tolist() == [2, 2]
