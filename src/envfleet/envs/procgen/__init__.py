"""Procgen: EnvPool's ids ("CoinrunEasy-v0") and the package's ("procgen-coinrun-v0", "procgen-coinrun").

All are one native env, in a plug-in that opens the library of the procgen package; plugin.py finds it. Cheap to
import: the package is never imported, and its library is opened when an env is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envfleet.envs.family import EnvSummary, Family
from envfleet.making.params import convert_each

# The time limit and the modes of each game, beside easy and hard. native/procgen/game.cc has the same table.
GAMES: dict[str, tuple[int, tuple[str, ...]]] = {
    "bigfish": (6000, ()),
    "bossfight": (4000, ()),
    "caveflyer": (1000, ("memory", "exploration")),
    "chaser": (1000, ("extreme",)),
    "climber": (1000, ("exploration",)),
    "coinrun": (1000, ("exploration",)),
    "dodgeball": (1000, ("extreme", "memory")),
    "fruitbot": (1000, ()),
    "heist": (1000, ("memory", "exploration")),
    "jumper": (1000, ("memory", "exploration")),
    "leaper": (500, ("extreme", "exploration")),
    "maze": (500, ("memory", "exploration")),
    "miner": (1000, ("memory",)),
    "ninja": (1000, ("exploration",)),
    "plunder": (4000, ()),
    "starpilot": (1000, ("extreme",)),
}
_JUMPER_MEMORY_LIMIT = 2000
_MODE_NUMBERS = {0: "easy", 1: "hard", 2: "extreme", 10: "memory", 20: "exploration"}  # EnvPool's


def _aliases() -> dict[str, dict[str, Any]]:
    """Return the parameters of every id. Each has the defaults of its origin, EnvPool or the package."""
    aliases: dict[str, dict[str, Any]] = {}
    for game, (_, modes) in GAMES.items():
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


def _summary_of(env_id: str) -> EnvSummary | None:
    params = FAMILY.aliases.get(env_id)
    if params is None:  # an id of register()
        return None
    shape = (3, 64, 64) if params.get("channel_first") else (64, 64, 3)
    limit = _JUMPER_MEMORY_LIMIT if env_id == "JumperMemory-v0" else GAMES[params["env_name"]][0]
    return EnvSummary(limit, f"Box{shape} uint8", "Discrete(15)")


def _load(native_id: str) -> None:
    from envfleet.envs.procgen.plugin import load

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
    summary_of=_summary_of,
)
