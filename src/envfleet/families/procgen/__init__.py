"""Procgen: EnvPool's ids ("CoinrunEasy-v0") and the package's ("procgen-coinrun-v0", "procgen-coinrun").

All are one native env, in a plug-in that opens the library of the procgen package; plugin.py finds it. Cheap to
import: the package is never imported, and its library is opened when an env is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envfleet.core.family import Family, convert_each

# The modes of each game, beside easy and hard. native/procgen/game.cc has the same table.
GAMES: dict[str, tuple[str, ...]] = {
    "bigfish": (),
    "bossfight": (),
    "caveflyer": ("memory", "exploration"),
    "chaser": ("extreme",),
    "climber": ("exploration",),
    "coinrun": ("exploration",),
    "dodgeball": ("extreme", "memory"),
    "fruitbot": (),
    "heist": ("memory", "exploration"),
    "jumper": ("memory", "exploration"),
    "leaper": ("extreme", "exploration"),
    "maze": ("memory", "exploration"),
    "miner": ("memory",),
    "ninja": ("exploration",),
    "plunder": (),
    "starpilot": ("extreme",),
}
_MODE_NUMBERS = {0: "easy", 1: "hard", 2: "extreme", 10: "memory", 20: "exploration"}  # EnvPool's


def _aliases() -> dict[str, dict[str, Any]]:
    """Return the parameters of every id. Each has the defaults of its origin, EnvPool or the package."""
    aliases: dict[str, dict[str, Any]] = {}
    for game, modes in GAMES.items():
        for mode in ("easy", "hard", *modes):
            aliases[f"{game.capitalize()}{mode.capitalize()}-v0"] = {
                "env_name": game,
                "distribution_mode": mode,
                "channel_first": True,
            }
        for name in (f"procgen-{game}", f"procgen-{game}-v0", f"procgen:procgen-{game}-v0"):
            aliases[name] = {"env_name": game}
    return aliases


def _translate(params: Mapping[str, Any]) -> dict[str, Any]:
    """Convert EnvPool's numbers of the modes to names; the native env refuses what is neither."""
    native = dict(params)
    if "distribution_mode" in native:
        native["distribution_mode"] = convert_each(_mode, native["distribution_mode"])
    return native


def _mode(value: Any) -> Any:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return _MODE_NUMBERS.get(value, str(value)) if is_number else value


def _load(native_id: str) -> None:
    from envfleet.families.procgen.plugin import load

    load()


FAMILY = Family(
    "procgen",
    ("Procgen",),
    package="procgen",
    extra="procgen",
    translate=_translate,
    aliases=_aliases(),
    load=_load,
    render_fps={"Procgen": 15},
)
