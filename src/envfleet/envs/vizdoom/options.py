"""DoomOptions: what EnvPool's ViZDoom takes, and what envfleet adds; and a game made from them."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from envfleet.envs.vizdoom.files import (
    GameFiles,
    check_cfg,
    check_wads,
    existing,
    new_doom,
    package_folder,
    scenarios_folder,
)
from envfleet.envs.vizdoom.game import Game
from envfleet.envs.vizdoom.preflight import check_starts
from envfleet.envs.vizdoom.rewards import REWARD_CONFIG, WEAPON_REWARDS
from envfleet.errors import ConfigError
from envfleet.making.options import flag_option, integer_option

_MAX_SIZE = 4096  # of a picture's side, as Atari has it
_MAX_FRAMES = 10_000  # to stack or to skip

DEATHMATCH_RULES = (
    "-deathmatch +sv_forcerespawn 1 +sv_noautoaim 1 +sv_respawnprotect 1 +sv_spawnfarthest 1 +sv_nocrouch 1 "
    "+viz_respawn_delay 1"
)
# Scenarios of the package whose maps have no place where a single player could start: the engine ends at once.
_DEATHMATCH_ONLY = ("cig.cfg", "multi_duel.cfg")

# What EnvPool has in its infos.
INFO_VARIABLES = (
    *(f"AMMO{k}" for k in range(2, 8)),
    *("ARMOR", "DAMAGECOUNT", "DEATHCOUNT", "FRAGCOUNT", "HEALTH", "HITCOUNT", "KILLCOUNT"),
    *("SELECTED_WEAPON", "SELECTED_WEAPON_AMMO", "USER2"),
)


@dataclass(frozen=True)
class DoomOptions:
    """The defaults are EnvPool's; a None leaves it to the scenario's cfg."""

    cfg_path: str
    wad_path: str = ""
    iwad_path: str = ""  # freedoom2 of the package
    vzd_path: str = ""  # the engine; that of the package
    map_id: str | None = None
    game_args: str = ""
    img_height: int = 84
    img_width: int = 84
    stack_num: int = 4
    frame_skip: int = 4
    use_inter_area_resize: bool = True  # False: bilinear
    gray_scale: bool | None = None
    screen_resolution: str | None = None  # of the engine, such as "RES_160X120"
    depth: bool = False
    labels: bool = False
    automap: bool = False
    game_variables: Sequence[str] = ()  # in the infos, besides EnvPool's
    episodic_life: bool = False
    use_combined_action: bool = False
    force_speed: bool = False
    delta_button_config: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    reward_config: Mapping[str, Sequence[float]] | None = field(default_factory=lambda: REWARD_CONFIG)
    selected_weapon_reward_config: Mapping[int, float] = field(default_factory=lambda: WEAPON_REWARDS)
    weapon_duration: int = 5
    lmp_save_dir: str = ""

    def __post_init__(self) -> None:
        for name in ("img_height", "img_width"):
            integer_option(name, getattr(self, name), 1, _MAX_SIZE)
        for name in ("stack_num", "frame_skip"):
            integer_option(name, getattr(self, name), 1, _MAX_FRAMES)
        integer_option("weapon_duration", self.weapon_duration, 0, 2**31 - 1)
        for own in fields(self):
            value = getattr(self, own.name)
            if own.type == "bool" or (own.type == "bool | None" and value is not None):
                object.__setattr__(self, own.name, flag_option(own.name, value))
            elif own.type.startswith("str") and not (isinstance(value, (str, os.PathLike)) or value is own.default):
                raise ConfigError(f"{own.name} expected a string, got {value!r}")
            elif own.type.startswith("Mapping") and not (isinstance(value, Mapping) or value is None):
                raise ConfigError(f"{own.name} expected a dict, got {value!r}")
        if isinstance(self.game_variables, str) or not isinstance(self.game_variables, Sequence):
            raise ConfigError(f"game_variables expected a list of names, got {self.game_variables!r}")
        for name, changes in (self.reward_config or {}).items():
            if np.shape(changes) != (2,):
                raise ConfigError(f"reward_config expected (rise, fall) for {name}, got {changes!r}")
        if not self.cfg_path:
            raise ConfigError("VizdoomCustom-v1 expected cfg_path, the file that describes your scenario, got none")

    @property
    def variables(self) -> tuple[str, ...]:
        """The game variables in the infos."""
        return (*INFO_VARIABLES, *(name for name in self.game_variables if name not in INFO_VARIABLES))


def make_game(options: DoomOptions, game_args: str = "") -> Game:
    """A game that is configured and not started. game_args: besides those of the options."""
    import vizdoom

    doom = new_doom()
    cfg = load_cfg(doom, options.cfg_path)
    if options.wad_path:
        doom.set_doom_scenario_path(existing(options.wad_path, "wad_path"))
    if options.iwad_path:
        doom.set_doom_game_path(existing(options.iwad_path, "iwad_path"))
    if options.map_id is not None:
        doom.set_doom_map(options.map_id)
    doom.add_game_args(options.game_args)
    # As below: what is tried out must be what is played.
    settings = {"mode": "PLAYER", "sound_enabled": False, "audio_buffer_enabled": False}
    settings |= {"screen_resolution": "RES_160X120"}  # it says nothing about the files, and is quick
    files = check_files(doom, cfg, settings, options.vzd_path, is_own=bool(options.game_args))
    doom.set_window_visible(False)
    doom.set_sound_enabled(False)
    doom.set_audio_buffer_enabled(False)
    doom.set_notifications_buffer_enabled(False)
    doom.set_mode(vizdoom.Mode.PLAYER)
    # Steps are counted by the pool, which tells an end from a time limit.
    doom.set_episode_timeout(0)
    if options.gray_scale is not None:
        doom.set_screen_format(vizdoom.ScreenFormat.GRAY8 if options.gray_scale else vizdoom.ScreenFormat.CRCGCB)
    elif doom.get_screen_format() not in (vizdoom.ScreenFormat.GRAY8, vizdoom.ScreenFormat.CRCGCB):
        doom.set_screen_format(vizdoom.ScreenFormat.CRCGCB)
    if options.screen_resolution is not None:
        doom.set_screen_resolution(member(vizdoom.ScreenResolution, options.screen_resolution, "screen_resolution"))
    doom.set_depth_buffer_enabled(options.depth)
    doom.set_labels_buffer_enabled(options.labels)
    doom.set_automap_buffer_enabled(options.automap)
    for name in options.reward_config or ():
        member(vizdoom.GameVariable, name, "reward_config")
    for name in options.variables:
        doom.add_available_game_variable(member(vizdoom.GameVariable, name, "game_variables"))
    doom.add_game_args(game_args or hosting_args(cfg, doom.get_game_args()))
    return Game(doom, files.engine)


def hosting_args(cfg: str, game_args: str) -> str:
    """What lets a single player into a deathmatch of the package; empty for other games, or if game_args host one."""
    is_hosted = "-host" in game_args or "-join" in game_args
    needs_host = os.path.basename(cfg) in _DEATHMATCH_ONLY and os.path.dirname(cfg) == str(scenarios_folder())
    return f"-host 1 {DEATHMATCH_RULES}" if needs_host and not is_hosted else ""


def load_cfg(doom: Any, path: str) -> str:
    """Has a DoomGame read a cfg; the path of it."""
    cfg = check_cfg(path)
    if not doom.load_config(cfg):
        raise ConfigError(
            f"cfg_path expected settings of ViZDoom, got {cfg} with lines that it does not take; "
            "it has named them on standard error"
        )
    return cfg


def check_files(
    doom: Any, cfg: str, settings: Mapping[str, Any], engine: str = "", *, is_own: bool = False
) -> GameFiles:
    """The files that this DoomGame is set to, checked; what is not the package's own is tried out.

    settings: those that the game is started with, besides the cfg's. is_own: whether they are the user's.
    """
    package = package_folder()
    wad = doom.get_doom_scenario_path()
    iwad = doom.get_doom_game_path()
    if iwad and not os.path.isfile(iwad) and (package / os.path.basename(iwad)).is_file():
        iwad = str(package / os.path.basename(iwad))  # freedoom1.cfg and its like name it without its folder
    if not iwad:
        iwad = str(package / "freedoom2.wad")
    doom.set_doom_game_path(existing(iwad, "iwad_path"))
    files = GameFiles(
        cfg,
        existing(wad, "wad_path") if wad else "",
        os.path.abspath(iwad),
        existing(engine, "vzd_path") if engine else str(package / "vizdoom"),
    )
    if files.wad:
        doom.set_doom_scenario_path(files.wad)
    check_wads(files.wad, files.iwad, doom.get_doom_map())
    folders = (str(package), str(scenarios_folder()))
    own_files = [path for path in (files.cfg, files.wad, files.iwad) if path and os.path.dirname(path) not in folders]
    if own_files or engine or is_own:
        paths = {"doom_scenario_path": files.wad, "doom_game_path": files.iwad, "doom_map": doom.get_doom_map()}
        game_args = doom.get_game_args()
        check_starts(
            files,
            {**settings, **{key: value for key, value in paths.items() if value}},
            f"{game_args} {hosting_args(cfg, game_args)}",
        )
    return files


def member(enum: Any, name: Any, option: str) -> Any:
    """A member of one of ViZDoom's enums by its name."""
    members = enum.__members__
    if name not in members:
        nearest = difflib.get_close_matches(str(name).upper(), members, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(nearest)}?" if nearest else f"see vizdoom.{enum.__name__}"
        raise ConfigError(f"{option} expected a name of vizdoom.{enum.__name__}, got {name!r}; {hint}")
    return members[name]
