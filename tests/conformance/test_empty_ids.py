"""Calls that name no envs: valid in every call, and answered by batches with every column and no rows."""

from __future__ import annotations

import numpy as np
import pytest

from envfleet import ActionError, Batch, CallOrderError, Pool

NO_IDS = [np.zeros(0, np.int32), np.zeros(0, np.int64), []]
NO_ACTIONS = [np.zeros(0, np.int64), []]


def assert_empty_like(batch: Batch, full: Batch) -> None:
    """The same columns as in a batch with rows, each with the same dtype and row shape."""
    assert len(batch) == 0
    assert batch.faults == ()
    for name in ("obs", "reward", "terminated", "truncated", "env_id", "elapsed_step"):
        _assert_no_rows_of(getattr(batch, name), getattr(full, name))
    assert (batch.final is None) == (full.final is None)
    if batch.final is not None:
        _assert_no_rows_of(batch.final.obs, full.final.obs)
        _assert_no_rows_of(batch.final.elapsed_step, full.final.elapsed_step)


def _assert_no_rows_of(got, full):
    if isinstance(full, dict):
        assert got.keys() == full.keys()
        for key in full:
            _assert_no_rows_of(got[key], full[key])
    elif isinstance(full, tuple):
        assert len(got) == len(full)
        for one, other in zip(got, full, strict=True):
            _assert_no_rows_of(one, other)
    else:
        assert got.shape == (0, *full.shape[1:])
        assert got.dtype == full.dtype


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_no_envs_give_no_rows_and_move_nobody(make, mode):
    pool: Pool = make("Faulty-v0", num_envs=3, autoreset_mode=mode)
    for ids in NO_IDS:
        batch = pool.reset(ids, seed=7)
        assert batch.reward.shape == (0,)
    first = pool.reset(seed=0)
    for ids in NO_IDS:
        assert_empty_like(pool.reset(ids), first)
        for actions in NO_ACTIONS:
            assert_empty_like(pool.step(actions, ids), first)
            pool.send(actions, ids)
            assert_empty_like(pool.recv(), first)
    with pytest.raises(CallOrderError, match="nothing in flight"):
        pool.recv()
    assert pool.num_in_flight == 0
    assert pool.step([0, 0, 0]).elapsed_step.tolist() == [1, 1, 1]
    assert pool.seeds == (0, 1, 2)


def test_one_action_for_no_envs_is_refused(make):
    pool: Pool = make("Faulty-v0", num_envs=2)
    pool.reset(seed=0)
    for call in (pool.step, pool.send):
        with pytest.raises(ActionError, match=r"shape \(0,\), got \(1,\)"):
            call([0], [])


def test_a_reset_drops_the_batch_of_no_envs(make):
    pool: Pool = make("Faulty-v0", num_envs=2)
    pool.reset(seed=0)
    pool.send([], [])
    pool.reset()
    with pytest.raises(CallOrderError, match="nothing in flight"):
        pool.recv()


def test_no_envs_of_an_asynchronous_pool(make):
    pool: Pool = make("Faulty-v0", num_envs=4, batch_size=2)
    first = pool.reset(seed=0)
    assert_empty_like(pool.step([], []), first)
    pool.send([], [])  # adds nothing to what is in flight
    with pytest.raises(CallOrderError, match="nothing in flight"):
        pool.recv()
    pool.send([0, 0, 0], [0, 1, 2])
    assert_empty_like(pool.step([], []), first)
    assert_empty_like(pool.reset([]), first)
    assert len(pool.recv()) == 2
    assert pool.num_in_flight == 1


def test_attributes_and_pictures_of_no_envs(make):
    pool: Pool = make("CartPole-v1", num_envs=2)
    pool.reset(seed=0)
    assert pool.get_attr("gravity", []) == ()
    assert pool.call("gravity", env_ids=[]) == ()
    assert pool.render_all([]) == ()
    pool.set_attr("gravity", [], [])
    assert pool.get_attr("gravity") == (9.8, 9.8)
