"""make: pools on the session's cluster, closed afterwards. Their messages go on lines; in the long run also by Ray."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from support.ray_session import ray_session

import envfleet
from envfleet import Pool


@pytest.fixture
def make_on_lines():
    """The same with lines, whatever the run."""
    ray_session()
    pools: list[Pool] = []

    def make(env: Any, **options: Any) -> Pool:
        pools.append(envfleet.make_pool(env, backend="ray", **options))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


@pytest.fixture(params=["on lines", pytest.param("by Ray", marks=pytest.mark.soak)])
def make(request, make_on_lines):
    return partial(make_on_lines, ray_direct=False) if request.param == "by Ray" else make_on_lines
