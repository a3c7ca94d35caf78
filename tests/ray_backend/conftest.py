"""make: pools on the session's cluster, closed afterwards; on their own connections, in soak runs also through Ray."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.ray_session import ray_session

import envfleet
from envfleet import Pool, RayConfig


@pytest.fixture
def make_direct():
    """Make pools with connections of their own, in every run."""
    ray_session()
    pools: list[Pool] = []

    def make(env: Any, **options: Any) -> Pool:
        pools.append(envfleet.make_pool(env, backend="ray", **options))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


@pytest.fixture(params=["direct", pytest.param("through Ray", marks=pytest.mark.soak)])
def make(request, make_direct):
    def make_through_ray(env: Any, ray: RayConfig | None = None, **options: Any) -> Pool:
        return make_direct(env, ray=replace(ray or RayConfig(), direct=False), **options)

    return make_direct if request.param == "direct" else make_through_ray
