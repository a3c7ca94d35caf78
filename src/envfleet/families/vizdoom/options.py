"""DoomOptions: EnvPool's options of ViZDoom and envfleet's additions; and the game that they describe."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from envfleet.core.errors import ConfigError
from envfleet.core.option_checks import flag_option, integer_option
from envfleet.families.vizdoom.files import (
    GameFiles,
    check_cfg,
    check_wads,
    existing_file,
    new_doom,
    package_folder,
    scenarios_folder,
)
from envfleet.families.vizdoom.game import Game
from envfleet.families.vizdoom.preflight import check_starts
from envfleet.families.vizdoom.rewards import REWARD_CONFIG, WEAPON_REWARDS

_MAX_SIZE = 4096  # of an image's side, as in envs/atari
_MAX_FRAMES = 10_000  # to stack or to skip

DEATHMATCH_RULES = (
    "-deathmatch +sv_forcerespawn 1 +sv_noautoaim 1 +sv_respawnprotect 1 +sv_spawnfarthest 1 +sv_nocrouch 1 "
    "+viz_respawn_delay 1"
)
# Scenarios of the package whose maps have no start for a single player: the engine would exit at once.
_DEATHMATCH_ONLY = ("cig.cfg", "multi_duel.cfg")

# The game variables in EnvPool's infos.
INFO_VARIABLES = (
    *(f"AMMO{k}" for k in range(2, 8)),
    *("ARMOR", "DAMAGECOUNT", "DEATHCOUNT", "FRAGCOUNT", "HEALTH", "HITCOUNT", "KILLCOUNT"),
    *("SELECTED_WEAPON", "SELECTED_WEAPON_AMMO", "USER2"),
)


@dataclass(frozen=True)
class DoomOptions:
    """The options of an env. The defaults are EnvPool's; None means the setting of the scenario's cfg."""

    cfg_path: str
    wad_path: str = ""
    iwad_path: str = ""  # default: the package's freedoom2
    vzd_path: str = ""  # the engine; default: the package's
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
    game_variables: Sequence[str] = ()  # additional ones for the infos
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
            raise ConfigError("VizdoomCustom-v1 expected cfg_path, the path of your scenario's cfg, got none")

    @property
    def variables(self) -> tuple[str, ...]:
        """The game variables in the infos."""
        return (*INFO_VARIABLES, *(name for name in self.game_variables if name not in INFO_VARIABLES))


def options_as_dict(options: DoomOptions) -> dict[str, Any]:
    """Return every option and its value."""
    return {own.name: getattr(options, own.name) for own in fields(options)}


def make_game(options: DoomOptions, game_args: str = "") -> Game:
    """Return a game that is configured but not started. game_args: in addition to those of the options."""
    import vizdoom

    doom = new_doom()
    cfg = load_cfg(doom, options.cfg_path)
    if options.wad_path:
        doom.set_doom_scenario_path(existing_file(options.wad_path, "wad_path"))
    if options.iwad_path:
        doom.set_doom_game_path(existing_file(options.iwad_path, "iwad_path"))
    if options.map_id is not None:
        doom.set_doom_map(options.map_id)
    doom.add_game_args(options.game_args)
    # As below: the preflight check must use the settings of the game.
    settings = {"mode": "PLAYER", "sound_enabled": False, "audio_buffer_enabled": False}
    settings |= {"screen_resolution": "RES_160X120"}  # fast, and irrelevant for the check
    files = check_files(doom, cfg, settings, options.vzd_path, is_custom=bool(options.game_args))
    doom.set_window_visible(False)
    doom.set_sound_enabled(False)
    doom.set_audio_buffer_enabled(False)
    doom.set_notifications_buffer_enabled(False)
    doom.set_mode(vizdoom.Mode.PLAYER)
    # The pool counts the steps, so that it can tell a time limit from an end.
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
    """Return the arguments that let a single player into a deathmatch of the package; else nothing."""
    is_hosted = "-host" in game_args or "-join" in game_args
    needs_host = os.path.basename(cfg) in _DEATHMATCH_ONLY and os.path.dirname(cfg) == str(scenarios_folder())
    return f"-host 1 {DEATHMATCH_RULES}" if needs_host and not is_hosted else ""


def load_cfg(doom: Any, path: str) -> str:
    """Load a cfg into a DoomGame and return its absolute path."""
    cfg = check_cfg(path)
    if not doom.load_config(cfg):
        raise ConfigError(
            f"cfg_path expected settings of ViZDoom, got {cfg} with invalid lines, which ViZDoom has printed on "
            "standard error"
        )
    return cfg


def check_files(
    doom: Any, cfg: str, settings: Mapping[str, Any], engine: str = "", *, is_custom: bool = False
) -> GameFiles:
    """Check the files of a DoomGame and return them; run a preflight check unless all are the package's own.

    settings: those of the game in addition to the cfg's. is_custom: whether the user has changed them.
    """
    package = package_folder()
    wad = doom.get_doom_scenario_path()
    iwad = doom.get_doom_game_path()
    if iwad and not os.path.isfile(iwad) and (package / os.path.basename(iwad)).is_file():
        iwad = str(package / os.path.basename(iwad))  # some cfgs, such as freedoom1.cfg, name it without its folder
    if not iwad:
        iwad = str(package / "freedoom2.wad")
    doom.set_doom_game_path(existing_file(iwad, "iwad_path"))
    files = GameFiles(
        cfg,
        existing_file(wad, "wad_path") if wad else "",
        os.path.abspath(iwad),
        existing_file(engine, "vzd_path") if engine else str(package / "vizdoom"),
    )
    if files.wad:
        doom.set_doom_scenario_path(files.wad)
    check_wads(files.wad, files.iwad, doom.get_doom_map())
    folders = (str(package), str(scenarios_folder()))
    custom_files = [
        path for path in (files.cfg, files.wad, files.iwad) if path and os.path.dirname(path) not in folders
    ]
    if custom_files or engine or is_custom:
        paths = {"doom_scenario_path": files.wad, "doom_game_path": files.iwad, "doom_map": doom.get_doom_map()}
        game_args = doom.get_game_args()
        check_starts(
            files,
            {**settings, **{key: value for key, value in paths.items() if value}},
            f"{game_args} {hosting_args(cfg, game_args)}",
        )
    return files


def member(enum: Any, name: Any, option: str) -> Any:
    """Return a member of one of ViZDoom's enums by its name, or raise ConfigError."""
    members = enum.__members__
    if name not in members:
        nearest = difflib.get_close_matches(str(name).upper(), members, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(nearest)}?" if nearest else f"see vizdoom.{enum.__name__}"
        raise ConfigError(f"{option} expected a member of vizdoom.{enum.__name__}, got {name!r}; {hint}")
    return members[name]
