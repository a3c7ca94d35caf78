"""Ctrl-C at every odd moment: the pool goes on, and no env has stepped twice or been left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.python_probes import FaultyEnv
from support.ray_session import ray_session
from test_connections import break_connection

import envfleet
from envfleet import Pool
from envfleet.executors.ray.connection import CallerConnection
from envfleet.executors.ray.dispatcher import Dispatcher, PendingRequest
from envfleet.executors.ray.supervisor import Connections, Worker

pytest.importorskip("ray")

STEP = FaultyEnv.STEP
PLACES = [
    (Dispatcher, "_enqueue"),
    (Dispatcher, "_record"),
    (PendingRequest, "complete"),
    (Worker, "ensure_serving"),
    (Worker, "send"),
    (CallerConnection, "send"),
    (CallerConnection, "_send"),
    (CallerConnection, "_read"),
    (Connections, "wait"),
    (Dispatcher, "_send_one"),
    (Dispatcher, "_take_received"),
    (Dispatcher, "_receive"),
    (Dispatcher, "_prepare"),
    (Dispatcher, "send_ordered"),
    (Dispatcher, "recv_ordered"),
]


@pytest.fixture(scope="module", params=["direct", pytest.param("through Ray", marks=pytest.mark.soak)])
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    """One for all tests: starting actors would take most of the time."""
    ray_session()
    ray = envfleet.RayConfig(direct=request.param == "direct")
    with envfleet.make_pool(FaultyEnv, backend="ray", num_workers=2, num_envs=4, ray=ray) as pool:
        yield pool


@pytest.mark.parametrize("when", ["before", pytest.param("after", marks=pytest.mark.soak)])
@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place[0].__name__}.{place[1]}")
def test_an_interruption_anywhere_leaves_every_row_in_its_place(pool, monkeypatch, place, when):
    owner, name = place
    for turn in range(2):  # with the first worker's part, then with the second's
        pool.reset(seed=0)
        num_before = pool.stats().num_steps // 4  # this also makes the next step begin a new serve() call
        with monkeypatch.context() as patch:
            calls = interrupt(patch, owner, name, when, turn)
            try:
                pool.step([STEP] * 4)
            except KeyboardInterrupt:
                assert len(calls) > turn
        if pool.num_in_flight:
            pool.recv()
        first = pool.step([STEP] * 4).obs[:, 1]
        assert len(set(first.tolist())) == 1
        if pool.executor._workers[0].connection is not None:
            break_connection(pool, 0)
        np.testing.assert_array_equal(pool.step([STEP] * 4).obs[:, 1], first + 1)
        assert [own.num_steps for own in pool.stats().envs] == (num_before + first + 1).tolist()
        assert [len(worker.pending) for worker in pool.executor._workers] == [0, 0]


def interrupt(patch: pytest.MonkeyPatch, owner: Any, name: str, when: str, turn: int) -> list[int]:
    """Has a method raise KeyboardInterrupt once, at its first or second call."""
    real = getattr(owner, name)
    calls: list[int] = []

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) != turn + 1:
            return real(*args, **kwargs)
        if when == "after":
            real(*args, **kwargs)
        raise KeyboardInterrupt

    patch.setattr(owner, name, interrupted)
    return calls
