"""Large observations of worker processes, which are copied while the last envs of a batch still step."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import envfleet

NUM_ENVS = 24  # on two workers: env 23 is the last of the second
STEP, STEP_LATE, RAISE_LATE, DIE_LATE = range(4)


class PictureEnv(gymnasium.Env[Any, Any]):
    """Observations of 28 kB, of which every byte tells the seed and the step."""

    observation_space = spaces.Box(0, 255, (84, 84, 4), np.uint8)
    action_space = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.value = int(self.np_random.integers(100))
        return self._picture(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.value += 1
        if action != STEP:
            time.sleep(0.05)  # the others are done by then; the test holds if they are not
        if action == RAISE_LATE:
            raise ValueError("late")
        if action == DIE_LATE:
            os.kill(os.getpid(), signal.SIGKILL)
        return self._picture(), float(self.value), self.value % 7 == 0, False, {}

    def _picture(self) -> Any:
        return np.full((84, 84, 4), self.value, np.uint8)


def actions(of_last: int) -> np.ndarray:
    return np.array([STEP] * (NUM_ENVS - 1) + [of_last])


@pytest.fixture
def pool():
    with envfleet.make_pool(PictureEnv, num_envs=NUM_ENVS, num_workers=2, backend="processes", seed=5) as pool:
        pool.reset()
        yield pool


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_rows_are_those_of_a_plain_loop(mode):
    options = {"num_envs": NUM_ENVS, "seed": 5, "autoreset_mode": mode}
    with (
        envfleet.make_pool(PictureEnv, num_workers=2, backend="processes", **options) as pool,
        envfleet.make_pool(PictureEnv, backend="serial", **options) as reference,
    ):
        held = [(pool.reset(), reference.reset())]
        for _ in range(10):
            held.append((pool.step(actions(STEP_LATE)), reference.step(actions(STEP))))
        for batch, expected in held:  # at the end: no batch may have changed
            assert np.array_equal(batch.obs, expected.obs)
            assert np.array_equal(batch.terminated, expected.terminated)
            if expected.final is not None:
                assert np.array_equal(batch.final.obs, expected.final.obs)


def test_an_env_that_raises_last(pool):
    with pytest.raises(envfleet.EnvError, match="late") as caught:
        pool.step(actions(RAISE_LATE))
    batch = caught.value.batch
    assert np.array_equal(batch.obs[:-1, 0, 0, 0], batch.reward[:-1])
    assert (batch.obs[:-1] == batch.obs[:-1, :1, :1, :1]).all()
    assert not batch.obs[-1].any()


def test_a_worker_that_dies_last(pool):
    with pytest.raises(envfleet.WorkerDied) as caught:
        pool.step(actions(DIE_LATE))
    lost = [fault.env_id for fault in caught.value.faults]
    batch = caught.value.batch
    kept = [env_id for env_id in range(NUM_ENVS) if env_id not in lost]
    assert NUM_ENVS - 1 in lost
    assert set(range(NUM_ENVS // 2)) <= set(kept)
    assert (batch.obs[kept] == batch.reward[kept, None, None, None]).all()
    assert not batch.obs[lost].any()
    assert pool.reset().obs.shape == (NUM_ENVS, 84, 84, 4)


def test_a_batch_that_comes_too_late_is_received_later(pool):
    expected = pool.observe()[:, 0, 0, 0] + 1
    with pytest.raises(TimeoutError):
        pool.step(actions(STEP_LATE), timeout=0.001)
    batch = pool.recv()
    assert np.array_equal(batch.obs[:, 0, 0, 0], expected)
    assert (batch.obs == batch.obs[:, :1, :1, :1]).all()
