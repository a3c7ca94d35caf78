"""Atari games as they are played: seeds, states, infos, rewards, lives, modes, colours."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from atari_rollouts import assert_same, make, play

import envfleet
from envfleet.families.atari import emulator
from envfleet.families.atari.emulator import Emulator
from envfleet.families.atari.env import AtariEnv
from envfleet.families.atari.games import CLEARED_BY_RESET, GAMES
from envfleet.families.atari.observations import palette
from envfleet.families.atari.options import read_options

Action = pytest.importorskip("ale_py").Action


@pytest.mark.parametrize("options", [{"repeat_action_probability": 0.25}, {"frame_skip": (1, 3)}])
def test_the_same_on_every_backend(options):
    rollouts = []
    for backend in ("serial", "threads", "processes"):
        with make(num_envs=3, backend=backend, num_workers=2, seed=4, **options) as envs:
            obs, _ = envs.reset()
            rollouts.append([obs, *play(envs, 60)])
    assert_same(rollouts[0], rollouts[1])
    assert_same(rollouts[0], rollouts[2])


def test_a_step_of_one_frame_shows_that_frame():
    # Nothing is left of what came before it, and of the other envs of its thread.
    with make(num_envs=2, frame_skip=(1, 2), seed=4) as drawn, make(num_envs=1, frame_skip=1, seed=4) as fixed:
        drawn.reset()
        fixed.reset()
        random = np.random.default_rng(0)
        for action in random.integers(4, size=100):
            seen = drawn.step(np.array([action, 0]))[0]
            # The drawn skips take from the generator of no-ops, which nothing else takes from within an episode.
            np.testing.assert_array_equal(seen[0], fixed.step(np.array([action]))[0][0])


def test_seeds_repeat_and_differ():
    with make("SpaceInvaders-v5", num_envs=2, repeat_action_probability=0.5) as envs:
        envs.reset(seed=[3, 3])
        obs, *_ = play_both_alike(envs, 40)
        assert (obs[:, 0] == obs[:, 1]).all()
        envs.reset(seed=[3, 4])
        obs, *_ = play_both_alike(envs, 40)
        assert (obs[:, 0] != obs[:, 1]).any()


def play_both_alike(envs, num_steps):
    random = np.random.default_rng(0)
    rows = [envs.step(np.full(2, random.integers(envs.single_action_space.n)))[:4] for _ in range(num_steps)]
    return [np.stack(column) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize("backend", ["serial", "processes"])
@pytest.mark.parametrize(
    "options",
    [
        {"repeat_action_probability": 0.25, "episodic_life": True},
        {"gray_scale": False, "frame_skip": (2, 5)},
        {"obs_type": "ram"},
    ],
)
def test_states_repeat_the_future_bit_for_bit(backend, options):
    with make(num_envs=2, backend=backend, num_workers=2, seed=2, **options) as envs:
        envs.reset()
        play(envs, 30, seed=1)
        saved = envs.get_state()
        once = play(envs, 70, seed=2)
        envs.set_state(saved)
        assert_same(play(envs, 70, seed=2), once)
        envs.set_state(saved)
        assert_same(play(envs, 70, seed=2), once)


def test_a_state_before_the_first_reset_and_the_picture_after_one_is_loaded():
    with make(seed=5, render_mode="rgb_array") as envs:
        untouched = envs.get_state()
        envs.reset(seed=5)
        play(envs, 20)
        saved, picture = envs.get_state(), envs.render()[0]
        assert picture.shape == (210, 160, 3)
        play(envs, 20, seed=9)
        assert (envs.render()[0] != picture).any()
        envs.set_state(saved)
        np.testing.assert_array_equal(envs.render()[0], picture)
        envs.set_state(untouched)
        envs.reset(seed=5)


def test_rewards_are_clipped_and_told():
    options = {"num_envs": 1, "seed": 0, "use_fire_reset": False}
    with make("MsPacman-v5", reward_clip=True, **options) as clipped, make("MsPacman-v5", **options) as plain:
        clipped.reset()
        plain.reset()
        random = np.random.default_rng(0)
        seen = set()
        for _ in range(130):
            action = random.integers(9, size=1)
            _, reward, *_, info = clipped.step(action)
            truth = plain.step(action)[1][0]
            assert reward[0] == np.sign(truth)
            assert info["reward"][0] == truth
            assert info["reward"].dtype == np.float32
            seen.add(truth)
        assert 10.0 in seen


def test_infos_of_envpool():
    with make(num_envs=2, ram_in_info=True) as envs:
        _, info = envs.reset(seed=0)
        for _ in range(3):
            forms = {key: (info[key].dtype, info[key].shape) for key in ("lives", "reward", "terminated", "ram")}
            assert forms == {
                "lives": (np.int32, (2,)),
                "reward": (np.float32, (2,)),
                "terminated": (np.int32, (2,)),
                "ram": (np.uint8, (2, 128)),
            }
            np.testing.assert_array_equal(info["lives"], [5, 5])
            *_, info = envs.step(np.array([1, 1]))
    with make(obs_type="ram", ram_in_info=True, noop_max=0) as envs:
        envs.reset(seed=0)
        obs, *_, info = envs.step(np.array([1]))
        np.testing.assert_array_equal(obs, info["ram"])


def test_a_life_is_an_episode_and_the_game_goes_on():
    with make(episodic_life=True, seed=1) as envs:
        _, info = envs.reset()
        lives, ends, over = [int(info["lives"][0])], 0, 0
        random = np.random.default_rng(1)
        game_step = 0
        previous = None
        for _ in range(900):
            obs, reward, terminated, truncated, info = envs.step(random.integers(4, size=1))
            if info["elapsed_step"][0] == 0:  # a reset
                assert reward[0] == 0
                if over and lives[-1] == 0:
                    assert info["lives"][0] == 5
                    break
                # The game goes on, and so does the stack of frames.
                assert info["lives"][0] == lives[-1]
                assert info["game_step"][0] == game_step
                np.testing.assert_array_equal(obs[0, :-1], previous[0, 1:])
            else:
                game_step += 1
                assert info["game_step"][0] == game_step
            assert not truncated[0]
            if terminated[0]:
                ends += 1
                over += int(info["terminated"][0])
                lives.append(int(info["lives"][0]))
            previous = obs
        else:
            pytest.fail("no game was lost")
    assert lives == [5, 4, 3, 2, 1, 0]
    assert (ends, over) == (5, 1)


def test_the_limit_of_a_game_counts_over_its_lives():
    with make(episodic_life=True, seed=1, max_episode_steps=60) as envs:
        envs.reset()
        random = np.random.default_rng(1)
        num_lost = 0
        for _ in range(200):
            _, _, terminated, truncated, info = envs.step(random.integers(4, size=1))
            num_lost += terminated[0]
            if truncated[0]:
                break
        assert info["game_step"][0] == 60
        assert num_lost >= 1
        *_, info = envs.step(np.array([0]))
        assert info["lives"][0] == 5
        assert info["game_step"][0] == 0


def test_dm_discount_on_a_lost_life():
    pytest.importorskip("dm_env")
    pool = envfleet.make_dm("Breakout-v5", backend="serial", seed=1, zero_discount_on_life_loss=True)
    lives = pool.reset().observation.info["lives"][0]
    random = np.random.default_rng(1)
    for _ in range(300):
        step = pool.step(random.integers(4, size=1))
        now = step.observation.info["lives"][0]
        assert step.discount[0] == (0.0 if now < lives else 1.0)
        if now < lives:
            assert (step.step_type == 1).all()  # the game goes on
            break
        lives = now
    else:
        pytest.fail("no life was lost")
    pool.close()


def test_actions_modes_and_what_an_env_tells():
    with make(full_action_space=True, mode=4, difficulty=1) as envs:
        assert envs.single_action_space.n == 18
        assert envs.get_attr("options")[0]["mode"] == 4
        envs.reset(seed=0)
        envs.step(np.array([17]))
    with make() as envs:
        assert envs.call("get_action_meanings")[0] == ["NOOP", "FIRE", "RIGHT", "LEFT"]


def test_modes_change_the_game():
    with (
        make("SpaceInvaders-v5", seed=0, noop_max=0) as one,
        make("SpaceInvaders-v5", seed=0, noop_max=0, mode=8) as two,
    ):
        one.reset()
        two.reset()
        assert (play(one, 40)[0] != play(two, 40)[0]).any()


def test_fire_begins_the_game():
    # Breakout waits for it: without, nothing moves but the paddle.
    with make(noop_max=0, seed=0) as fired, make(noop_max=0, seed=0, use_fire_reset=False) as waiting:
        fired.reset()
        waiting.reset()
        for _ in range(12):
            moving = fired.step(np.array([0]))[0]
            still = waiting.step(np.array([0]))[0]
        assert (moving[0, -1] != moving[0, 0]).any()
        assert (still[0, -1] == still[0, 0]).all()


def test_gymnasiums_own_wrappers_take_it():
    pytest.importorskip("cv2")
    wrappers = [gymnasium.wrappers.AtariPreprocessing, lambda env: gymnasium.wrappers.FrameStackObservation(env, 4)]
    wrapped = make("PongNoFrameskip-v4", seed=3, wrappers=wrappers)
    native = make("Pong-v5", seed=3, use_fire_reset=False)
    obs, same = wrapped.reset()[0], native.reset()[0]
    for _ in range(30):
        assert np.abs(obs.astype(np.int16) - same).max() <= 1
        obs, same = wrapped.step(np.array([2]))[0], native.step(np.array([2]))[0]


def test_observations_of_an_env_alone_are_its_users():
    env = gymnasium.make("ALE/Pong-v5", frameskip=4)  # ale-py's, for comparison of the kinds
    own = AtariEnv("pong", "ale")
    assert own.observation_space == env.observation_space
    first, _ = own.reset(seed=0)
    kept = first.copy()
    own.step(2)
    np.testing.assert_array_equal(first, kept)


def check_colours(game):
    """The palette colours a game's screens as the console does."""
    env = AtariEnv(game, noop_max=0)
    env.reset(seed=0)
    console = env.ale
    if console.getScreenDims()[0] >= 250:
        return
    random = np.random.default_rng(0)
    for _ in range(15):
        env.step(random.integers(env.action_space.n))
        screen = console.getScreen()
        np.testing.assert_array_equal(palette(True)[0][screen], console.getScreenGrayscale())
        np.testing.assert_array_equal(np.moveaxis(palette(False)[:, screen], 0, -1), console.getScreenRGB())


@pytest.mark.parametrize("game", ["pong", "carnival", "journey_escape", "gravitar", "video_cube"])
def test_colours(game):
    check_colours(game)


@pytest.mark.soak
@pytest.mark.parametrize("game", GAMES)
def test_every_game_plays_and_has_its_colours(game):
    check_colours(game)
    with make("".join(part.capitalize() for part in game.split("_")) + "-v5", seed=0) as envs:
        envs.reset()
        obs, *_ = play(envs, 30)
        assert obs.any()


def check_restored_starts(game, num_games):
    """Compare games that begin with a state that another console reached to games that begin with reset_game()."""
    options = read_options("envpool", {})
    reset, restored, other = consoles = [Emulator(game, options) for _ in range(3)]
    for console in consoles:
        console.start(7)
    random = np.random.default_rng(0)
    for _ in range(num_games):
        act(other, random.integers(len(other.actions), size=random.integers(5, 100)))
        other.start(None, shows_first_screen=False)
        actions = random.integers(len(reset.actions), size=random.integers(20, 300))
        act(reset, actions)
        act(restored, actions)
        known = set(emulator._first_states)
        reset.start(None)
        restored.start(None, shows_first_screen=False)
        assert set(emulator._first_states) == known, "expected a restored state, got a reset"
        assert screens_and_states(reset, [0]) == screens_and_states(restored, [0])
        actions = random.integers(len(reset.actions), size=60)
        assert screens_and_states(reset, actions) == screens_and_states(restored, actions)


def check_restored_noops(game, num_games):
    """Compare games that begin with no-ops that another console played to games whose no-ops are all played."""
    options = read_options("envpool", {})
    reset, restored, other = consoles = [Emulator(game, options) for _ in range(3)]
    for console in consoles:
        console.start(7)
    random = np.random.default_rng(0)
    num_skipped = 0
    for _ in range(num_games):
        other.start(None, shows_first_screen=False)
        other.play_noops(random.integers(1, 31), num_shown=1)
        actions = random.integers(len(reset.actions), size=random.integers(20, 300))
        act(reset, actions)
        act(restored, actions)
        reset.start(None)
        restored.start(None, shows_first_screen=False)
        num_noops, num_shown = random.integers(1, 31), random.integers(1, 3)
        for _ in range(num_noops):
            reset.console.act(Action.NOOP)
        frame = restored.console.getFrameNumber()
        num_frames = count_frames(restored, num_noops, num_shown)
        assert restored.console.getFrameNumber() == frame + num_noops == reset.console.getFrameNumber()
        assert reset.console.getEpisodeFrameNumber() == restored.console.getEpisodeFrameNumber()
        num_skipped += num_noops - num_frames
        if num_shown == 2:
            assert np.array_equal(reset.console.getScreen(), restored.console.getScreen())
        actions = [0, *random.integers(len(reset.actions), size=60)]
        # Without the generator of sticky actions: each frame advances it, and nothing reads it where there are none.
        played = [screens_and_states(own, actions, with_generator=False) for own in (reset, restored)]
        assert played[0] == played[1]
    assert num_skipped > 0


def count_frames(emulator, num_noops, num_shown):
    """Play no-ops and return how many of their frames were emulated."""
    console, calls = emulator.console, []

    class Counting:
        def act(self, action):
            calls.append(action)
            return console.act(action)

        def __getattr__(self, name):
            return getattr(console, name)

    emulator.console = Counting()
    try:
        assert emulator.play_noops(num_noops, num_shown=num_shown) == num_noops
    finally:
        emulator.console = console
    return len(calls)


def act(console, actions):
    return [console.console.act(console.actions[action]) for action in actions]


def screens_and_states(console, actions, *, with_generator=True):
    ale = console.console
    clone = ale.cloneSystemState if with_generator else ale.cloneState
    return [(act(console, [action]), ale.getScreen().tobytes(), ale.lives(), clone().serialize()) for action in actions]


@pytest.mark.parametrize("game", ["pong", "breakout", "space_invaders"])
def test_games_that_begin_with_a_known_state(game):
    check_restored_starts(game, 5)
    check_restored_noops(game, 5)


@pytest.mark.soak
@pytest.mark.parametrize("game", sorted(CLEARED_BY_RESET))
def test_every_game_that_begins_with_a_known_state(game):
    check_restored_starts(game, 20)
    check_restored_noops(game, 20)


def test_noops_until_the_game_is_over():
    """A limit of 10 frames ends games during their no-ops, at the same frames whether these are played or skipped."""
    options = {"noop_max": 30, "use_fire_reset": False, "max_num_frames_per_episode": 10}
    envs = [AtariEnv("pong", **options) for _ in range(3)]
    unlimited = AtariEnv("pong", noop_max=30, use_fire_reset=False)
    for env in (*envs, unlimited):
        env.reset(seed=3)
    plain = AtariEnv("pong", **options)
    plain._emulator._is_restorable = False
    plain.reset(seed=3)
    for _ in range(20):
        unlimited.reset()
        expected, _ = plain.reset()
        for env in envs:
            obs, _ = env.reset()
            np.testing.assert_array_equal(obs, expected)
            assert env.ale.getEpisodeFrameNumber() == plain.ale.getEpisodeFrameNumber()
            assert env.ale.getFrameNumber() == plain.ale.getFrameNumber()


def test_resets_that_are_not_restored():
    """Sticky actions, a visible first screen, a game that keeps memory, an unknown format."""
    before = dict(emulator._first_states)
    for game, options in (
        ("pong", {"repeat_action_probability": 0.25}),
        ("pong", {"noop_max": 0, "use_fire_reset": False}),
        ("seaquest", {}),
    ):
        env = AtariEnv(game, **options)
        env.reset(seed=1)
        env.reset()
    assert emulator._first_states == before
    console = Emulator("pong", read_options("envpool", {}))
    console.start(1)
    state = console.console.cloneState().serialize()
    assert emulator._reset_key(state, 0) is not None
    assert emulator._reset_key(state.replace(b"System", b"Cosmos"), 0) is None
    assert emulator._reset_key(state[:50], 0) is None
