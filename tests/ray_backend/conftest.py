"""make: pools on the session's cluster, closed afterwards."""

from __future__ import annotations

from typing import Any

import pytest
from ray_session import ray_session

import envfleet
from envfleet import Pool


@pytest.fixture
def make():
    ray_session()
    pools: list[Pool] = []

    def make(env: Any, **options: Any) -> Pool:
        pools.append(envfleet.make_pool(env, backend="ray", **options))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()
