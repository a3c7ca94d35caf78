"""Atari 2600 games, on ale-py: a family of Python envs, run by worker processes.

games.py lists them, options.py has the defaults of each id, roms.py finds and verifies ROMs, emulator.py drives one
console, observations.py converts its screens to observations, env.py is the env.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from envfleet.core.family import Family
from envfleet.families.atari.games import ids, naming_of

MAX_EPISODE_STEPS = 27_000  # as in EnvPool: half an hour of play at a frame skip of 4


def _spec_of(env_id: str) -> GymnasiumSpec:
    naming = naming_of(env_id)
    return GymnasiumSpec(
        id=env_id,
        entry_point="envfleet.families.atari.env:AtariEnv",
        max_episode_steps=MAX_EPISODE_STEPS if naming.style == "envpool" else None,
        kwargs={"game": naming.game, "style": naming.style},
    )


def _check_params(env_id: str, params: Mapping[str, Any]) -> None:
    from envfleet.families.atari.roms import check_params

    naming = naming_of(env_id)
    check_params(naming.game, naming.style, params)


def _all_options(env_id: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
    from envfleet.families.atari.options import options_as_dict, read_options

    return options_as_dict(read_options(naming_of(env_id).style, params))


FAMILY = Family(
    "atari",
    package="ale_py",
    extra="atari",
    python_ids=ids,
    spec_of=_spec_of,
    python_backend="processes",  # the emulator holds the GIL while it works
    has_slow_steps=True,
    check_params=_check_params,
    all_options=_all_options,
)
