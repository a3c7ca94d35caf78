"""Atari 2600 games, on ale-py: a family of Python envs that worker processes run.

games.py names them, options.py has each name's defaults, roms.py finds and checks what they need, emulator.py
drives one console, screens.py turns its pictures into observations, env.py is the env.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from envfleet.envs.atari.games import ids, naming_of
from envfleet.envs.simulators import Simulator

MAX_EPISODE_STEPS = 27_000  # EnvPool's: half an hour of play at a frame skip of 4


def _spec_of(env_id: str) -> GymnasiumSpec:
    naming = naming_of(env_id)
    return GymnasiumSpec(
        id=env_id,
        entry_point="envfleet.envs.atari.env:AtariEnv",
        max_episode_steps=MAX_EPISODE_STEPS if naming.style == "envpool" else None,
        kwargs={"game": naming.game, "style": naming.style},
    )


def _check(env_id: str, params: Mapping[str, Any]) -> None:
    from envfleet.envs.atari.roms import check_params

    naming = naming_of(env_id)
    check_params(naming.game, naming.style, params)


def _settings_of(env_id: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
    from envfleet.envs.atari.options import options_as_dict, read_options

    return options_as_dict(read_options(naming_of(env_id).style, params))


SIMULATOR = Simulator(
    family="atari",
    package="ale_py",
    extra="atari",
    backend="processes",  # the emulator holds the GIL while it works
    ids=ids,
    spec_of=_spec_of,
    check=_check,
    settings_of=_settings_of,
)
