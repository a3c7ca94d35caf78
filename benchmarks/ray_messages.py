"""Measure the cost of Ray messages, and of a step by number of workers, for docs/ray.md.

python benchmarks/ray_messages.py            a few minutes; prints Markdown
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

SIZES = (100, 50_000, 120_000, 450_000, 2_000_000, 8_000_000)
WORKERS = (1, 2, 4, 8, 16)
PART_BYTES = 96_000


class Echo:
    """An actor that replies with a prepared message, in a given number of parts."""

    def prepare(self, num_bytes: int, num_parts: int) -> None:
        part = b"x" * (num_bytes // num_parts)
        self.reply: Any = [part] * num_parts if num_parts > 1 else part

    def give(self, request: bytes) -> Any:
        return self.reply


def median_ms(call: Callable[[], Any], count: int) -> float:
    call()
    times = []
    for _ in range(count):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return 1000 * statistics.median(times)


def message_table(ray: Any, count: int) -> None:
    print("| reply | through the object store or as it is | in parts of 96 kB |\n|---|---|---|")
    actor = ray.remote(Echo).remote()
    for size in SIZES:
        cells = []
        for parts in (1, -(-size // PART_BYTES)):
            ray.get(actor.prepare.remote(size, parts))
            give = actor.give.options(num_returns=parts)
            cells.append(f"{median_ms(lambda give=give: ray.get(give.remote(b'go')), count):.2f} ms")
        print(f"| {size / 1000:,.1f} kB | {' | '.join(cells)} |", flush=True)
    started = time.perf_counter()
    ray.get(actor.prepare.remote(100, 1))
    ray.get([actor.give.remote(b"go") for _ in range(20 * count)])
    print(f"\nPipelined, one after the other: {1000 * (time.perf_counter() - started) / 20 / count:.2f} ms each\n")
    ray.kill(actor)


def worker_table(count: int) -> None:
    """Step pools whose envs cost almost nothing, so that messages dominate. On several nodes of this machine."""
    import envfleet

    print("| workers | per step | per worker | per step, through Ray | per worker |\n|---|---|---|---|---|")
    for num_workers in WORKERS:
        cells = []
        for is_direct in (True, False):
            with envfleet.make_pool(
                "CartPole-v1",
                backend="ray",
                num_workers=num_workers,
                num_envs=num_workers,
                ray=envfleet.RayConfig(direct=is_direct, placement_timeout_s=300),
            ) as pool:
                pool.reset(seed=0)
                actions = np.zeros(num_workers, dtype=np.int64)
                took = median_ms(lambda pool=pool, actions=actions: pool.step(actions), count)
            cells += [f"{took:.2f} ms", f"{took / num_workers:.2f} ms"]
        print(f"| {num_workers} | {' | '.join(cells)} |", flush=True)


def main(count: int = 200) -> None:
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    for _ in range(3):
        cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    try:
        message_table(ray, count)
        worker_table(count)
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
