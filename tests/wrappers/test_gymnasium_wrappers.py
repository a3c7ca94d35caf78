"""Gymnasium's own vector wrappers around a pool, in each autoreset mode that they know."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import vector
from support.python_probes import FaultyEnv, SinkEnv
from wrapper_rollouts import MODES

import envfleet
from envfleet.wrappers import FrameStackObservation, RecordEpisodeStatistics

STEPS = 40


def run(envs, action, num_steps=STEPS):
    """Observations and infos of some steps; ended envs are reset where nobody else does it."""
    seen = [envs.reset(seed=0)]
    for _ in range(num_steps):
        obs, reward, terminated, truncated, info = envs.step(action)
        seen.append((obs, info, reward))
        ended = terminated | truncated
        if envs.metadata["autoreset_mode"] is gymnasium.vector.AutoresetMode.DISABLED and ended.any():
            seen.append(envs.reset(options={"reset_mask": ended}))
    return seen


@pytest.mark.parametrize("mode", MODES)
def test_actions(mode):
    for wrap in (
        vector.ClipAction,
        lambda envs: vector.RescaleAction(envs, np.float32(-5), np.float32(5)),
        lambda envs: vector.TransformAction(envs, lambda action: np.clip(action, -2, 2), envs.action_space),
    ):
        with envfleet.make("Pendulum-v1", num_envs=3, autoreset_mode=mode, max_episode_steps=15) as pool:
            envs = wrap(pool)  # Gymnasium's wrappers close what they wrap when they are dropped
            run(envs, np.full((3, 1), 4.0, np.float32))
            assert pool.pool.stats().num_episodes >= 6


@pytest.mark.parametrize("mode", MODES)
def test_rewards(mode):
    with envfleet.make("CartPole-v1", num_envs=3, autoreset_mode=mode) as pool:
        seen = run(vector.TransformReward(pool, lambda reward: reward * 3), np.ones(3, int))
        assert max(row[2].max() for row in seen if len(row) == 3) == 3
    with envfleet.make("CartPole-v1", num_envs=3, autoreset_mode=mode) as pool:
        run(vector.NormalizeReward(vector.ClipReward(pool, 0.0, 0.5)), np.ones(3, int))


@pytest.mark.parametrize("mode", ["next_step", "disabled"])
def test_episode_statistics(mode):
    # In same_step mode Gymnasium 1.2's loses the first step after each end: envfleet.wrappers has one.
    with envfleet.make("CartPole-v1", num_envs=3, autoreset_mode=mode) as pool:
        envs = vector.RecordEpisodeStatistics(RecordEpisodeStatistics(pool, stats_key="ours"))
        episodes = [info for _, info, *_ in run(envs, np.ones(3, int)) if "episode" in info]
        assert len(episodes) > 3
        for info in episodes:
            for key in "rl":
                np.testing.assert_array_equal(info["episode"][key], info["ours"][key])


@pytest.mark.parametrize("mode", ["next_step", "disabled"])
def test_observations(mode):
    wraps = {
        "flatten": vector.FlattenObservation,
        "filter": lambda envs: vector.FilterObservation(envs, ["alpha", "mike"]),
        "rescale": lambda envs: vector.RescaleObservation(
            vector.TransformObservation(
                envs, lambda obs: obs["zulu"].astype(np.float32), gymnasium.spaces.Box(0, 255, (3, 3, 2), np.float32),
                single_observation_space=gymnasium.spaces.Box(0, 255, (3, 2), np.float32),
            ),
            np.float32(0), np.float32(1),
        ),
    }  # fmt: skip
    for wrap in wraps.values():
        options = {"num_envs": 3, "backend": "serial", "autoreset_mode": mode, "max_episode_steps": 7}
        with envfleet.make(SinkEnv, **options) as pool:
            envs = wrap(pool)
            for obs, *_ in run(envs, np.zeros((3, 2), int), 20):
                assert obs in envs.observation_space


def test_normalisation_in_the_mode_that_gymnasium_knows():
    with envfleet.make("CartPole-v1", num_envs=3) as pool:
        obs, *_ = run(vector.NormalizeObservation(pool), np.ones(3, int))[-1]
        assert obs.shape == (3, 4)


@pytest.mark.parametrize("mode", MODES)
def test_infos_as_a_list(mode):
    with envfleet.make("CartPole-v1", num_envs=3, autoreset_mode=mode) as pool:
        envs = vector.DictInfoToList(pool)
        _, infos = envs.reset(seed=0)
        assert [info["env_id"] for info in infos] == [0, 1, 2]
        *_, infos = envs.step(np.ones(3, int))
        assert [info["elapsed_step"] for info in infos] == [1, 1, 1]


@pytest.mark.parametrize("mode", MODES)
def test_torch(mode):
    torch = pytest.importorskip("torch")
    pytest.importorskip("array_api_compat", reason="Gymnasium's conversions need it")
    with envfleet.make("CartPole-v1", num_envs=3, autoreset_mode=mode) as pool:
        envs = vector.NumpyToTorch(pool)
        envs.reset(seed=0)
        obs, reward, *_ = envs.step(torch.ones(3, dtype=torch.int64))
        assert isinstance(obs, torch.Tensor)
        assert isinstance(reward, torch.Tensor)


def test_one_of_gymnasiums_between_two_of_ours():
    with envfleet.make("Pendulum-v1", num_envs=3) as pool:
        envs = FrameStackObservation(vector.ClipAction(pool), 2)
        envs.reset(seed=0)
        obs, *_ = envs.step(np.full((3, 1), 9.0, np.float32))
        assert obs.shape == (3, 2, 3)
        with pytest.raises(envfleet.ConfigError, match="ClipAction within FrameStackObservation"):
            envs.send(np.zeros((3, 1), np.float32))


def test_the_rows_of_others_pass_gymnasiums_wrappers_when_an_env_raises():
    with envfleet.make(FaultyEnv, num_envs=3, backend="serial") as pool:
        between = vector.TransformReward(vector.ReshapeObservation(pool, (2, 1)), lambda rewards: 10 * rewards)
        envs = FrameStackObservation(RecordEpisodeStatistics(between), 2)
        envs.reset(seed=0)
        envs.step([0, 0, 0])
        with pytest.raises(envfleet.EnvError, match="joint 3") as caught:
            envs.step([0, FaultyEnv.THROW, FaultyEnv.END])
        batch = caught.value.batch
        assert batch.obs.shape == (3, 2, 2, 1)
        assert batch.obs[0, :, 1, 0].tolist() == [1, 2]
        assert batch.info["episode"]["r"].tolist() == [0, 0, 10 + 20]
