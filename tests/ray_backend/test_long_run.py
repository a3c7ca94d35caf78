"""A run goes on while actors and nodes are killed at random, and every row is accounted for."""

from __future__ import annotations

import contextlib
import os
import signal

import numpy as np
import pytest
from ray_probes import PlacedEnv
from support.ledger import Ledger
from support.ray_session import ray_session, spare_nodes

from envfleet import Pool, RayConfig

ray = pytest.importorskip("ray")

NUM_WORKERS, PER_WORKER = 3, 2
NUM_ENVS = NUM_WORKERS * PER_WORKER
LENGTH = 25


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
        """And another takes its place, as in a cluster that repairs itself."""
        cluster = ray_session()
        victim = self.nodes.pop(int(self.rng.integers(len(self.nodes))))
        cluster.remove_node(victim, allow_graceful=False)
        self.nodes.append(cluster.add_node(num_cpus=1, resources={"spare": 100}, object_store_memory=80 * 2**20))


def long_run(make, num_steps: int, batch_size: int, kills: int, node_kills: int) -> None:
    with spare_nodes(2) as nodes:
        pool: Pool = make(
            PlacedEnv,
            num_workers=NUM_WORKERS,
            num_envs=NUM_WORKERS * PER_WORKER,
            batch_size=batch_size,
            on_error="restart",
            max_restarts=100_000,
            ray=RayConfig(actor_options={"resources": {"spare": 1}, "num_cpus": 0}),
            length=LENGTH,
        )
        pool.reset(seed=1)
        ledger = Ledger(NUM_ENVS, LENGTH)
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
                ledger.enter(batch)
                pool.send(zeros[: len(batch)], batch.env_id)
            else:
                ledger.enter(pool.step(zeros))
        assert ledger.num_rows.sum() == num_steps * batch_size
        assert ledger.num_errors >= kills // 2
        if batch_size == NUM_ENVS:
            assert set(ledger.num_rows.tolist()) == {num_steps}
        pool.close()


def test_a_run_goes_on_while_actors_and_a_node_are_killed(make):
    long_run(make, 200, NUM_ENVS, kills=2, node_kills=1)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("batch_size", [NUM_ENVS, 2])
def test_a_long_run_goes_on_while_actors_and_nodes_are_killed(make, batch_size):
    long_run(make, 20_000, batch_size, kills=40, node_kills=4)
