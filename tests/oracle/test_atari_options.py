"""Atari envs: names, options, shapes, ROMs, what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from atari_rollouts import make, play

import envfleet
from envfleet.families.atari.games import GAMES, ids

ale_py = pytest.importorskip("ale_py")
ROMS = Path(ale_py.__file__).parent / "roms"


def test_every_game_of_the_wheel_has_its_three_names():
    two_players = {"combat", "joust", "maze_craze", "warlords"}
    assert set(GAMES) == {path.stem for path in ROMS.glob("*.bin")} - two_players
    theirs = {env_id for env_id in gymnasium.registry if env_id.startswith("ALE/")}
    assert theirs == {env_id for env_id in ids() if env_id.startswith("ALE/")}
    theirs = {env_id for env_id in gymnasium.registry if env_id.endswith("NoFrameskip-v4")}
    assert {env_id for env_id in theirs if not env_id.startswith("envfleet/")} <= ids()
    assert {"Pong-v5", "MsPacman-v5", "TicTacToe3d-v5", "ALE/TicTacToe3D-v5", "PongNoFrameskip-v4"} <= ids()
    assert len(ids()) == 3 * len(GAMES)
    assert ids() <= set(envfleet.list_all_envs())


def test_defaults_of_each_name():
    specs = {env_id: envfleet.make_spec(env_id) for env_id in ("Pong-v5", "ALE/Pong-v5", "PongNoFrameskip-v4")}
    assert [spec.observation_space.shape for spec in specs.values()] == [(4, 84, 84), (210, 160, 3), (210, 160, 3)]
    assert [spec.max_episode_steps for spec in specs.values()] == [27_000, None, None]
    assert {spec.action_space.n for spec in specs.values()} == {6}
    assert make("ALE/Pong-v5").get_attr("options")[0]["repeat_action_probability"] == 0.25
    assert make("PongNoFrameskip-v4").get_attr("options")[0]["frame_skip"] == 1


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({"obs_type": "ram"}, (128,)),
        ({"gray_scale": False, "stack_num": 2}, (6, 84, 84)),
        ({"stack_num": None}, (84, 84)),
        ({"stack_num": None, "gray_scale": False, "img_height": 50, "img_width": 40}, (50, 40, 3)),
        ({"stack_num": 1, "img_height": 96, "img_width": 60, "use_inter_area_resize": False}, (1, 96, 60)),
        ({"img_height": None, "img_width": None}, (4, 210, 160)),
    ],
)
def test_shapes(options, shape):
    with make("Pong-v5", num_envs=2, **options) as envs:
        obs, _ = envs.reset(seed=0)
        assert envs.single_observation_space.shape == shape
        assert obs.shape == (2, *shape)
        assert obs.any()
        assert envs.step(np.array([2, 3]))[0].shape == (2, *shape)


def test_colours_last_without_a_stack_are_the_planes_of_a_stack_of_one():
    options = {"gray_scale": False, "seed": 0}
    with make("Seaquest-v5", stack_num=None, **options) as flat, make("Seaquest-v5", stack_num=1, **options) as planes:
        np.testing.assert_array_equal(np.moveaxis(flat.reset()[0][0], -1, 0), planes.reset()[0][0])
        one, other = play(flat, 10), play(planes, 10)
        np.testing.assert_array_equal(np.moveaxis(one[0][:, 0], -1, 1), other[0][:, 0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stack_num": 0}, "stack_num expected an integer from 1 to .*, got 0"),
        ({"img_height": -1}, "img_height expected an integer from 1"),
        ({"img_width": 2.5}, "img_width expected an integer"),
        ({"frame_skip": 0}, "frame_skip expected an integer"),
        ({"frame_skip": (5, 2)}, "low below high"),
        ({"noop_max": -3}, "noop_max expected an integer from 0"),
        ({"repeat_action_probability": 1.5}, "expected a number from 0 to 1, got 1.5"),
        ({"episodic_life": "yes"}, "episodic_life expected True or False, got 'yes'"),
        ({"reward_clip": 1}, "reward_clip expected True or False, got 1"),
        ({"obs_type": "colour"}, "obs_type expected one of screen, rgb, grayscale, ram, got 'colour'"),
        ({"obs_type": np.array(["rgb", "ram"])}, "obs_type expected one of"),
        ({"obs_type": "rgb", "gray_scale": True}, "contradicts"),
        ({"mode": 77}, r"mode of breakout expected one of \[0, 4, .*got 77"),
        ({"difficulty": 3}, r"difficulty of breakout expected one of \[0, 1\], .*got 3"),
        ({"stak_num": 4}, "unknown option 'stak_num'; did you mean 'stack_num'"),
        ({"num_env": 4}, "unknown option 'num_env'; did you mean 'num_envs'"),
        ({"frame_skip": 4, "frameskip": 4}, "got it twice"),
    ],
)
def test_bad_options_are_refused_before_anything_starts(options, message):
    with pytest.raises(envfleet.ConfigError, match=message):
        envfleet.make("Breakout-v5", **{"num_envs": 2, **options})


def test_bad_options_of_one_env_among_many():
    with pytest.raises(envfleet.ConfigError, match="stack_num"):
        envfleet.make("Breakout-v5", num_envs=2, env_kwargs=[{}, {"stack_num": 0}])


def test_the_config_shows_every_option_with_its_default():
    config = envfleet.make_spec("Pong-v5", num_envs=2, frameskip=3).config
    assert (config["stack_num"], config["img_height"], config["noop_max"], config["mode"]) == (4, 84, 30, -1)
    assert config["frame_skip"] == 3
    assert config["repeat_action_probability"] == 0
    assert envfleet.make_spec("ALE/Pong-v5").config["repeat_action_probability"] == 0.25
    with make("Pong-v5", num_envs=2, reward_clip=np.True_) as envs:
        assert (envs.config["reward_clip"], envs.config["episodic_life"]) == (True, False)


def test_a_wrong_name_gives_the_nearest():
    with pytest.raises(envfleet.UnknownEnvError, match="Breakout-v5"):
        envfleet.make("Brekout-v5")
    with pytest.raises(envfleet.UnknownEnvError, match="ALE/Seaquest-v5"):
        envfleet.make("ALE/Seequest-v5")


def test_a_rom_that_is_absent_or_corrupt_is_an_exception_with_its_path(tmp_path, monkeypatch):
    monkeypatch.setenv("ALE_ROMS_DIR", str(tmp_path))
    path = tmp_path / "pong.bin"
    with pytest.raises(envfleet.ConfigError, match=f"{path}, which cannot be read"):
        envfleet.make("Pong-v5", num_envs=2)
    shutil.copy(ROMS / "pong.bin", path)
    make("Pong-v5").close()
    damaged = bytearray(path.read_bytes())
    damaged[100] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(envfleet.ConfigError, match=f"{path} with the md5 .* corrupt"):
        envfleet.make("Pong-v5", num_envs=2)
    path.unlink()
    path.mkdir()
    with pytest.raises(envfleet.ConfigError, match=f"{path} cannot be read"):
        envfleet.make("Pong-v5", num_envs=2)
