"""A run goes on while actors and nodes are killed at random, and every row is accounted for."""

from __future__ import annotations

import contextlib
import os
import signal

import numpy as np
import pytest
from ray_probes import PlacedEnv
from support.ray_session import ray_session, spare_nodes

from envfleet import Batch, Pool

ray = pytest.importorskip("ray")

NUM_WORKERS, PER_WORKER = 3, 2
NUM_ENVS = NUM_WORKERS * PER_WORKER


class Account:
    """What each env's last row said, and what its next may say."""

    def __init__(self, first: Batch) -> None:
        self.counts = first.obs[:, 1].tolist()
        self.has_ended = [False] * NUM_ENVS
        self.rows = [0] * NUM_ENVS
        self.errors = 0

    def note(self, batch: Batch) -> None:
        errors = batch.info.get("error", [None] * len(batch))
        for row, env_id in enumerate(batch.env_id.tolist()):
            self.rows[env_id] += 1
            if errors[row] is not None:
                # Not while it was between two episodes: of those the first row would have been lost too.
                assert batch.truncated[row], (env_id, errors[row])
                self.errors += 1
                self.has_ended[env_id] = True
                continue
            expected = 0 if self.has_ended[env_id] else self.counts[env_id] + 1
            assert batch.obs[row, 1] == expected, (env_id, self.rows[env_id])
            assert batch.elapsed_step[row] == expected
            self.counts[env_id] = expected
            self.has_ended[env_id] = bool(batch.terminated[row] or batch.truncated[row])


class Killer:
    """Kills an actor, by signal or by Ray, or a node, whatever the pool is doing."""

    def __init__(self, pool: Pool, nodes: list, seed: int) -> None:
        self.pool, self.nodes, self.rng = pool, nodes, np.random.default_rng(seed)

    def kill_actor(self) -> None:
        worker = int(self.rng.integers(NUM_WORKERS))
        if self.rng.random() < 0.5:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pool.executor.worker_pids[worker], signal.SIGKILL)
        elif self.pool.executor.actors[worker] is not None:
            ray.kill(self.pool.executor.actors[worker])

    def kill_node(self) -> None:
        """And another takes its place, as in a cluster that mends itself."""
        cluster = ray_session()
        victim = self.nodes.pop(int(self.rng.integers(len(self.nodes))))
        cluster.remove_node(victim, allow_graceful=False)
        self.nodes.append(cluster.add_node(num_cpus=1, resources={"spare": 100}, object_store_memory=80 * 2**20))


def long_run(make, num_steps: int, batch_size: int, kills: int, node_kills: int) -> None:
    with spare_nodes(2) as nodes:
        pool: Pool = make(
            PlacedEnv,
            num_workers=NUM_WORKERS,
            envs_per_worker=PER_WORKER,
            batch_size=batch_size,
            on_error="restart",
            max_restarts=100_000,
            ray_options={"resources": {"spare": 1}, "num_cpus": 0},
            length=25,
        )
        account = Account(pool.reset(seed=1))
        killer = Killer(pool, nodes, seed=num_steps)
        at = {int(step): killer.kill_actor for step in np.linspace(5, num_steps * 0.9, kills)}
        at.update({int(step): killer.kill_node for step in np.linspace(num_steps // 3, num_steps * 0.8, node_kills)})
        zeros = np.zeros(NUM_ENVS, dtype=np.int64)
        if batch_size < NUM_ENVS:
            pool.send(zeros, np.arange(NUM_ENVS, dtype=np.int32))
        for step in range(num_steps):
            at.get(step, int)()
            if batch_size < NUM_ENVS:
                batch = pool.recv()
                account.note(batch)
                pool.send(zeros[: len(batch)], batch.env_id)
            else:
                account.note(pool.step(zeros))
        assert sum(account.rows) == num_steps * batch_size
        assert account.errors >= kills // 2
        if batch_size == NUM_ENVS:
            assert set(account.rows) == {num_steps}
        pool.close()


def test_a_run_goes_on_while_actors_and_a_node_are_killed(make):
    long_run(make, 200, NUM_ENVS, kills=2, node_kills=1)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("batch_size", [NUM_ENVS, 2])
def test_a_long_run_goes_on_while_actors_and_nodes_are_killed(make, batch_size):
    long_run(make, 20_000, batch_size, kills=40, node_kills=4)
