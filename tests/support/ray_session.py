"""One small Ray cluster for all tests of a session: starting one takes seconds, and a process has but one."""

from __future__ import annotations

import atexit
import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import pytest

# A dead node is noticed within half a second instead of half a minute.
_SYSTEM = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 200,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
    # A full object store is full, and told at once: nothing goes to the disk instead.
    "automatic_object_spilling_enabled": False,
    "local_fs_capacity_threshold": 0.0,
    "oom_grace_period_s": 0,
}
OBJECT_STORE_BYTES = 100 * 2**20


@functools.cache
def ray_session() -> Any:
    """The cluster, several-node as soon as a test adds one; this process is on it from now on."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 2,
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE_BYTES,
            "_system_config": _SYSTEM,
        },
    )
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")

    def leave() -> None:
        ray.shutdown()
        with contextlib.suppress(AssertionError):  # it wants no zombies while the tests' children are some
            cluster.shutdown()

    atexit.register(leave)
    return cluster


@contextlib.contextmanager
def spare_nodes(count: int) -> Iterator[list[Any]]:
    """Nodes that only actors which ask for the resource "spare" are placed on."""
    cluster = ray_session()
    nodes = [
        cluster.add_node(num_cpus=1, resources={"spare": 100}, object_store_memory=OBJECT_STORE_BYTES)
        for _ in range(count)
    ]
    try:
        yield nodes
    finally:
        for node in nodes:
            if node in cluster.list_all_nodes():
                cluster.remove_node(node)
