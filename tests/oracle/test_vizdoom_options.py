"""ViZDoom: options, rewards, actions, scenarios of one's own; wrong options and damaged files."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import envfleet
from envfleet.core.errors import ConfigError, StateError
from envfleet.families.vizdoom.actions import combined_actions
from envfleet.families.vizdoom.ids import all_ids, envpool_ids
from envfleet.families.vizdoom.rewards import REWARD_CONFIG, Score

vizdoom = pytest.importorskip("vizdoom")


def test_combined_actions() -> None:
    # EnvPool's example: MOVE_FORWARD and a pair of turns make 2 x 3.
    actions = combined_actions(["TURN_LEFT", "TURN_RIGHT", "MOVE_FORWARD"], False, {})
    assert actions == [[0, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 1, 1], [1, 0, 1]]
    weapons = combined_actions(["SELECT_WEAPON2", "SELECT_WEAPON1", "ATTACK"], False, {})
    assert weapons == [[0, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 1, 1], [1, 0, 1]]
    delta = combined_actions(["SPEED", "TURN_LEFT_RIGHT_DELTA"], True, {"TURN_LEFT_RIGHT_DELTA": (4, -2.0, 1.0)})
    assert delta == [[1, -2], [1, -1], [1, 0], [1, 1]]
    with pytest.raises(ConfigError, match="delta_button_config"):
        combined_actions(["ATTACK"], False, {"TURN_LEFT_RIGHT_DELTA": (4, -2.0, 1.0)})


def test_rewards() -> None:
    score = Score(
        ["HEALTH", "KILLCOUNT", "HITCOUNT", "SELECTED_WEAPON", "SELECTED_WEAPON_AMMO"], REWARD_CONFIG, {2: 0.5}, 2
    )
    score.begin([100, 0, 7, 2, 50])  # HITCOUNT goes on from the episode before
    assert score.values["HITCOUNT"] == 0
    assert score.step([90, 1, 7, 2, 50]) == pytest.approx(1 - 10 * 0.003)
    assert score.step([95, 1, 8, 2, 50]) == pytest.approx(5 * 0.005 + 0.01 + 0.5)
    assert score.step([-999900, 1, 30, 2, 0]) == pytest.approx(5 * 0.01)  # dead, and more hits than count
    assert score.values["HEALTH"] == 95


def test_options() -> None:
    with envfleet.make(
        "Deathmatch-v1",
        num_envs=2,
        img_height=60,
        img_width=80,
        stack_num=3,
        frame_skip=2,
        gray_scale=True,
        screen_resolution="RES_160X120",
        labels=True,
        game_variables=["POSITION_X"],
        render_mode="rgb_array",
    ) as envs:
        assert envs.spec.backend == "threads"
        space = envs.single_observation_space
        assert {name: box.shape for name, box in space.items()} == {"screen": (3, 60, 80), "labels": (3, 60, 80)}
        action = envs.single_action_space
        assert action.shape == (20,)
        assert [*action.high[:17], *action.low[17:]] == [1.0] * 17 + [-np.inf] * 3  # delta buttons come last here
        obs, info = envs.reset(seed=1)
        assert set(np.unique(obs["labels"])) >= {0}
        assert len(np.unique(info["POSITION_X"])) == 2  # another seed, another place
        envs.step(np.zeros((2, 20)))
        assert [picture.shape for picture in envs.render()] == [(120, 160, 3)] * 2
        with pytest.raises(StateError, match="cannot be saved"):
            envs.pool.get_state()


def test_own_reward_and_recording(tmp_path: Path) -> None:
    with envfleet.make("Basic-v1", reward_config=None, lmp_save_dir=str(tmp_path / "lmp")) as envs:
        envs.reset(seed=1)
        _, reward, *_ = envs.step(np.zeros((1, 3)))
        assert reward[0] == -4  # the scenario's living_reward, for each of four tics
    assert [path.suffix for path in (tmp_path / "lmp").iterdir()] == [".lmp"]


def test_life_by_life() -> None:
    # Alone in a deathmatch, whoever is dead comes back: the game goes on.
    game_args = "-host 1 -deathmatch +sv_forcerespawn 1 +viz_respawn_delay 1"
    kwargs = {"game_args": game_args, "episodic_life": True, "game_variables": ["DEAD"]}
    with envfleet.make("Cig-v1", autoreset_mode="disabled", **kwargs) as envs:
        envs.reset(seed=1)
        idle = np.zeros((1, *envs.single_action_space.shape))
        for _ in range(3):
            envs.step(idle)
        envs.pool.get_attr("game")[0].doom.send_game_command("kill")
        for _ in range(20):
            *_, terminated, _, info = envs.step(idle)
            if terminated[0]:
                break
        assert terminated[0]
        assert info["DEAD"][0] == 1
        _, info = envs.reset()
        assert info["elapsed_step"][0] == 0
        deaths = envs.pool.call("game")[0].doom.get_game_variable(vizdoom.GameVariable.DEATHCOUNT)
        assert deaths == 1  # the same game


def test_own_scenario(tmp_path: Path) -> None:
    folder = Path(vizdoom.scenarios_path)
    cfg, wad = tmp_path / "mine.cfg", tmp_path / "mine.wad"
    cfg.write_text((folder / "basic.cfg").read_text().replace("basic.wad", "mine.wad"))
    wad.write_bytes((folder / "basic.wad").read_bytes())
    with envfleet.make("VizdoomCustom-v1", cfg_path=str(cfg), wad_path=str(wad), gray_scale=True) as envs:
        obs, _ = envs.reset(seed=2)
    with envfleet.make("Basic-v1", gray_scale=True) as envs:
        assert np.array_equal(obs, envs.reset(seed=2)[0])


# Those whose WADs are in the package: D1 to D4 want Doom's own.
@pytest.mark.parametrize("env_id", sorted(own for own in envpool_ids() if not re.match(r"D\d", own)))
def test_every_scenario_has_spaces(env_id: str) -> None:
    if env_id == "VizdoomCustom-v1":
        with pytest.raises(ConfigError, match="cfg_path"):
            envfleet.make_spec(env_id)
        return
    spec = envfleet.make_spec(env_id)
    assert spec.observation_space.shape[1:] == (84, 84)


# --- engines that end while they start: in a process of its own, for ViZDoom takes its caller with it ----------


PLAY = """
import sys, warnings
import numpy as np
import envfleet

env_id, options = sys.argv[1], eval(sys.argv[2])
try:
    with envfleet.make(env_id, num_envs=2, **options) as envs:
        envs.reset(seed=3)
        for _ in range(3):
            envs.step([envs.single_action_space.sample() for _ in range(2)])
        print("played")
except envfleet.ConfigError as error:
    print("refused:", error)
"""


def play(env_id: str, **options: Any) -> str:
    """What became of a short game."""
    command = [sys.executable, "-c", PLAY, env_id, repr(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, f"{env_id} ended with {done.returncode}: {done.stderr}"
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("env_id", "options"),
    [
        ("Cig-v1", {"backend": "threads"}),
        ("MultiDuel-v1", {"backend": "serial", "game_args": "+name somebody"}),
        ("VizdoomBasic-v1", {"scenario_config_file": "cig.cfg", "use_multi_binary_action_space": False}),
    ],
)
def test_a_deathmatch_of_the_package_can_be_played_alone(env_id: str, options: dict[str, Any]) -> None:
    assert play(env_id, **options) == "played"


@pytest.mark.parametrize(
    "options",
    [{"mode": "ASYNC_PLAYER", "ticrate": 0}, {"audio_buffer_enabled": True, "audio_buffer_size": 0}],
)
def test_settings_that_end_the_engine_are_refused(options: dict[str, Any]) -> None:
    assert re.match(
        "refused: .*cannot play.*it crashed while it started.*settings do not fit", play("VizdoomBasic-v1", **options)
    )


def test_a_map_without_a_place_for_one_player_is_refused(tmp_path: Path) -> None:
    for name in ("cig.cfg", "cig.wad"):
        shutil.copy(Path(vizdoom.scenarios_path, name), tmp_path)
    own = {"cfg_path": str(tmp_path / "cig.cfg")}
    assert re.match(
        "refused: .*it crashed while it started.*game_args='-host 1 -deathmatch'", play("VizdoomCustom-v1", **own)
    )
    assert play("VizdoomCustom-v1", game_args="-host 1 -deathmatch", **own) == "played"


@pytest.mark.soak
@pytest.mark.parametrize("env_id", sorted(own for own in all_ids() if "-S" not in own or "-S3-" in own))
def test_every_id_is_played_or_refused(env_id: str) -> None:
    assert play(env_id).startswith(("played", "refused: "))


# --- what is wrong ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"map_id": "map77"}, "MAP01"),
        ({"screen_resolution": "RES_160x120"}, "RES_160X120"),
        ({"game_variables": ["HELTH"]}, "HEALTH"),
        ({"reward_config": {"HELTH": (1, 1)}}, "HEALTH"),
        ({"stack_num": 0}, "stack_num"),
        ({"cfg_path": "/nowhere/my.cfg"}, "/nowhere/my.cfg"),
        ({"wad_path": "/nowhere/my.wad"}, "/nowhere/my.wad"),
        ({"iwad_path": "/nowhere/doom.wad"}, "/nowhere/doom.wad"),
        ({"nonsense": 1}, "nonsense"),
        ({"img_height": 65_536}, "img_height expected an integer from 1 to 4096"),
        ({"gray_scale": "no"}, "gray_scale expected True or False, got 'no'"),
        ({"use_combined_action": "x"}, "use_combined_action expected True or False"),
        ({"map_id": 3}, "map_id expected a string, got 3"),
        ({"cfg_path": 5}, "cfg_path expected a string, got 5"),
        ({"weapon_duration": "x"}, "weapon_duration expected an integer"),
        ({"game_variables": "HEALTH"}, "game_variables expected a list of names, got 'HEALTH'"),
        ({"delta_button_config": 5}, "delta_button_config expected a dict, got 5"),
        ({"reward_config": {"HEALTH": (1,)}}, r"reward_config expected \(rise, fall\) for HEALTH"),
    ],
)
def test_wrong_options(options: dict[str, Any], said: str) -> None:
    for backend in ("serial", "threads", "processes"):
        with pytest.raises(ConfigError, match=said):
            envfleet.make("Basic-v1", backend=backend, **options)


def test_scenarios_of_envpool_alone() -> None:
    try:
        envs = envfleet.make("D1Basic-v1")
    except ConfigError as error:
        assert "D1_basic.cfg" in str(error)  # noqa: PT017 (either may be: envpool_assets may be installed)
        assert "envpool-assets" in str(error)  # noqa: PT017
    else:
        envs.close()


def damaged(kind: str, folder: Path) -> Path:
    whole = (Path(vizdoom.scenarios_path) / "basic.wad").read_bytes()
    path = folder / "mine.wad"
    noise = np.random.default_rng(0).bytes(1488)
    path.write_bytes(
        {
            "noise": noise,
            "empty": b"",
            "cut": whole[:1500],
            "cut late": whole[:-100],
            "noise inside": whole[:12] + noise + whole[1500:],
        }[kind]
    )
    return path


@pytest.mark.parametrize("kind", ["noise", "empty", "cut", "cut late", "noise inside"])
def test_damaged_wad(kind: str, tmp_path: Path) -> None:
    path = damaged(kind, tmp_path)
    before = set(Path("/dev/shm").glob("ViZDoom*"))
    with pytest.raises(ConfigError, match=str(path)):
        envfleet.make("Basic-v1", num_envs=2, wad_path=str(path))
    assert set(Path("/dev/shm").glob("ViZDoom*")) <= before


@pytest.mark.parametrize("text", [b"hello = {\n foo bar", np.random.default_rng(0).bytes(500)])
def test_damaged_cfg(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "mine.cfg"
    path.write_bytes(text)
    with pytest.raises(ConfigError, match=str(path)):
        envfleet.make("VizdoomCustom-v1", cfg_path=str(path))


def test_another_engine_is_tried_out_too() -> None:
    # What was found of these files with the package's engine says nothing of this one, which ends at once.
    envfleet.make("Basic-v1", game_args="+viz_nocheat 0").close()
    with pytest.raises(ConfigError, match="cannot play"):
        envfleet.make("Basic-v1", game_args="+viz_nocheat 0", vzd_path="/bin/true")
