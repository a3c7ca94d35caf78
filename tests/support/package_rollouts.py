"""A pool on processes beside single envs of the package that its family runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import envfleet

SEED = 3
NUM_ENVS = 2


def row_of(batch: Any, row: int) -> Any:
    """Return one row of a batch of observations."""
    if isinstance(batch, dict):
        return {key: row_of(value, row) for key, value in batch.items()}
    if isinstance(batch, tuple):
        return tuple(row_of(value, row) for value in batch)
    return batch[row]


def stacked(actions: list[Any]) -> Any:
    """Return one action per env as a batch."""
    if isinstance(actions[0], tuple):
        return tuple(np.stack(own) for own in zip(*actions, strict=True))
    return np.stack(actions)


def equal(one: Any, other: Any) -> bool:
    """Return whether two observations are equal to the last bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(equal(*pair) for pair in zip(one, other, strict=True))
    one, other = np.asarray(one), np.asarray(other)
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()


def copied(obs: Any) -> Any:
    """Return a copy of an observation whose arrays the package may overwrite."""
    if isinstance(obs, dict):
        return {key: copied(value) for key, value in obs.items()}
    return tuple(copied(value) for value in obs) if isinstance(obs, tuple) else np.array(obs)


def assert_package_rollout(
    env_id: str,
    make_plain: Callable[[], Any],
    *,
    steps: int,
    limit: int,
    same_starts: bool = False,
    **options: Any,
) -> None:
    """Compare observations, rewards and ends, through time limits, with the package's envs and the same seeds.

    make_plain: makes an env of the package, with this time limit. same_starts: all episodes start the same.
    """
    with envfleet.make(
        env_id, num_envs=NUM_ENVS, num_workers=2, autoreset_mode="same_step", max_episode_steps=limit, **options
    ) as envs:
        assert envs.spec.backend == "processes"
        plain = [make_plain() for _ in range(NUM_ENVS)]
        try:
            assert envs.single_observation_space == plain[0].observation_space
            assert envs.single_action_space == plain[0].action_space
            starts = _compare(envs, plain, steps)
            assert all(len(own) > 2 for own in starts), f"expected several episodes in {steps} steps, got {starts}"
            if not same_starts:
                first, second = starts
                assert not equal(first[0], second[0]), "envs with different seeds start the same"
                assert not equal(first[0], first[1]), "the second episode starts as the first"
                assert not equal(first[1], second[1]), "the second episodes of different seeds start the same"
            for one, other in zip(starts, _compare(envs, plain, steps), strict=True):
                assert equal(tuple(one), tuple(other)), "the same seed gives another rollout the second time"
        finally:
            for env in plain:
                env.close()


def _compare(envs: Any, plain: list[Any], steps: int) -> list[list[Any]]:
    """Return the first observation of each episode, by env."""
    actions = envs.single_action_space
    actions.seed(0)
    obs, _ = envs.reset(seed=SEED)
    wanted = [copied(env.reset(seed=SEED + k)[0]) for k, env in enumerate(plain)]
    starts: list[list[Any]] = [[own] for own in wanted]
    for step in range(steps):
        for k in range(len(plain)):
            assert equal(wanted[k], row_of(obs, k)), f"observation of env {k} before step {step}"
        chosen = [actions.sample() for _ in plain]
        obs, reward, terminated, truncated, _ = envs.step(stacked(chosen))
        for k, env in enumerate(plain):
            seen, own_reward, own_terminated, own_truncated, _ = env.step(chosen[k])
            assert (reward[k], terminated[k], truncated[k]) == (own_reward, own_terminated, own_truncated), (k, step)
            if own_terminated or own_truncated:
                seen = copied(env.reset()[0])
                starts[k].append(seen)
            wanted[k] = copied(seen)
    return starts
