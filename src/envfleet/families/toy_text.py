"""Toy text: native envs, rendered by Gymnasium's own code; conversion of FrozenLake's maps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.envs.toy_text.frozen_lake import generate_random_map

from envfleet.core.errors import ConfigError
from envfleet.core.family import Family, Renderer
from envfleet.envs.rendering import gymnasium_renderer

_MODULE = "gymnasium.envs.toy_text"
_ENTRY_POINTS = {
    "FrozenLake-v1": f"{_MODULE}.frozen_lake:FrozenLakeEnv",
    "FrozenLake8x8-v1": f"{_MODULE}.frozen_lake:FrozenLakeEnv",
    "CliffWalking-v0": f"{_MODULE}.cliffwalking:CliffWalkingEnv",
    "CliffWalking-v1": f"{_MODULE}.cliffwalking:CliffWalkingEnv",
    "CliffWalkingSlippery-v1": f"{_MODULE}.cliffwalking:CliffWalkingEnv",
    "Taxi-v3": f"{_MODULE}.taxi:TaxiEnv",
    "Taxi-v4": f"{_MODULE}.taxi:TaxiEnv",
    "Blackjack-v1": f"{_MODULE}.blackjack:BlackjackEnv",
}
_RENDER_FPS = dict.fromkeys(_ENTRY_POINTS, 4)


def _translate(params: Mapping[str, Any]) -> dict[str, Any]:
    """Convert FrozenLake's desc (a list of rows) to one string; without any map, generate a random one."""
    native = dict(params)
    if "desc" in native or "map_name" in native:
        desc, map_name = native.get("desc"), native.get("map_name", "")
        if desc is None and map_name is None:
            desc = generate_random_map()
        native["desc"] = "" if desc is None else _as_texts(desc)
        native["map_name"] = map_name or ""
        if not native["map_name"]:
            del native["map_name"]
    return native


def _as_texts(desc: Any) -> str | list[str]:
    """Convert one map, or a list with one map per env."""
    if isinstance(desc, str):
        return desc
    if isinstance(desc, (list, tuple)) and desc and all(_is_map(own) for own in desc):
        return [_as_text(own) for own in desc]
    return _as_text(desc)


def _is_map(value: Any) -> bool:
    """Return whether this is a whole map and not a row: some part of it has more than one letter."""
    is_list = isinstance(value, (list, tuple, np.ndarray)) and len(value) > 0
    return is_list and any(np.ndim(row) > 0 or len(row) > 1 for row in value)


def _as_text(desc: Any) -> str:
    """Convert a map in any form that Gymnasium accepts: rows as strings, bytes or lists of letters."""
    try:
        rows = [row if isinstance(row, (str, bytes)) else type(row[0])().join(row) for row in desc]
        text = "\n".join(row.decode() if isinstance(row, bytes) else row for row in rows)
    except (TypeError, IndexError, AttributeError, UnicodeDecodeError) as error:
        raise ConfigError(f"desc expected a list of strings, one per row of the map, got {desc!r}") from error
    if not text.strip():
        raise ConfigError(f"desc expected at least one row of the map, got {desc!r}")
    return text


def _make_renderer(native_id: str, params: Mapping[str, Any]) -> Renderer:
    kwargs = dict(params)
    if kwargs.get("desc"):
        kwargs["desc"] = kwargs["desc"].split("\n")
    else:
        kwargs.pop("desc", None)
    return gymnasium_renderer(_ENTRY_POINTS[native_id], kwargs, _to_gymnasium)


def _to_gymnasium(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Convert native attributes to Gymnasium's: hands to lists, a missing last action to None."""
    values = dict(attributes)
    if values.get("lastaction") == -1:
        values["lastaction"] = None
    for hand in ("player", "dealer"):
        if hand in values:
            values[hand] = [int(card) for card in values[hand]]
    for letter in ("dealer_top_card_suit", "dealer_top_card_value_str"):
        if letter in values:
            values[letter] = chr(values[letter])
    return values


FAMILY = Family(
    "toy text",
    tuple(_ENTRY_POINTS),
    translate=_translate,
    make_renderer=_make_renderer,
    render_fps=_RENDER_FPS,
)
# Gymnasium has no renderer for it.
NCHAIN_FAMILY = Family("toy text", ("NChain-v0",))
