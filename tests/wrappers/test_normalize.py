"""NormalizeObservation, NormalizeReward and ClipReward against the plain arithmetic of what came."""

from __future__ import annotations

import pickle

import gymnasium
import numpy as np
import pytest
from support.python_probes import FaultyEnv, SinkEnv
from wrapper_rollouts import MODES, roll

import envfleet
from envfleet.wrappers import ClipReward, NormalizeObservation, NormalizeReward

# The statistics start from a ten-thousandth of a row of mean 0 and variance 1.
CLOSE = {"rtol": 1e-3, "atol": 1e-4}


def push(env_id: int, count: int) -> int:
    return (env_id + count // 3) % 2


def thrust(env_id: int, count: int) -> np.ndarray:
    return np.array([np.sin(env_id + count / 7)], dtype=np.float32)


def make(env, mode, way, **options):
    options |= {"batch_size": 2} if way == "batches" else {}
    return envfleet.make(env, num_envs=5, seed=2, autoreset_mode=mode, **options)


@pytest.mark.parametrize("way", ["steps", "some_steps", "batches"])
@pytest.mark.parametrize("mode", MODES)
def test_observations_are_scaled_by_all_that_came(mode, way):
    with make("CartPole-v1", mode, way) as plain:
        raw = roll(plain, push, way, 400)
    # Every observation once, the last ones of same_step batches too.
    seen = [row.obs for rows in raw.rows for row in rows]
    seen += [row.value("final_obs") for rows in raw.rows for row in rows if mode == "same_step" and row.ended]
    with NormalizeObservation(make("CartPole-v1", mode, way)) as envs:
        rollout = roll(envs, push, way, 400)
        if way != "batches":  # the order of asynchronous batches, and so the last few rows, may differ
            assert envs.obs_rms.count == pytest.approx(len(seen), abs=1e-3)
            np.testing.assert_allclose(envs.obs_rms.mean, np.mean(seen, axis=0, dtype=np.float64), **CLOSE)
            np.testing.assert_allclose(envs.obs_rms.var, np.var(seen, axis=0, dtype=np.float64), **CLOSE)
            last_batch = rollout.rows[0][-1].info if way == "steps" else None
            for one, row in ((plain[-1], own[-1]) for plain, own in zip(raw.rows, rollout.rows, strict=True)):
                if row.info is last_batch:  # what came before was scaled by what was known then
                    scaled = (one.obs - envs.obs_rms.mean) / np.sqrt(envs.obs_rms.var + envs.epsilon)
                    np.testing.assert_allclose(row.obs, scaled, rtol=1e-5)
        ours = [row for rows in rollout.rows for row in rows]
        assert {row.obs.dtype for row in ours} == {np.dtype(np.float32)}
        num_finals = sum(row.ended for row in ours) if mode == "same_step" else 0
        assert envs.obs_rms.count == pytest.approx(len(ours) + num_finals, abs=1e-3)
        if mode == "same_step":
            scale = np.sqrt(envs.obs_rms.var + envs.epsilon)
            ends = [row for rows in rollout.rows for row in rows if row.ended]
            final = ends[-1].value("final_obs") * scale + envs.obs_rms.mean
            assert abs(final[0]) > 2.3 or abs(final[2]) > 0.19  # where CartPole falls, in its own units again


def test_a_partial_reset_counts_only_those_that_were_reset():
    with NormalizeObservation(envfleet.make("CartPole-v1", num_envs=4)) as envs:
        envs.reset(seed=0)
        obs, _ = envs.reset(options={"reset_mask": np.array([True, False, False, False])})
        assert obs.shape == (4, 4)
        envs.reset([1, 2])
        assert envs.obs_rms.count == pytest.approx(4 + 1 + 2, abs=1e-3)


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_what_stands_for_a_failed_env_is_not_counted(mode):
    pool = envfleet.make(FaultyEnv, num_envs=2, backend="serial", autoreset_mode=mode, on_error="restart")
    with NormalizeReward(NormalizeObservation(pool)) as envs:
        envs.reset(seed=0)
        envs.step([FaultyEnv.STEP, 0])
        envs.step([FaultyEnv.THROW, 0])
        # Of the failed row nothing in next_step mode, the next first observation in same_step mode.
        assert envs.env.obs_rms.count == pytest.approx(2 + 2 + (1 if mode == "next_step" else 2), abs=1e-3)
        assert envs.return_rms.count == pytest.approx(2 + 1, abs=1e-3)
        assert envs.accumulated_reward[0] == 0


@pytest.mark.parametrize("mode", MODES)
def test_the_row_of_an_env_that_raised_is_not_counted(mode):
    pool = envfleet.make(FaultyEnv, num_envs=2, backend="serial", autoreset_mode=mode)
    with NormalizeReward(NormalizeObservation(pool)) as envs:
        starts = pool.pool.reset(seed=0).obs[:, 0].tolist()
        envs.reset(seed=0)
        with pytest.raises(envfleet.EnvError):  # at the first step, before any has elapsed
            envs.step([FaultyEnv.THROW, 0])
        assert envs.env.obs_rms.count == pytest.approx(2 + 1, abs=1e-3)
        assert envs.env.obs_rms.mean[0] == pytest.approx(np.mean([*starts, starts[1]]), rel=1e-3)
        assert envs.return_rms.count == pytest.approx(1, abs=1e-3)
        envs.reset([0])
        assert envs.env.obs_rms.count == pytest.approx(2 + 1 + 1, abs=1e-3)
        with pytest.raises(envfleet.EnvError):
            envs.step([0, FaultyEnv.THROW])
        assert envs.env.obs_rms.count == pytest.approx(2 + 1 + 1 + 1, abs=1e-3)
        assert envs.return_rms.count == pytest.approx(2, abs=1e-3)


class Reporter(FaultyEnv):
    """Has an info "error" of its own."""

    def step(self, action):
        *row, _ = super().step(action)
        return *row, {"error": 0.5}


def test_an_error_of_the_envs_own_is_not_a_restart():
    pool = envfleet.make(Reporter, num_envs=2, backend="serial", on_error="restart", max_episode_steps=1)
    with NormalizeReward(NormalizeObservation(pool)) as envs:
        envs.reset(seed=0)
        assert envs.step([0, 0])[3].all()
        assert envs.env.obs_rms.count == pytest.approx(4, abs=1e-3)
        assert envs.return_rms.count == pytest.approx(2, abs=1e-3)


def test_dicts_are_normalised_box_by_box():
    pool = envfleet.make(SinkEnv, num_envs=3, backend="serial", seed=0, max_episode_steps=7)
    with NormalizeObservation(pool, clip=5.0) as envs:
        obs, _ = envs.reset()
        for _ in range(20):
            obs, *_ = envs.step([[1, 2]] * 3)
        assert obs in envs.observation_space
        assert [obs[key].dtype for key in ("zulu", "alpha", "small")] == [np.float32, np.float64, np.float32]
        assert obs["mike"].dtype == np.int64
        assert np.abs(obs["zulu"]).max() <= 5
        assert set(envs.obs_rms) == {"obs['zulu']", "obs['alpha']", "obs['small']"}


@pytest.mark.parametrize("way", ["steps", "some_steps", "batches"])
@pytest.mark.parametrize("mode", MODES)
def test_rewards_are_divided_by_the_deviation_of_the_return(mode, way):
    options = {"max_episode_steps": 30}  # truncations: where Gymnasium's goes on adding
    with make("Pendulum-v1", mode, way, **options) as plain:
        raw = roll(plain, thrust, way, 200)
    returns = []
    for rows in raw.rows:
        running = 0.0
        for row in rows:
            if row.reward is None or (row.elapsed == 0 and not row.ended):
                running = 0.0
                continue
            running = running * 0.9 + row.reward
            returns.append(running)
            running = 0.0 if row.ended else running
    with NormalizeReward(make("Pendulum-v1", mode, way, **options), gamma=0.9) as envs:
        rollout = roll(envs, thrust, way, 200)
        if way != "batches":
            assert envs.return_rms.count == pytest.approx(len(returns), abs=1e-3)
            np.testing.assert_allclose(envs.return_rms.var, np.var(returns), **CLOSE)
            last, unscaled = rollout.rows[0][-1], raw.rows[0][-1].reward
            assert last.reward == pytest.approx(unscaled / np.sqrt(np.var(returns)), rel=1e-2)


def test_statistics_are_saved_loaded_and_frozen(tmp_path):
    path = tmp_path / "statistics"
    with NormalizeReward(NormalizeObservation(envfleet.make("CartPole-v1", num_envs=4))) as envs:
        roll(envs, push, "steps", 50)
        envs.env.save(path)
        envs.save(tmp_path / "reward")
        mean, var = envs.env.obs_rms.mean, envs.env.obs_rms.var
        with NormalizeReward(NormalizeObservation(envfleet.make("CartPole-v1", num_envs=2))) as other:
            other.env.load(path)
            other.load(tmp_path / "reward")
            assert other.return_rms.var == envs.return_rms.var
            other.update_running_mean = other.env.update_running_mean = False
            raw, _ = envfleet.make("CartPole-v1", num_envs=2).reset(seed=9)
            obs, _ = other.reset(seed=9)
            np.testing.assert_allclose(obs, (raw - mean) / np.sqrt(var + 1e-8), rtol=1e-5)
            np.testing.assert_array_equal(other.env.obs_rms.mean, mean)
            with pytest.raises(envfleet.StateError, match="expected statistics of"):
                other.load(path)
            other.env.obs_rms = envs.env.obs_rms  # one for both, as is the custom
    with NormalizeObservation(envfleet.make("Pendulum-v1")) as envs:
        with pytest.raises(envfleet.StateError, match=r"shape \(3,\)"):
            envs.load(path)
        path.write_text("no archive")
        with pytest.raises(envfleet.StateError, match="save"):
            envs.load(path)
        with pytest.raises(FileNotFoundError):
            envs.load(tmp_path / "nowhere")
        assert envs.obs_rms.count < 1


def test_states_pickle():
    with NormalizeReward(NormalizeObservation(envfleet.make("CartPole-v1", num_envs=2))) as envs:
        roll(envs, push, "steps", 20)
        state = pickle.loads(pickle.dumps(envs.get_state()))
        once = envs.step([0, 1])
        envs.set_state(state)
        again = envs.step([0, 1])
        for one, other in zip(once[:4], again[:4], strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("way", ["steps", "batches"])
@pytest.mark.parametrize("mode", MODES)
def test_rewards_are_clipped(mode, way):
    with make("Pendulum-v1", mode, way) as plain:
        raw = roll(plain, thrust, way, 30)
    with ClipReward(make("Pendulum-v1", mode, way), -2.0, -1.0) as envs:
        ours = roll(envs, thrust, way, 30)
    for plain_rows, rows in zip(raw.rows, ours.rows, strict=True):
        for one, row in zip(plain_rows, rows, strict=False):
            # The row of a reset has no reward to clip.
            assert row.reward == (one.reward if not one.reward else min(max(one.reward, -2.0), -1.0))


def test_refusals():
    with envfleet.make("CartPole-v1") as pool:
        for wrong in (
            lambda: ClipReward(pool),
            lambda: ClipReward(pool, 1.0, -1.0),
            lambda: NormalizeReward(pool, gamma=2),
            lambda: NormalizeReward(pool, epsilon=0),
            lambda: NormalizeObservation(pool, clip=-1),
        ):
            with pytest.raises(envfleet.ConfigError, match="expected"):
                wrong()
    with envfleet.make("Taxi-v4") as pool, pytest.raises(envfleet.ConfigError, match="Box"):
        NormalizeObservation(pool)


@pytest.mark.parametrize(
    "bounds", [(np.float32(-2), np.float32(-1)), (np.int64(-2), -1), (np.array(-2.0), np.array(-1))]
)
def test_bounds_of_numpy(bounds):
    """An array without dimensions is a number, as it is for Gymnasium's ClipReward."""
    with envfleet.make("Pendulum-v1", num_envs=3) as pool, envfleet.make("Pendulum-v1", num_envs=3) as twin:
        ours, other = ClipReward(pool, *bounds), gymnasium.wrappers.vector.ClipReward(twin, *bounds)
        for envs in (ours, other):
            envs.reset(seed=0)
        actions = np.zeros((3, 1), np.float32)
        for _ in range(5):
            np.testing.assert_array_equal(ours.step(actions)[1], other.step(actions)[1])


@pytest.mark.parametrize(
    "value", ["x", float("nan"), [1.0], True, np.True_, np.array(True), np.array(np.nan), np.ones(1), np.ones(2), 1j]
)
def test_arguments_that_are_no_numbers(value):
    with envfleet.make("CartPole-v1") as pool:
        for make in (
            lambda: NormalizeObservation(pool, value),
            lambda: NormalizeObservation(pool, clip=value),
            lambda: NormalizeReward(pool, value),
            lambda: ClipReward(pool, value),
            lambda: ClipReward(pool, 0, value),
        ):
            with pytest.raises(envfleet.ConfigError, match="expected a number as"):
                make()
