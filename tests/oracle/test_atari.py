"""Atari against Gymnasium's AtariPreprocessing and FrameStackObservation on ale-py's env, and ale-py's vector env.

Rewards and ends are equal. Pictures differ by one grey level at most: OpenCV adds up its areas in floats, the
kernel in whole numbers, and a sum that lies on the border between two levels may round to either.
"""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from atari_rollouts import SEED, Preprocessed, assert_close, compare

import envfleet

ale_py = pytest.importorskip("ale_py")
pytest.importorskip("cv2")


def pool_of(env_id, **options):
    return envfleet.make(env_id, backend="serial", **{"use_fire_reset": False, **options})


def test_breakout_through_lost_lives_and_whole_games():
    ends, num_rewards = compare(Preprocessed("Breakout"), pool_of("Breakout-v5"), 600)
    assert ends[0] >= 2
    assert num_rewards > 0


@pytest.mark.parametrize("game", ["Pong", "MsPacman", "Seaquest"])
def test_games(game):
    _, num_rewards = compare(Preprocessed(game), pool_of(f"{game}-v5"), 250)
    assert num_rewards > 0


def test_sticky_actions_draw_the_same():
    pool = pool_of("SpaceInvaders-v5", repeat_action_probability=0.25)
    compare(Preprocessed("SpaceInvaders", sticky=0.25), pool, 250)


def test_truncation_by_frames_in_the_middle_of_a_step():
    pool = pool_of("Freeway-v5", max_num_frames_per_episode=150)
    ends, _ = compare(Preprocessed("Freeway", max_frames=150), pool, 150)
    assert ends[1] >= 2


@pytest.mark.parametrize("frame_skip", [1, 2, 3])
def test_other_frame_skips(frame_skip):
    ends, _ = compare(
        Preprocessed("Breakout", frame_skip=frame_skip, noop_max=5, max_frames=300),
        pool_of("Breakout-v5", frame_skip=frame_skip, noop_max=5, max_num_frames_per_episode=300),
        300,
    )
    assert sum(ends) >= 1


def test_in_colour():
    # EnvPool has the colours of a frame as planes: (4, 84, 84, 3) becomes (12, 84, 84).
    compare(
        Preprocessed("Enduro", grayscale_obs=False),
        pool_of("Enduro-v5", gray_scale=False),
        80,
        as_planes=lambda obs: np.moveaxis(obs, -1, 1).reshape(-1, *obs.shape[1:3]),
    )


def test_a_console_of_european_television():
    pool = pool_of("AirRaid-v5", img_height=64, img_width=100)
    compare(Preprocessed("AirRaid", screen_size=(100, 64)), pool, 80)


def test_the_end_of_a_life_as_the_end_of_an_episode():
    reference = Preprocessed("Breakout", terminal_on_life_loss=True)
    pool = pool_of("Breakout-v5", episodic_life=True)
    expected, (obs, info) = reference.reset(SEED), pool.reset(seed=SEED)
    assert info["lives"][0] == 5
    for action in np.random.default_rng(SEED).integers(4, size=500):
        expected, reward, terminated, truncated = reference.step(action)
        obs, own_reward, own_terminated, own_truncated, info = pool.step(np.array([action]))
        assert (own_reward[0], own_terminated[0], own_truncated[0]) == (reward, terminated, truncated)
        assert_close(obs[0], expected)
        if terminated:
            # From here on they part: Gymnasium's begins a new game.
            assert info["lives"][0] == 4
            assert info["terminated"][0] == 0
            break
    else:
        pytest.fail("no life was lost")
    pool.close()


@pytest.mark.parametrize("env_id", ["ALE/Breakout-v5", "BreakoutNoFrameskip-v4"])
@pytest.mark.parametrize("obs_type", ["rgb", "grayscale", "ram"])
def test_the_names_of_gymnasium_are_ale_pys_own_env(env_id, obs_type):
    reference = gymnasium.make(env_id, obs_type=obs_type, max_num_frames_per_episode=700)
    pool = envfleet.make(env_id, backend="serial", obs_type=obs_type, max_num_frames_per_episode=700)
    expected, expected_info = reference.reset(seed=3)
    obs, info = pool.reset(seed=3)
    assert pool.single_observation_space == reference.observation_space
    assert pool.single_action_space == reference.action_space
    assert info["seeds"][0] == expected_info.pop("seeds")
    has_ended, num_ends = False, 0
    for action in np.random.default_rng(3).integers(4, size=400):
        np.testing.assert_array_equal(obs[0], expected)
        assert {key: info[key][0] for key in expected_info} == expected_info
        if has_ended:
            expected, expected_info = reference.reset()
            ends = (0.0, False, False)
            has_ended = False
        else:
            expected, *ends, expected_info = reference.step(action)
            has_ended = ends[1] or ends[2]
            num_ends += has_ended
        obs, reward, terminated, truncated, info = pool.step(np.array([action]))
        assert (reward[0], terminated[0], truncated[0]) == tuple(ends)
    assert num_ends >= (1 if "v5" in env_id else 0)
    pool.close()
    reference.close()


@pytest.mark.parametrize(("game", "least_ends"), [("breakout", 2), ("boxing", 0)])
def test_ale_pys_vector_env(game, least_ends):
    # Without random no-ops: it draws them from another generator. Its stack begins with zeros, so that frames are
    # compared and not stacks. Its limit in frames does not count those of a reset, and ours does, as ale-py's env.
    theirs = ale_py.AtariVectorEnv(game, 2, num_threads=1, noop_max=0, reward_clipping=False)
    ours = envfleet.make(f"{game.title()}-v5", num_envs=2, backend="serial", noop_max=0)
    expected, expected_info = theirs.reset(seed=0)
    obs, info = ours.reset(seed=0)
    assert ours.single_action_space == theirs.single_action_space
    num_ends = 0
    for actions in np.random.default_rng(5).integers(theirs.single_action_space.n, size=(300, 2)):
        assert_close(obs[:, -1], expected[:, -1])
        np.testing.assert_array_equal(info["lives"], expected_info["lives"])
        expected, reward, terminated, truncated, expected_info = theirs.step(actions)
        obs, own_reward, own_terminated, own_truncated, info = ours.step(actions)
        np.testing.assert_array_equal(own_reward, reward)
        np.testing.assert_array_equal(own_terminated, terminated)
        np.testing.assert_array_equal(own_truncated, truncated)
        num_ends += (terminated | truncated).sum()
    assert num_ends >= least_ends
    ours.close()
    theirs.close()
