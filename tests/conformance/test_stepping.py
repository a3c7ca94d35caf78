"""Synchronous stepping: order, seeds, autoreset, ends, ownership."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from support.reference import ReferencePool, column

from envfleet import CallOrderError, Pool
from envfleet.apis.gymnasium import GymnasiumPool
from envfleet.core.family import Family

MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]


@pytest.mark.ray_core(mode=AutoresetMode.SAME_STEP, num_threads=2)
@pytest.mark.parametrize("num_threads", [1, 2, 5])
@pytest.mark.parametrize("mode", MODES[:2], ids=lambda mode: mode.value)
def test_rollout_equals_the_reference(make, mode, num_threads):
    """Through many autoresets; rows, flags, elapsed steps, final observations."""
    num_envs, rng = 7, np.random.default_rng(0)
    pool: Pool = make(
        "CartPole-v1", num_envs=num_envs, autoreset_mode=mode, num_threads=num_threads, max_episode_steps=30
    )
    reference = ReferencePool("CartPole-v1", num_envs, mode, max_episode_steps=30)
    batch, rows = pool.reset(seed=11), reference.reset(seed=11)
    np.testing.assert_array_equal(batch.obs, column(rows, "obs"))
    num_ends = 0
    for _ in range(200):
        actions = rng.integers(0, 2, num_envs)
        batch, rows = pool.step(actions), reference.step(actions)
        # Sine and cosine may differ in the last bit of a double; the observation is float32.
        np.testing.assert_allclose(batch.obs, column(rows, "obs"), rtol=1e-5, atol=1e-6)
        for name in ("reward", "terminated", "truncated", "elapsed_step"):
            np.testing.assert_array_equal(getattr(batch, name), column(rows, name), err_msg=name)
        np.testing.assert_array_equal(batch.env_id, np.arange(num_envs))
        for i, row in enumerate(rows):
            if row.final_obs is not None:
                np.testing.assert_allclose(batch.final.obs[i], row.final_obs, rtol=1e-5, atol=1e-6)
        num_ends += int((batch.terminated | batch.truncated).sum())
    assert num_ends > 20


@pytest.mark.ray_core
def test_disabled_mode_refuses_ended_envs_and_moves_nobody(make):
    pool: Pool = make("Faulty-v0", num_envs=3, autoreset_mode="disabled")
    pool.reset(seed=0)
    batch = pool.step([0, 4, 0])
    assert batch.terminated.tolist() == [False, True, False]
    with pytest.raises(CallOrderError, match="env 1 has ended"):
        pool.step([0, 0, 0])
    assert pool.step([0, 0], [0, 2]).obs[:, 1].tolist() == [2, 2]
    assert pool.reset([1]).obs[0, 1] == 0
    assert pool.step([0, 0, 0]).obs[:, 1].tolist() == [3, 1, 3]


def test_an_end_on_the_last_permitted_step_is_both(make):
    pool: Pool = make("Faulty-v0", num_envs=2, max_episode_steps=3)
    pool.reset(seed=0)
    pool.step([0, 0])
    pool.step([0, 0])
    batch = pool.step([4, 0])
    assert batch.terminated.tolist() == [True, False]
    assert batch.truncated.tolist() == [True, True]


def test_next_step_ignores_the_action_after_an_end(make):
    pool: Pool = make("Faulty-v0", num_envs=1)
    pool.reset(seed=0)
    assert pool.step([4]).terminated[0]
    batch = pool.step([1])  # would throw
    assert (batch.reward[0], batch.elapsed_step[0], batch.terminated[0]) == (0.0, 0, False)
    assert batch.obs[0, 1] == 0
    assert pool.step([0]).elapsed_step[0] == 1


@pytest.mark.ray_core
def test_seed_gives_env_i_seed_plus_i_at_any_time(make):
    pool: Pool = make("CartPole-v1", num_envs=4)
    first = pool.reset(seed=5).obs
    pool.step(np.zeros(4, dtype=np.int64))
    np.testing.assert_array_equal(pool.reset(seed=5).obs, first)
    np.testing.assert_array_equal(pool.reset(seed=[8, 7, 6, 5]).obs[3], first[0])
    np.testing.assert_array_equal(pool.reset([2, 0], seed=5).obs, first[[2, 0]])
    assert not np.array_equal(pool.reset().obs, first)


def test_the_first_reset_uses_the_seed_of_make(make):
    one, other = make("CartPole-v1", num_envs=2, seed=3), make("CartPole-v1", num_envs=2)
    np.testing.assert_array_equal(one.reset().obs, other.reset(seed=3).obs)
    unseeded = [make("CartPole-v1", num_envs=2).reset().obs for _ in range(2)]
    assert not np.array_equal(*unseeded)


def test_a_seed_of_128_bits_is_taken_as_numpy_takes_it(make):
    import gymnasium

    seed = 2**127 + 12345
    expected, _ = gymnasium.make("CartPole-v1").reset(seed=seed)
    np.testing.assert_array_equal(make("CartPole-v1").reset(seed=seed).obs[0], expected)


def test_none_in_a_list_of_seeds_leaves_that_env_its_stream(make):
    pool: Pool = make("Faulty-v0", num_envs=2, seed=0)
    twin: Pool = make("Faulty-v0", num_envs=2, seed=0)
    pool.reset()
    twin.reset()
    expected = twin.reset().obs[0]
    got = pool.reset(seed=[None, 77]).obs
    np.testing.assert_array_equal(got[0], expected)
    np.testing.assert_array_equal(got[1], make("Faulty-v0").reset(seed=77).obs[0])


@pytest.mark.ray_core
def test_rows_of_a_partial_step_come_in_the_order_asked(make):
    pool: Pool = make("Faulty-v0", num_envs=5)
    starts = pool.reset(seed=0).obs[:, 0]
    batch = pool.step([0, 0, 0], [4, 0, 2])
    assert batch.env_id.tolist() == [4, 0, 2]
    np.testing.assert_array_equal(batch.obs[:, 0], starts[[4, 0, 2]])
    assert pool.step([0] * 5).obs[:, 1].tolist() == [2, 1, 2, 1, 2]


def test_arrays_never_change_after_they_were_handed_out(make):
    pool: Pool = make("CartPole-v1", num_envs=16)
    kept = [pool.reset(seed=0).obs]
    copies = [kept[0].copy()]
    for _ in range(100):
        batch = pool.step(np.ones(16, dtype=np.int64))
        kept.append(batch.obs[2:9:2])  # a view keeps the buffer just as well
        copies.append(kept[-1].copy())
    del batch
    gc.collect()
    for _ in range(50):
        pool.step(np.ones(16, dtype=np.int64))
    pool.close()
    del pool
    gc.collect()
    for view, copy in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(view, copy)


def test_a_caller_who_writes_into_an_array_changes_no_env(make):
    pool: Pool = make("CartPole-v1", num_envs=3)
    twin: Pool = make("CartPole-v1", num_envs=3)
    pool.reset(seed=0).obs[:] = 99
    twin.reset(seed=0)
    for _ in range(20):
        batch, expected = pool.step([0, 1, 1]), twin.step([0, 1, 1])
        np.testing.assert_array_equal(batch.obs, expected.obs)
        batch.obs[:] = 99
        batch.reward[:] = 99
    np.testing.assert_array_equal(pool.observe(), twin.observe())


@pytest.mark.ray_core
def test_every_kind_of_array_and_what_an_env_skips_is_zero(make):
    pool: Pool = make("Sink-v0", num_envs=3, size=2)
    pool.reset(seed=0)
    for count in range(1, 20):
        batch = pool.step([[1, 2], [0, 3], [2, 0]])
        obs, elapsed = batch.obs, count % 8
        assert obs["zulu"].dtype == np.uint8
        assert obs["zulu"].shape == (3, 2, 2)
        expected = [[elapsed, 0], [elapsed + 1, 0]] if elapsed % 2 == 0 else [[0, 0], [0, 0]]
        assert obs["zulu"][0].tolist() == expected
        assert obs["mike"].tolist() == [elapsed - 5] * 3
        assert obs["small"].dtype == np.int16
        assert obs["small"][:, 0].tolist() == [-elapsed] * 3
        np.testing.assert_array_equal(obs["alpha"][:, 1], batch.info["draw"])
        if elapsed:
            assert batch.reward.tolist() == [12 + 5.75, 3 + 5.75, 20 + 5.75]


@pytest.mark.ray_core
def test_per_env_parameters(make):
    pool: Pool = make("Sink-v0", num_envs=3, scale=[1.0, 2.0, 3.0], loud=[False, True, False])
    pool.reset(seed=0)
    assert pool.step([[1, 0]] * 3).reward.tolist() == [10 + 5.75, 20 + 105.75, 30 + 5.75]


def test_state_goes_back_bit_for_bit(make):
    pool: Pool = make("Sink-v0", num_envs=4)
    rng = np.random.default_rng(1)
    pool.reset(seed=0)
    for _ in range(5):
        pool.step(rng.integers(0, 3, (4, 2)))
    saved = pool.get_state()
    actions = rng.integers(0, 3, (30, 4, 2))
    once = [pool.step(action) for action in actions]
    pool.set_state(saved)
    for before, action in zip(once, actions, strict=True):
        again = pool.step(action)
        for key in before.obs:
            np.testing.assert_array_equal(again.obs[key], before.obs[key])
        np.testing.assert_array_equal(again.reward, before.reward)
        np.testing.assert_array_equal(again.truncated, before.truncated)
        np.testing.assert_array_equal(again.elapsed_step, before.elapsed_step)


@pytest.mark.ray_core(mode=AutoresetMode.NEXT_STEP)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_a_masked_reset_has_the_id_and_the_elapsed_steps_of_every_env(make, mode):
    pool = make("CartPole-v1", num_envs=4, num_threads=2, seed=0, autoreset_mode=mode)
    envs = GymnasiumPool(pool, Family("probe"))
    mask = np.array([False, True, False, True])
    envs.reset()
    for _ in range(3):
        envs.step(np.zeros(4, dtype=np.int64))
    envs.step(np.zeros(2, dtype=np.int64), [0, 1])
    obs, info = envs.reset(options={"reset_mask": mask})
    assert info["env_id"].tolist() == [0, 1, 2, 3]
    assert info["elapsed_step"].tolist() == [4, 0, 3, 0]
    assert info["env_id"].dtype == info["elapsed_step"].dtype == np.int32
    assert info["_env_id"].all()
    assert info["_elapsed_step"].all()
    assert (obs == pool.observe()).all()
    *_, info = envs.step(np.zeros(4, dtype=np.int64), info["env_id"])
    assert info["elapsed_step"].tolist() == [5, 1, 4, 1]
    ended = np.zeros(4, dtype=np.bool_)
    while not ended[[0, 2]].any():  # the others were reset later
        *_, terminated, truncated, info = envs.step(np.zeros(4, dtype=np.int64))
        ended = terminated | truncated
    last = info["elapsed_step"]
    _, info = envs.reset(options={"reset_mask": mask})
    assert info["elapsed_step"].tolist() == [last[0], 0, last[2], 0]
