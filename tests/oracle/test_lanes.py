"""CartPole steps up to 64 envs at once where it can; no row may tell."""

from __future__ import annotations

import numpy as np
import pytest

import envfleet


@pytest.mark.parametrize("fast_math", [False, True])
@pytest.mark.parametrize("num_envs", [27, 64 + 32 + 16 + 8 + 3])  # groups of each size, and a rest
@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_side_by_side_is_bit_for_bit_one_by_one(mode, num_envs, fast_math):
    options = {"num_threads": 1, "autoreset_mode": mode, "fast_math": fast_math}
    together = envfleet.make_pool("CartPole-v1", num_envs=num_envs, **options)
    alone = [envfleet.make_pool("CartPole-v1", **options) for _ in range(num_envs)]
    together.reset(seed=5)
    for i, pool in enumerate(alone):
        pool.reset(seed=5 + i)
    rng = np.random.default_rng(0)
    for _ in range(300):
        actions = rng.integers(0, 2, num_envs)
        batch = together.step(actions)
        rows = [pool.step(actions[i : i + 1]) for i, pool in enumerate(alone)]
        for name in ("obs", "reward", "terminated", "truncated", "elapsed_step"):
            np.testing.assert_array_equal(getattr(batch, name), np.concatenate([getattr(row, name) for row in rows]))


@pytest.mark.parametrize("order", ["consecutive", "reversed", "shuffled", "two runs"])
def test_envs_in_any_order_are_stepped_as_all_are(order):
    num_envs = 150
    ids = {
        "consecutive": np.arange(20, 150),
        "reversed": np.arange(num_envs)[::-1].copy(),
        "shuffled": np.random.default_rng(1).permutation(num_envs),
        "two runs": np.roll(np.arange(num_envs), 70),
    }[order].astype(np.int32)
    ordered = envfleet.make_pool("CartPole-v1", num_envs=num_envs, num_threads=1)
    by_id = envfleet.make_pool("CartPole-v1", num_envs=num_envs, num_threads=1)
    ordered.reset(seed=5)
    by_id.reset(seed=5)
    rng = np.random.default_rng(0)
    for _ in range(100):
        actions = rng.integers(0, 2, num_envs)
        batch, rows = ordered.step(actions), by_id.step(actions[ids], ids)
        for name in ("obs", "reward", "terminated", "truncated", "elapsed_step", "env_id"):
            np.testing.assert_array_equal(getattr(batch, name)[ids], getattr(rows, name))
    own, others = by_id.stats().envs, ordered.stats().envs
    assert [own[i] for i in ids] == [others[i] for i in ids]


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_many_envs_are_stepped_and_counted_as_few_are(mode):
    """From some thousands of envs on, what an env uses once per episode is prefetched."""
    num_envs, part = 4500, slice(4000, 4300)
    many = envfleet.make_pool("CartPole-v1", num_envs=num_envs, num_threads=1, autoreset_mode=mode)
    few = envfleet.make_pool("CartPole-v1", num_envs=300, num_threads=1, autoreset_mode=mode)
    many.reset(seed=5)
    few.reset(seed=5 + part.start)
    rng = np.random.default_rng(0)
    for _ in range(60):
        actions = rng.integers(0, 2, num_envs)
        batch, rows = many.step(actions), few.step(actions[part])
        for name in ("obs", "reward", "terminated", "truncated", "elapsed_step"):
            np.testing.assert_array_equal(getattr(batch, name)[part], getattr(rows, name))
    assert many.stats().envs[part] == few.stats().envs
    assert sum(env.num_episodes for env in few.stats().envs) > 300


def test_changed_attributes_and_far_leans_are_honoured_among_standard_poles():
    pool = envfleet.make_pool("CartPole-v1", num_envs=16, num_threads=1)
    alone = envfleet.make_pool("CartPole-v1", num_threads=1)
    pool.reset(seed=0)
    pool.set_attr("gravity", [1.6], [3])
    pool.set_attr("state", [np.array([0.1, 0.2, 0.9, -0.3])], [12])
    alone.reset(seed=3)
    alone.set_attr("gravity", 1.6)
    far = envfleet.make_pool("CartPole-v1", num_threads=1)
    far.reset(seed=12)
    far.set_attr("state", [np.array([0.1, 0.2, 0.9, -0.3])])
    first = pool.step(np.ones(16, dtype=np.int64))
    np.testing.assert_array_equal(first.obs[12], far.step([1]).obs[0])
    np.testing.assert_array_equal(first.obs[3], alone.step([1]).obs[0])
    for _ in range(8):
        np.testing.assert_array_equal(pool.step(np.ones(16, dtype=np.int64)).obs[3], alone.step([1]).obs[0])


def test_rewards_of_sutton_and_barto():
    envs = envfleet.make("CartPole-v1", num_envs=16, sutton_barto_reward=[True, False] * 8)
    envs.reset(seed=0)
    for _ in range(30):
        _, reward, terminated, _, info = envs.step(np.zeros(16, dtype=np.int64))
        stepped = info["elapsed_step"] > 0
        np.testing.assert_array_equal(reward[1::2], stepped[1::2].astype(float))
        np.testing.assert_array_equal(reward[::2], -(terminated[::2].astype(float)))
