"""FrameStackObservation against a deque of what an unwrapped pool gives."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers.utils import create_zero_array
from support.python_probes import FaultyEnv, SinkEnv
from support.space_env import SpaceEnv
from wrapper_rollouts import MODES, Rollout, roll, same

import envfleet
from envfleet.wrappers import FrameStackObservation, NormalizeObservation

SIZE = 4


def stacked(frames, space, padding):
    """What a stack of these observations of one episode is."""
    last = list(frames)[-SIZE:]
    missing = SIZE - len(last)
    if padding == "reset":
        last = [last[0]] * missing + last
    if isinstance(space, gymnasium.spaces.Dict):
        return {key: stacked([own[key] for own in frames], part, padding) for key, part in space.items()}
    if padding == "zero":
        last = [create_zero_array(space)] * missing + last
    return np.stack(last)


def choose_push(env_id, count):
    return (env_id + count // 3) % 2


def choose_two(env_id, count):
    return np.array([count % 3, env_id % 4])


CASES = {
    "box": ("CartPole-v1", "native", {}, choose_push),
    "python": ("CartPole-v1", "serial", {}, choose_push),
    "dict": (SinkEnv, "threads", {"max_episode_steps": 7}, choose_two),
}


@pytest.mark.parametrize("padding", ["reset", "zero"])
@pytest.mark.parametrize("way", ["steps", "some_steps", "batches"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES)
def test_stacks_hold_one_episode(case, mode, way, padding):
    env, backend, options, choose = CASES[case]
    options = {**options, "num_envs": 5, "seed": 1, "autoreset_mode": mode, "backend": backend}
    if way == "batches":
        options["batch_size"] = 2
    with envfleet.make(env, **options) as plain:
        space = plain.single_observation_space
        raw = roll(plain, choose, way, 60)
    with FrameStackObservation(envfleet.make(env, **options), SIZE, padding_type=padding) as envs:
        ours = roll(envs, choose, way, 60)
        assert envs.single_observation_space == gymnasium.vector.utils.batch_space(space, SIZE)
    for plain_rows, rows in zip(raw.rows, ours.rows, strict=True):
        frames: deque = deque()
        # Batches of an asynchronous pool come in any order, so a rollout may hold more rows of an env than the other.
        for one, row in zip(plain_rows, rows, strict=False):
            if mode == "same_step" and one.ended:
                same(row.value("final_obs"), stacked([*frames, one.value("final_obs")], space, padding))
                frames.clear()
            elif one.reward is None or (one.elapsed == 0 and not one.ended):
                frames.clear()
            frames.append(one.obs)
            same(row.obs, stacked(frames, space, padding))


def test_what_is_given_is_the_callers():
    with FrameStackObservation(envfleet.make("CartPole-v1", num_envs=2), 3) as envs:
        first, _ = envs.reset(seed=0)
        kept = first.copy()
        first[:] = 7
        second, *_ = envs.step([0, 1])
        np.testing.assert_array_equal(second[:, :2], kept[:, 1:])
        assert second in envs.observation_space


def test_a_partial_reset_leaves_the_others():
    with FrameStackObservation(envfleet.make(FaultyEnv, num_envs=2, backend="serial"), 3) as envs:
        envs.reset(seed=0)
        before, *_ = envs.step([0, 0])
        obs, _ = envs.reset(options={"reset_mask": np.array([True, False])})
        assert obs[0, :, 1].tolist() == [0, 0, 0]
        np.testing.assert_array_equal(obs[1], before[1])
        obs, *_ = envs.step([0, 0])
        assert obs[:, :, 1].tolist() == [[0, 0, 1], [0, 1, 2]]


def test_a_saved_state_brings_the_frames_along():
    pool = NormalizeObservation(envfleet.make("CartPole-v1", num_envs=3, seed=0))
    with FrameStackObservation(pool, SIZE) as envs:
        rollout = Rollout(envs, choose_push)
        rollout.reset()
        rollout.steps(11)
        state = envs.get_state()
        once = [envs.step([0, 1, 0])[0] for _ in range(12)]
        envs.reset()
        envs.set_state(state)
        for expected in once:
            np.testing.assert_array_equal(envs.step([0, 1, 0])[0], expected)


def test_a_state_that_does_not_fit_changes_nothing():
    with (
        FrameStackObservation(envfleet.make("CartPole-v1", num_envs=2, seed=0), 2) as envs,
        FrameStackObservation(envfleet.make("CartPole-v1", num_envs=2, seed=0), 2) as twin,
        FrameStackObservation(envfleet.make("CartPole-v1", num_envs=2, seed=5), SIZE) as longer,
    ):
        for own in (envs, twin, longer):
            own.reset()
        good = envs.get_state()
        longer.step([0, 1])
        other = longer.get_state()
        for own, message in (
            (other.own, r"_frames\[0\] of shape \(2, 2, 4\).*got shape \(2, 4, 4\)"),
            ({**good.own, "_newest": good.own["_newest"].astype(float)}, "_newest .* got .* float64"),
            ({**good.own, "step": 1, "num_envs": 5}, "with \\['_frames', '_newest'\\], got .*'step'"),
            ({"_frames": good.own["_frames"]}, r"got \['_frames'\]"),
            (None, "got NoneType"),
        ):
            with pytest.raises(envfleet.StateError, match=message):
                envs.set_state(replace(other, own=own))
        for _ in range(3):
            same(envs.step([0, 1])[0], twin.step([0, 1])[0])


@pytest.mark.parametrize("mode", MODES)
def test_the_stack_of_a_restarted_env_stays_as_it_is(mode):
    with FrameStackObservation(
        envfleet.make(FaultyEnv, num_envs=2, backend="serial", autoreset_mode=mode, on_error="restart", seed=0), SIZE
    ) as envs:
        envs.reset()
        for _ in range(3):
            stacks = envs.step([FaultyEnv.STEP] * 2)[0]
        obs, _, _, truncated, info = envs.step([FaultyEnv.THROW, FaultyEnv.STEP])
        assert truncated.tolist() == [True, False]
        shown = info["final_obs"][0] if mode == "same_step" else obs[0]
        assert shown.tolist() == stacks[0].tolist()
        assert obs[1][:, 1].tolist() == [1, 2, 3, 4]


def test_discrete_observations_and_tuples():
    with FrameStackObservation(envfleet.make("Blackjack-v1", num_envs=3, seed=0), 2) as envs:
        obs, _ = envs.reset()
        assert [leaf.shape for leaf in obs] == [(3, 2)] * 3
        assert obs in envs.observation_space


class Elsewhere(gymnasium.Env):
    """Has no zero in its observation spaces."""

    observation_space = gymnasium.spaces.Dict(
        level=gymnasium.spaces.Discrete(3, start=5),
        pair=gymnasium.spaces.MultiDiscrete([2, 2], start=[1, -4]),
        place=gymnasium.spaces.Box(np.array([1, -3], np.float32), np.array([2, -2], np.float32)),
    )
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {}


@pytest.mark.parametrize("padding", ["reset", "zero"])
def test_padding_is_gymnasiums_and_in_the_space(padding):
    reference = gymnasium.wrappers.FrameStackObservation(Elsewhere(), SIZE, padding_type=padding)
    with FrameStackObservation(envfleet.make(Elsewhere, backend="serial"), SIZE, padding_type=padding) as envs:
        obs, _ = envs.reset(seed=3)
        assert obs in envs.observation_space
        wanted, _ = reference.reset(seed=3)
        same({key: column[0] for key, column in obs.items()}, wanted)


def test_refusals():
    with envfleet.make("CartPole-v1") as pool:
        for size in (0, -1, 2.5, True, "4"):
            with pytest.raises(envfleet.ConfigError, match="stack_size"):
                FrameStackObservation(pool, size)
        with pytest.raises(envfleet.ConfigError, match="padding_type"):
            FrameStackObservation(pool, 2, padding_type="mirror")
    with (
        envfleet.make(SpaceEnv, kind="text", backend="serial") as pool,
        pytest.raises(envfleet.ConfigError, match="Text"),
    ):
        FrameStackObservation(pool, 2)
    with pytest.raises(envfleet.ConfigError, match=r"envfleet\.make"):
        FrameStackObservation(gymnasium.make_vec("CartPole-v1", vectorization_mode="sync"), 2)


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_the_final_stacks_of_others_are_in_the_error_when_an_env_raises(backend):
    pool = envfleet.make(FaultyEnv, num_envs=3, backend=backend, autoreset_mode="same_step")
    with FrameStackObservation(FrameStackObservation(pool, 2), 3) as envs:
        start = envs.reset(seed=0)[0][2, 0, 0, 0]
        envs.step([0, 0, 0])
        with pytest.raises(envfleet.EnvError) as caught:
            envs.step([FaultyEnv.THROW, 0, FaultyEnv.END])
        batch = caught.value.batch
        assert batch.obs.shape == batch.final.obs.shape == (3, 3, 2, 2)
        assert batch.obs.dtype == batch.final.obs.dtype
        # The counts of env 2: reset, step, END.
        assert batch.final.obs[2, :, :, 1].tolist() == [[0, 0], [0, 1], [1, 2]]
        assert (batch.final.obs[2, :, :, 0] == start).all()
        assert not batch.obs[2, :, :, 1].any()
        assert "final_obs" not in batch.info
