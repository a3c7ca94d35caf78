"""Pool.call_when_nearly_done(): what apis learn while the last rows of a batch are missing."""

from __future__ import annotations

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


def make_pool(**options: Any) -> envfleet.Pool:
    defaults = {"num_envs": NUM_ENVS, "backend": "processes", "num_workers": 2, "copy": False, "seed": 0}
    return envfleet.make_pool(NoiseEnv, **{**defaults, **options})


def actions_with(gate: Gate, env_id: int) -> Any:
    actions = np.zeros(NUM_ENVS)
    actions[env_id] = gate.action
    return actions


def test_the_rows_of_all_other_envs_are_finished(gate: Gate) -> None:
    calls: list[tuple[list[int], Any]] = []
    with make_pool() as pool:
        rows = pool.reset().obs  # a view of the memory that workers write to

        def nearly_done(late: Any) -> None:
            calls.append((late.tolist(), rows.copy()))
            gate.open()

        pool.call_when_nearly_done(nearly_done)
        batch = pool.step(actions_with(gate, 7))
        ((late, early_rows),) = calls
        assert late == [7]
        assert np.array_equal(early_rows[:7], batch.obs[:7])
        assert not np.array_equal(early_rows[7], batch.obs[7])
        pool.call_when_nearly_done(None)
        for _ in range(20):
            pool.step(np.zeros(NUM_ENVS))
        assert len(calls) == 1


def test_what_it_raises_ends_the_call_and_keeps_the_rows(gate: Gate) -> None:
    def fail(late: Any) -> None:
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
        pool.call_when_nearly_done(lambda late: calls.append(late.tolist()))
        with pytest.raises(RecvTimeout):
            pool.step(actions_with(gate, 7), timeout=0.5)
        assert calls in ([], [[7]])  # by how long the others took
        pool.call_when_nearly_done(lambda late: (calls.append(late.tolist()), gate.open()))
        pool.recv()
        assert calls[-1] == [7]


def test_it_must_not_step_the_pool(gate: Gate) -> None:
    with make_pool() as pool:
        pool.reset()

        def step(late: Any) -> None:
            gate.open()
            pool.step(np.zeros(NUM_ENVS))

        pool.call_when_nearly_done(step)
        with pytest.raises(CallOrderError, match="one call of this pool at a time"):
            pool.step(actions_with(gate, 7))


@pytest.mark.parametrize("options", [{"copy": True}, {"backend": "serial"}, {"backend": "threads", "copy": True}])
def test_it_is_not_called_where_batches_are_no_views(options: dict[str, Any]) -> None:
    def fail(late: Any) -> None:
        raise AssertionError

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
