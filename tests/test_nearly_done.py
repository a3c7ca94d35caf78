"""Pool.call_when_nearly_done(): what apis learn while the last rows of a batch are missing."""

from __future__ import annotations

import threading
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from support.gates import Gate
from support.python_probes import wait_at_gate

import envfleet
from envfleet.errors import CallOrderError, RecvTimeout

NUM_ENVS = 8


class NoiseEnv(gymnasium.Env[Any, Any]):
    """128 KiB of noise for eight envs; a negative action waits at a gate."""

    observation_space = spaces.Box(0, 255, (16384,), np.uint8)
    action_space = spaces.Box(-np.inf, np.inf, (), np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._noise(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action < 0:
            wait_at_gate(-int(action))
        return self._noise(), 0.0, False, False, {}

    def _noise(self) -> Any:
        return self.np_random.integers(0, 256, 16384, dtype=np.uint8)


def make_pool(env: Any = NoiseEnv, **options: Any) -> envfleet.Pool:
    defaults = {"num_envs": NUM_ENVS, "backend": "processes", "num_workers": 2, "copy": False, "seed": 0}
    return envfleet.make_pool(env, **{**defaults, **options})


def actions_with(gate: Gate, env_id: int) -> Any:
    actions = np.zeros(NUM_ENVS)
    actions[env_id] = gate.action
    return actions


def test_the_rows_of_all_other_envs_are_finished(gate: Gate) -> None:
    calls: list[tuple[list[int] | None, Any]] = []
    with make_pool() as pool:
        rows = pool.reset().obs  # a view of the memory that workers write to
        first = rows.copy()

        def told(late: Any) -> None:
            calls.append((late if late is None else late.tolist(), rows.copy()))
            if late is not None:
                gate.open()

        pool.call_when_nearly_done(told)
        batch = pool.step(actions_with(gate, 7))
        (before, rows_before), (late, early_rows) = calls
        assert before is None
        assert np.array_equal(rows_before, first)
        assert late == [7]
        assert np.array_equal(early_rows[:7], batch.obs[:7])
        assert not np.array_equal(early_rows[7], batch.obs[7])
        pool.call_when_nearly_done(None)
        pool.step(np.zeros(NUM_ENVS))
        assert len(calls) == 2


@pytest.mark.parametrize("backend", ["serial", "threads", "processes"])
@pytest.mark.parametrize("batch_size", [NUM_ENVS, 4])
def test_none_comes_before_rows_change(backend: str, batch_size: int) -> None:
    calls: list[Any] = []
    with make_pool(backend=backend, batch_size=batch_size, num_workers=0) as pool:
        rows = pool.reset().obs
        before = rows.copy()

        def told(late: Any) -> None:
            calls.append(late)
            if late is None:
                assert np.array_equal(rows, before)

        pool.call_when_nearly_done(told)
        pool.send(np.zeros(4), np.arange(4))
        pool.recv()
        assert [late for late in calls if late is None] == [None]


class RaisingEnv(NoiseEnv):
    """An action of 1 raises."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action == 1:
            raise RuntimeError("noise")
        return super().step(action)


@pytest.mark.parametrize("num_faulty", [1, 4])
def test_restarted_envs_count_as_missing(gate: Gate, num_faulty: int) -> None:
    """Their rows are replaced. If there are many, nothing is told early: each row would be a copy of its own."""
    calls: list[Any] = []

    def nearly_done(late: Any) -> None:
        calls.append(late if late is None else late.tolist())
        if late is not None:
            gate.open()

    with make_pool(env=RaisingEnv, on_error="restart", autoreset_mode="same_step") as pool:
        pool.reset()
        pool.call_when_nearly_done(nearly_done)
        actions = actions_with(gate, 7)
        actions[:num_faulty] = 1
        batch = pool.step(actions) if num_faulty == 1 else step_with(pool, actions, gate)
        assert batch.truncated.tolist() == [i < num_faulty for i in range(NUM_ENVS)]
    # The last times: before envs are rebuilt, and reset to give their first rows.
    assert calls[:2] == [None, [0, 7] if num_faulty == 1 else None]
    assert set(calls[2:]) == {None}


def step_with(pool: envfleet.Pool, actions: Any, gate: Gate) -> Any:
    """Step while another thread opens the gate as soon as an env has come to it."""
    thread = threading.Thread(target=lambda: (gate.wait_until_reached(), gate.open()))
    thread.start()
    try:
        return pool.step(actions)
    finally:
        thread.join()


def test_what_it_raises_ends_the_call_and_keeps_the_rows(gate: Gate) -> None:
    def fail(late: Any) -> None:
        if late is not None:
            gate.open()
            raise ZeroDivisionError

    with make_pool() as pool, make_pool(backend="serial") as reference:
        pool.reset()
        reference.reset()
        pool.call_when_nearly_done(fail)
        with pytest.raises(ZeroDivisionError):
            pool.step(actions_with(gate, 7))
        pool.call_when_nearly_done(None)
        expected = reference.step(np.zeros(NUM_ENVS)).obs
        assert np.array_equal(pool.recv().obs, expected)
        assert np.array_equal(pool.step(np.zeros(NUM_ENVS)).obs, reference.step(np.zeros(NUM_ENVS)).obs)


def test_after_a_timeout_recv_calls_it_again(gate: Gate) -> None:
    calls: list[list[int]] = []
    with make_pool() as pool:
        pool.reset()

        def told(late: Any) -> None:
            if late is not None:
                calls.append(late.tolist())

        pool.call_when_nearly_done(told)
        with pytest.raises(RecvTimeout):
            pool.step(actions_with(gate, 7), timeout=0.5)
        assert calls in ([], [[7]])  # by how long the others took
        pool.call_when_nearly_done(lambda late: (told(late), gate.open()))
        pool.recv()
        assert calls[-1] == [7]


def test_it_must_not_step_the_pool(gate: Gate) -> None:
    with make_pool() as pool:
        pool.reset()

        def step(late: Any) -> None:
            if late is not None:
                gate.open()
                pool.step(np.zeros(NUM_ENVS))

        pool.call_when_nearly_done(step)
        with pytest.raises(CallOrderError, match="one call of this pool at a time"):
            pool.step(actions_with(gate, 7))


@pytest.mark.parametrize("options", [{"copy": True}, {"backend": "serial"}, {"backend": "threads", "copy": True}])
def test_nothing_is_told_early_where_workers_do_not_write_the_batch(options: dict[str, Any]) -> None:
    def fail(late: Any) -> None:
        assert late is None

    with make_pool(**options) as pool:
        pool.call_when_nearly_done(fail)
        pool.reset()
        for _ in range(20):
            pool.step(np.zeros(NUM_ENVS))


def test_native_pools_never_call_it() -> None:
    with envfleet.make_pool("CartPole-v1", num_envs=4) as pool:
        pool.call_when_nearly_done(lambda late: pytest.fail("was called"))
        pool.reset()
        pool.step(np.zeros(4, np.int64))
