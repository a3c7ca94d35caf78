"""RecordEpisodeStatistics: every episode once, whole, in the row that ended it."""

from __future__ import annotations

import numpy as np
import pytest
from support.python_probes import FaultyEnv
from wrapper_rollouts import MODES, Rollout, roll

import envfleet
from envfleet.wrappers import ClipReward, RecordEpisodeStatistics


def push(env_id: int, count: int) -> int:
    return (env_id + count // 3) % 2


@pytest.mark.parametrize("way", ["steps", "some_steps", "batches"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", ["native", "serial", "threads"])
def test_each_episode_is_reported_whole(mode, way, backend):
    options = {"batch_size": 3} if way == "batches" else {}
    pool = envfleet.make("CartPole-v1", num_envs=5, seed=3, autoreset_mode=mode, backend=backend, **options)
    with RecordEpisodeStatistics(pool) as envs:
        rollout = roll(envs, push, way, 120)
        num_episodes, total = 0, 0.0
        for rows in rollout.rows:
            returned, length = 0.0, 0
            for row in rows:
                is_reset = row.reward is None or (row.elapsed == 0 and not row.ended)
                returned, length = (0.0, 0) if is_reset else (returned + row.reward, length + 1)
                episode = row.value("episode")
                assert (episode is not None) == row.ended
                if row.ended:
                    assert (episode["r"], episode["l"]) == (returned, length)
                    assert episode["t"] >= 0
                    num_episodes, total = num_episodes + 1, total + returned
                    returned, length = 0.0, 0
        assert num_episodes > 3
        assert envs.episode_count == num_episodes
        assert len(envs.return_queue) == len(envs.length_queue) == min(num_episodes, 100)
        if way != "batches":  # where nothing is in flight, the pool has counted the same
            stats = envs.pool.stats()
            assert stats.num_episodes == num_episodes
            assert stats.return_mean == pytest.approx(total / num_episodes)


@pytest.mark.parametrize("mode", MODES)
def test_a_partial_reset_starts_only_those_anew(mode):
    pool = envfleet.make(FaultyEnv, num_envs=3, backend="serial", autoreset_mode=mode)
    with RecordEpisodeStatistics(pool) as envs:
        envs.reset(seed=0)
        envs.step([0, 0, 0])  # reward 1
        options = {"reset_mask": np.array([False, True, False])}
        obs, _ = envs.reset(options=options)
        assert obs[:, 1].tolist() == [1, 0, 1]
        assert list(options) == ["reset_mask"]  # the caller's dict is the caller's
        envs.reset([2])
        *_, info = envs.step([FaultyEnv.END] * 3)
        assert info["episode"]["r"].tolist() == [3, 1, 1]
        assert info["episode"]["l"].tolist() == [2, 1, 1]


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_an_episode_that_failed_is_none(mode):
    pool = envfleet.make(FaultyEnv, num_envs=2, backend="serial", autoreset_mode=mode, on_error="restart")
    with RecordEpisodeStatistics(pool) as envs:
        envs.reset(seed=0)
        for action in (FaultyEnv.STEP, FaultyEnv.THROW):
            *_, info = envs.step([action, 0])
            assert "episode" not in info
        if mode == "next_step":
            envs.step([0, 0])
        envs.step([0, 0])
        *_, info = envs.step([FaultyEnv.END, 0])
        assert info["_episode"].tolist() == [True, False]
        assert info["episode"]["r"][0] == 1 + 2
        assert info["episode"]["l"][0] == 2
        assert envs.episode_count == envs.pool.stats().num_episodes == 1


def test_the_rows_of_others_count_when_an_env_raises():
    pool = envfleet.make(FaultyEnv, num_envs=3, backend="serial")
    with ClipReward(RecordEpisodeStatistics(pool), max_reward=1.5) as envs:
        envs.reset(seed=0)
        envs.step([0, 0, 0])
        with pytest.raises(envfleet.EnvError) as caught:
            envs.step([FaultyEnv.THROW, 0, FaultyEnv.END])
        batch = caught.value.batch
        assert batch.reward.tolist() == [0, 1.5, 1.5]  # as wrapped
        assert batch.info["episode"]["r"].tolist() == [0, 0, 3]
        envs.reset([0])
        *_, info = envs.step([0, FaultyEnv.END, 0])
        assert info["episode"]["r"].tolist() == [0, 1 + 2 + 3, 0]


class Namesake(FaultyEnv):
    """Has infos of its own under the names of the pool's."""

    def step(self, action):
        *result, _ = super().step(action)
        return *result, {"env_id": 7, "elapsed_step": 0}


def test_ids_of_the_pool_take_precedence_when_an_env_raises():
    with RecordEpisodeStatistics(envfleet.make(Namesake, num_envs=3, backend="serial")) as envs:
        envs.reset(seed=0)
        envs.step([0, 0, 0])
        with pytest.raises(envfleet.EnvError) as caught:
            envs.step([FaultyEnv.THROW, 0, FaultyEnv.END])
        info = caught.value.batch.info
        assert info["env_id"].tolist() == [0, 1, 2]
        assert info["elapsed_step"].tolist() == [1, 2, 2]
        assert info["episode"]["l"].tolist() == [0, 0, 2]
        envs.reset([0])
        *_, info = envs.step([0, FaultyEnv.END, 0])
        assert info["episode"]["l"].tolist() == [0, 3, 0]


def test_a_saved_state_brings_the_running_episodes_along():
    with RecordEpisodeStatistics(envfleet.make("CartPole-v1", num_envs=4, seed=0)) as envs:
        rollout = Rollout(envs, push)
        rollout.reset()
        rollout.steps(20)
        state, sent = envs.get_state(), list(rollout.sent)
        once = [[row.value("episode") for row in rows] for rows in rollout.steps(40).rows]
        envs.set_state(state)
        again = Rollout(envs, push)
        again.sent = sent
        again.steps(40)
        for before, after in zip(once, again.rows, strict=True):
            ours = [row.value("episode") for row in after]
            assert [o and (o["r"], o["l"]) for o in ours] == [b and (b["r"], b["l"]) for b in before[-40:]]
        with pytest.raises(envfleet.StateError, match="same wrapper"):
            envs.set_state(envs.pool.get_state())


@pytest.mark.parametrize("length", [np.int64(1), np.array(1), 1, None])
def test_any_integer_is_a_buffer_length(length):
    with RecordEpisodeStatistics(envfleet.make(FaultyEnv, num_envs=2, backend="serial"), length) as envs:
        envs.reset()
        envs.step([FaultyEnv.END] * 2)
        assert len(envs.return_queue) == (2 if length is None else 1)


@pytest.mark.parametrize("length", [-1, "x", 1.5, True, np.int64(-1), np.float64(1), np.ones(1, int)])
def test_a_wrong_buffer_length_is_refused(length):
    with (
        envfleet.make("CartPole-v1") as pool,
        pytest.raises(envfleet.ConfigError, match="buffer_length expected an integer of at least 0"),
    ):
        RecordEpisodeStatistics(pool, length)


def test_a_key_in_use_is_refused():
    inner = RecordEpisodeStatistics(envfleet.make(FaultyEnv, num_envs=1, backend="serial"))
    with RecordEpisodeStatistics(inner) as envs:
        envs.reset()
        with pytest.raises(envfleet.ConfigError, match="stats_key"):
            envs.step([FaultyEnv.END])
    inner = RecordEpisodeStatistics(envfleet.make(FaultyEnv, num_envs=1, backend="serial"))
    with RecordEpisodeStatistics(inner, stats_key="outer", buffer_length=1) as envs:
        envs.reset()
        *_, info = envs.step([FaultyEnv.END])
        assert info["outer"]["l"] == info["episode"]["l"] == [1]
        assert envs.return_queue.maxlen == 1
