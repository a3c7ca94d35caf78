"""The ids of ViZDoom: EnvPool's and those of the vizdoom package, which need not be installed."""

from __future__ import annotations

from functools import cache
from typing import Any

from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

# EnvPool's name -> the scenario's cfg. The first four are in envpool-assets, not in vizdoom.
ENVPOOL_SCENARIOS = {
    "D1Basic": "D1_basic.cfg",
    "D2Navigation": "D2_navigation.cfg",
    "D3Battle": "D3_battle.cfg",
    "D4Battle2": "D4_battle2.cfg",
    "Basic": "basic.cfg",
    "BasicAudio": "basic_audio.cfg",
    "BasicNotifications": "basic_notifications.cfg",
    "Cig": "cig.cfg",
    "DeadlyCorridor": "deadly_corridor.cfg",
    "Deathmatch": "deathmatch.cfg",
    "DefendTheCenter": "defend_the_center.cfg",
    "DefendTheLine": "defend_the_line.cfg",
    "HealthGathering": "health_gathering.cfg",
    "HealthGatheringSupreme": "health_gathering_supreme.cfg",
    "MultiDuel": "multi_duel.cfg",
    "MyWayHome": "my_way_home.cfg",
    "PredictPosition": "predict_position.cfg",
    "RocketBasic": "rocket_basic.cfg",
    "SimplerBasic": "simpler_basic.cfg",
    "TakeCover": "take_cover.cfg",
    "VizdoomCustom": "",
}
_MAX_EPISODE_STEPS = 525

# The package's name -> the scenario's cfg. Each has a variant for any number of buttons at once.
_PACKAGE_SCENARIOS = {
    "Basic": "basic.cfg",
    "BasicAudio": "basic_audio.cfg",
    "BasicNotifications": "basic_notifications.cfg",
    "DeadlyCorridor": "deadly_corridor.cfg",
    "DefendCenter": "defend_the_center.cfg",
    "DefendLine": "defend_the_line.cfg",
    "HealthGathering": "health_gathering.cfg",
    "MyWayHome": "my_way_home.cfg",
    "PredictPosition": "predict_position.cfg",
    "TakeCover": "take_cover.cfg",
    "Deathmatch": "deathmatch.cfg",
    "HealthGatheringSupreme": "health_gathering_supreme.cfg",
}
_DOOM_MAPS = tuple(f"E{episode}M{number}" for episode in range(1, 5) for number in range(1, 10))
_DOOM2_MAPS = tuple(f"MAP{number:02}" for number in range(1, 33))
_CAMPAIGNS = {
    "Doom": ("doom.cfg", _DOOM_MAPS),
    "Doom2": ("doom2.cfg", _DOOM2_MAPS),
    "Freedoom1": ("freedoom1.cfg", _DOOM_MAPS),
    "Freedoom2": ("freedoom2.cfg", _DOOM2_MAPS),
}


@cache
def envpool_ids() -> dict[str, dict[str, Any]]:
    """Return EnvPool's ids, and the arguments of DoomEnv for each."""
    return {f"{name}-v1": {"scenario": cfg} for name, cfg in ENVPOOL_SCENARIOS.items()}


@cache
def package_ids() -> dict[str, dict[str, Any]]:
    """Return the package's ids, and the arguments of ScenarioEnv for each."""
    found: dict[str, dict[str, Any]] = {}
    for name, cfg in _PACKAGE_SCENARIOS.items():
        found[f"Vizdoom{name}-v1"] = {"scenario_config_file": cfg, "max_buttons_pressed": 1}
        found[f"Vizdoom{name}-MultiBinary-v1"] = {"scenario_config_file": cfg, "max_buttons_pressed": 0}
    for game, (cfg, maps) in _CAMPAIGNS.items():
        for name in maps:
            for skill in range(1, 6):
                found[f"Vizdoom{game}{name}-S{skill}-v0"] = {
                    "scenario_config_file": cfg,
                    "max_buttons_pressed": 0,
                    "doom_map": name,
                    "doom_skill": skill,
                }
    return found


@cache
def all_ids() -> frozenset[str]:
    """Return every id."""
    return frozenset(envpool_ids()) | frozenset(package_ids())


def spec_of(env_id: str) -> GymnasiumSpec:
    """Return the Gymnasium spec of an id."""
    if env_id in package_ids():
        return GymnasiumSpec(
            env_id, entry_point="envfleet.families.vizdoom.scenario_env:ScenarioEnv", kwargs=dict(package_ids()[env_id])
        )
    return GymnasiumSpec(
        env_id,
        entry_point="envfleet.families.vizdoom.env:DoomEnv",
        max_episode_steps=_MAX_EPISODE_STEPS,
        kwargs=dict(envpool_ids()[env_id]),
    )
