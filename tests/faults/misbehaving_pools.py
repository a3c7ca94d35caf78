"""Pools of MisbehavingEnv: made, given trouble, and looked at afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from support.faulty_env import MisbehavingEnv, Misbehavior
from support.traces import Traces, alive, assert_nothing_left

import envfleet
from envfleet import Pool, WorkerDied

STEP = Misbehavior.STEP


@contextlib.contextmanager
def misbehaving_pools(**defaults: Any) -> Iterator[Callable[..., Pool]]:
    """Makes pools with these options, closes them at the end; afterwards nothing of them may be left."""
    # What stays for later pools (a fork server, say) is there before the counting begins.
    envfleet.make_pool(MisbehavingEnv, **defaults).close()
    before, pools = Traces.now(), []

    def make(env: Any = MisbehavingEnv, **options: Any) -> Pool:
        pools.append(envfleet.make_pool(env, **{**defaults, **options}))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()
    pools.clear()
    assert_nothing_left(before)


def on_two_workers(backend: str) -> dict[str, Any]:
    """Options for four envs: 0 and 1 on the first worker, 2 and 3 on the second, where the backend has workers."""
    return {"num_envs": 4, "backend": backend, **({} if backend == "serial" else {"num_workers": 2})}


def actions(trouble: Misbehavior, env_id: int) -> list[int]:
    """That trouble for one env of four, plain steps for the others."""
    return [int(trouble if own == env_id else STEP) for own in range(4)]


def assert_usable(pool: Pool) -> None:
    """Reset, then step, as if nothing had been."""
    num_envs = pool.num_envs
    first = pool.reset(seed=3)
    assert first.obs[:, 1].tolist() == [0] * num_envs
    assert first.obs[:, 0].tolist() == [np.random.default_rng(3 + i).integers(0, 1_000_000) for i in range(num_envs)]
    pool.send([STEP] * num_envs, np.arange(num_envs, dtype=np.int32))
    for _ in range(num_envs // pool.config.batch_size):
        assert (pool.recv().obs[:, 1] == 1).all()


def worker_pids(pool: Pool) -> list[int]:
    return [int(pid) for pid in pool.executor.worker_pids]


def assert_both_workers_usable(pool: Pool) -> None:
    """The same of a synchronous pool on two worker processes, which both live."""
    assert_usable(pool)
    for count in (2, 3):
        assert pool.step([STEP] * 4).obs[:, 1].tolist() == [count] * 4
    assert len(alive(worker_pids(pool))) == 2


def assert_second_worker_kept(error: Exception, count: int = 1) -> None:
    """The first worker died with env 1: what the second did is there, and env 0's row is zeros or right."""
    assert isinstance(error, WorkerDied)
    faulty = {fault.env_id for fault in error.faults}
    assert {1} <= faulty <= {0, 1}
    counts = error.batch.obs[:, 1].tolist()
    assert counts == [0 if 0 in faulty else count, 0, count, count]
