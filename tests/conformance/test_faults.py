"""An env that raises: the others' rows are kept, the pool stays usable, a restart goes on."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from support.deliveries import Deliveries, assert_same_row, rows_of, run_with_faults
from support.subjects import SUBJECTS

import envfleet
from envfleet import CallOrderError, EnvError, Pool
from envfleet.core.seeding import restart_seed

PACKAGE = str(Path(envfleet.__file__).parent)
STEP, THROW, THROW_INT, THROW_AT_RESET, END, THROW_IN_OBSERVE, THROW_NONSENSE = range(7)


@pytest.mark.ray_core
def test_the_exception_names_env_and_method_and_keeps_the_other_rows(make):
    pool: Pool = make("Faulty-v0", num_envs=4, num_threads=2)
    pool.reset(seed=0)
    with pytest.raises(EnvError, match=r"env 2 raised in step\(\).*joint 3 exploded") as caught:
        pool.step([STEP, STEP, THROW, STEP])
    error = caught.value
    assert (error.env_id, error.method) == (2, "step")
    assert error.batch.obs[:, 1].tolist() == [1, 1, 0, 1]
    assert error.batch.reward.tolist() == [1, 1, 0, 1]
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert again.faults == error.faults


@pytest.mark.ray_core
def test_a_broken_env_is_refused_until_its_reset_rebuilds_it(make):
    pool: Pool = make("Faulty-v0", num_envs=3)
    pool.reset(seed=0)
    with pytest.raises(EnvError):
        pool.step([STEP, THROW, STEP])
    with pytest.raises(CallOrderError, match=r"env 1 raised earlier.*reset\(\[1\]\)"):
        pool.step([STEP, STEP, STEP])
    assert pool.step([STEP, STEP], [0, 2]).obs[:, 1].tolist() == [2, 2]
    assert pool.reset([1]).obs[0, 1] == 0
    assert pool.step([STEP, STEP, STEP]).obs[:, 1].tolist() == [3, 1, 3]


def test_a_rebuilt_env_gets_the_same_stream_on_every_executor(make):
    """From its seed and the count of restarts alone."""
    starts = []
    for _ in range(2):
        pool: Pool = make("Faulty-v0", num_envs=2, seed=9)
        pool.reset()
        with pytest.raises(EnvError):
            pool.step([THROW, STEP])
        starts.append(int(pool.reset([0]).obs[0, 0]))
    assert starts[0] == starts[1]
    fresh = np.random.default_rng(restart_seed(9, 1))
    assert starts[0] == fresh.integers(0, 1_000_000)


def test_throwing_something_that_is_no_exception(make):
    pool: Pool = make("Faulty-v0", num_envs=1)
    pool.reset()
    with pytest.raises(EnvError, match="env 0 raised in step"):
        pool.step([THROW_INT])


def test_what_is_thrown_need_not_be_text(make):
    pool: Pool = make("Faulty-v0", num_envs=2)
    pool.reset()
    with pytest.raises(EnvError, match="caf\ufffd"):
        pool.step([STEP, THROW_NONSENSE])
    assert pool.reset().obs[:, 1].tolist() == [0, 0]


@pytest.mark.parametrize("batch_size", [2, 1])
def test_an_env_that_broke_in_a_dropped_batch_is_rebuilt_all_the_same(make, batch_size):
    pool: Pool = make("Faulty-v0", num_envs=2, batch_size=batch_size)
    pool.reset(seed=0)
    pool.send([STEP, STEP], [0, 1])
    for _ in range(2 // batch_size):
        pool.recv()
    pool.send([THROW, STEP], [0, 1])
    assert pool.reset().info["total"].tolist() == [0, 2]


def test_an_env_that_breaks_when_it_is_looked_at(make):
    pool: Pool = make("Faulty-v0", num_envs=2)
    pool.reset(seed=0)
    pool.step([STEP, THROW_IN_OBSERVE])
    with pytest.raises(EnvError, match=r"env 1 raised in observe\(\)"):
        pool.observe()
    pool.reset([1])
    assert pool.observe()[:, 1].tolist() == [1, 0]


@pytest.mark.ray_core
def test_an_env_that_refuses_an_attribute_keeps_its_own(make):
    """The other envs have their new values, wherever they run: Python objects cannot be set back in general."""
    pool: Pool = make("Refusing-v0", num_envs=4, num_threads=2)
    pool.reset(seed=0)
    with pytest.raises(EnvError, match=r"env 1 raised in set_attr\('budget'\): .*the budget is spent") as caught:
        pool.set_attr("budget", [1, -1, 3, 4])
    assert [fault.env_id for fault in caught.value.faults] == [1]
    assert pool.get_attr("budget") == (1, 10, 3, 4)
    assert pool.step([STEP] * 4).obs[:, 1].tolist() == [1, 1, 1, 1]  # it refused a value and is not broken


def test_all_envs_may_raise_at_once(make):
    pool: Pool = make("Faulty-v0", num_envs=50, num_threads=2)
    pool.reset(seed=0)
    with pytest.raises(EnvError, match="49 more") as caught:
        pool.step([THROW] * 50)
    assert sorted(fault.env_id for fault in caught.value.faults) == list(range(50))
    assert pool.reset().obs[:, 1].tolist() == [0] * 50


def test_an_exception_in_a_reset_inside_step(make):
    pool: Pool = make("Faulty-v0", num_envs=2)
    pool.reset(seed=0)
    pool.step([THROW_AT_RESET, STEP])
    pool.step([END, STEP])
    with pytest.raises(EnvError, match=r"env 0 raised in reset\(\).*level file"):
        pool.step([STEP, STEP])
    pool.reset([0])
    assert pool.step([STEP, STEP]).obs[:, 1].tolist() == [1, 4]


def test_an_exception_in_a_same_step_reset(make):
    pool: Pool = make("Faulty-v0", num_envs=2, autoreset_mode="same_step")
    pool.reset(seed=0)
    pool.step([THROW_AT_RESET, STEP])
    with pytest.raises(EnvError, match="level file"):
        pool.step([END, STEP])
    pool.reset()
    assert pool.step([STEP, STEP]).obs[:, 1].tolist() == [1, 1]


@pytest.mark.ray_core
def test_an_async_env_that_raises_completes_its_row(make):
    pool: Pool = make("Faulty-v0", num_envs=4, batch_size=2, num_threads=2)
    pool.reset(seed=0)
    pool.send([STEP, THROW, STEP, STEP], [0, 1, 2, 3])
    seen, faults = [], []
    for _ in range(2):
        try:
            batch = pool.recv()
        except EnvError as error:
            batch = error.batch
            faults.append(error.env_id)
        seen += batch.env_id.tolist()
    assert sorted(seen) == [0, 1, 2, 3]
    assert faults == [1]
    with pytest.raises(CallOrderError, match="env 1 raised earlier"):
        pool.send([STEP], [1])


@pytest.mark.ray_core(mode="next_step")
@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_restart_reports_a_truncated_row_and_goes_on(make, mode):
    pool: Pool = make("Faulty-v0", num_envs=3, on_error="restart", autoreset_mode=mode)
    pool.reset(seed=0)
    batch = pool.step([STEP, THROW, STEP])
    assert batch.truncated.tolist() == [False, True, False]
    assert batch.terminated.tolist() == [False, False, False]
    assert batch.info["error"].tolist() == [None, "step(): joint 3 exploded", None]
    if mode == "disabled":
        with pytest.raises(CallOrderError, match="env 1 has ended"):
            pool.step([STEP] * 3)
        pool.reset([1])
    elif mode == "next_step":
        assert pool.step([STEP] * 3).elapsed_step.tolist() == [2, 0, 2]
    batch = pool.step([STEP] * 3)
    assert batch.elapsed_step[1] == 1
    assert "error" not in batch.info


def test_restarts_are_bounded(make):
    pool: Pool = make("Faulty-v0", num_envs=2, on_error="restart", max_restarts=2, autoreset_mode="same_step")
    pool.reset(seed=0)
    for _ in range(2):
        assert pool.step([THROW, STEP]).truncated.tolist() == [True, False]
    with pytest.raises(EnvError, match="max_restarts=2"):
        pool.step([THROW, STEP])


def test_a_long_run_survives_random_faults(make):
    pool: Pool = make("Faulty-v0", num_envs=16, on_error="restart", max_restarts=10_000, num_threads=2)
    rng = np.random.default_rng(0)
    pool.reset(seed=0)
    num_errors = 0
    for _ in range(500):
        actions = rng.choice([STEP, THROW, THROW_INT, END], 16, p=[0.9, 0.04, 0.03, 0.03])
        batch = pool.step(actions)
        errors = batch.info.get("error")
        num_errors += 0 if errors is None else sum(error is not None for error in errors)
        assert (batch.elapsed_step >= 0).all()
    assert num_errors > 300


def test_after_a_seed_restarts_repeat(make):
    """A rollout with faults is a function of the seed too."""
    pool: Pool = make("Faulty-v0", num_envs=1, on_error="restart", autoreset_mode="same_step")
    starts = []
    for _ in range(2):
        pool.reset(seed=0)
        starts.append([int(pool.step([THROW]).obs[0, 0]) for _ in range(3)])
    assert starts[0] == starts[1]
    assert len(set(starts[0])) == 3


def test_a_spent_budget_touches_no_env(make):
    pool: Pool = make("Faulty-v0", num_envs=2, on_error="restart", max_restarts=1, autoreset_mode="same_step")
    pool.reset(seed=0)
    pool.step([STEP, THROW])
    with pytest.raises(EnvError, match=r"env 1 raised.*max_restarts=1") as caught:
        pool.step([THROW, THROW])
    assert [fault.env_id for fault in caught.value.faults] == [1, 0]
    with pytest.raises(CallOrderError, match="raised earlier"):
        pool.step([STEP, STEP])
    assert pool.reset().obs[:, 1].tolist() == [0, 0]


@pytest.mark.ray_core(mode="same_step")
@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_a_fault_in_a_reset_is_restarted_into_a_first_row(make, mode):
    pool: Pool = make("Faulty-v0", num_envs=2, on_error="restart", autoreset_mode=mode)
    pool.reset(seed=0)
    pool.step([THROW_AT_RESET, STEP])
    batch = pool.reset()
    assert batch.obs[0, 0] != 0
    assert batch.elapsed_step.tolist() == [0, 0]
    assert not batch.truncated.any()
    assert "level file" in batch.info["error"][0]
    assert pool.step([STEP, STEP]).obs[:, 1].tolist() == [1, 1]


def test_a_row_that_failed_in_a_reset_is_a_first_row(make):
    pool: Pool = make("Faulty-v0", num_envs=1)
    pool.reset(seed=0)
    pool.step([THROW_AT_RESET])
    pool.step([END])
    with pytest.raises(EnvError) as caught:
        pool.step([STEP])
    assert caught.value.batch.elapsed_step.tolist() == [0]


# --- the observation of a restarted env --------------------------------------------------------------


@pytest.mark.ray_core(mode="next_step", copy=True)
@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_a_restarted_row_has_the_last_observation(make, mode, copy):
    """Never zeros, which the space does not contain, nor the half that was written; and whatever becomes of the arrays
    that the caller got.
    """
    options = {"num_envs": 5, "on_error": "restart", "max_restarts": 10_000, "autoreset_mode": mode}
    own = make("Halfway-v0", copy=copy, num_threads=2, **options)
    with SUBJECTS["serial"]("Halfway-v0", **options) as reference:
        expected = run_with_faults(reference, mode)
    seen = run_with_faults(own, mode)
    assert len(seen) == len(expected)
    for (env_id, row, final), (other_id, other_row, other_final) in zip(seen, expected, strict=True):
        assert env_id == other_id
        assert_same_row(row, other_row)
        if final is not None:
            assert_same_row(final, other_final)


@pytest.mark.ray_core(mode="same_step")
@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_a_restarted_row_of_an_async_batch_has_the_last_observation(make, mode):
    pool: Pool = make(
        "Halfway-v0", num_envs=5, batch_size=2, num_threads=2, on_error="restart", max_restarts=10_000,
        autoreset_mode=mode,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    deliveries = Deliveries(5)
    deliveries.record(range(5), pool.reset(seed=3))
    pool.send(np.zeros(5, dtype=np.int64))
    for _ in range(150):
        batch = pool.recv()
        deliveries.check(batch)
        pool.send(rng.choice(4, 2, p=[0.6, 0.15, 0.15, 0.1]), batch.env_id)
    assert deliveries.num_restarts > 20


@pytest.mark.ray_core
def test_after_a_restored_state_the_last_observation_is_its_own(make):
    pool: Pool = make("Halfway-v0", num_envs=2, on_error="restart")
    pool.reset(seed=0)
    batch = pool.step([STEP, STEP])
    expected = rows_of(batch.obs, 2)
    state = pool.get_state()
    pool.step([STEP, STEP])
    pool.set_state(state)
    assert_same_row(rows_of(pool.step([THROW, STEP]).obs, 2)[0], expected[0])
    # Its next episode has not begun when it is saved, and fails to begin when it is restored.
    pool.reset()
    pool.step([3, STEP])
    ended = rows_of(pool.step([2, STEP]).obs, 2)[0]
    state = pool.get_state()
    batch = pool.step([STEP, STEP])
    assert batch.info["error"][0].startswith("reset()")
    assert_same_row(rows_of(batch.obs, 2)[0], ended)
    pool.step([STEP, STEP])
    pool.set_state(state)
    assert_same_row(rows_of(pool.step([STEP, STEP]).obs, 2)[0], ended)
