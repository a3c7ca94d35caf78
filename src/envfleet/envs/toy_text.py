"""Toy text: FrozenLake's maps as text, Gymnasium's pictures for the native envs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.envs.toy_text.frozen_lake import generate_random_map

from envfleet.envs.family import Family, Renderer
from envfleet.envs.gymnasium_pictures import gymnasium_renderer
from envfleet.errors import ConfigError

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
    """FrozenLake's desc (a list of rows) as one text; no map at all as a random one."""
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
    """One map, or a list of one for each env."""
    if isinstance(desc, str):
        return desc
    if isinstance(desc, (list, tuple)) and desc and all(_is_map(own) for own in desc):
        return [_as_text(own) for own in desc]
    return _as_text(desc)


def _is_map(value: Any) -> bool:
    """Whether this is a map of its own and no row: more than one letter in some of its parts."""
    is_list = isinstance(value, (list, tuple, np.ndarray)) and len(value) > 0
    return is_list and any(np.ndim(row) > 0 or len(row) > 1 for row in value)


def _as_text(desc: Any) -> str:
    """A map as Gymnasium takes it: rows of letters, as strings, bytes or lists of single ones."""
    try:
        rows = [row if isinstance(row, (str, bytes)) else type(row[0])().join(row) for row in desc]
        text = "\n".join(row.decode() if isinstance(row, bytes) else row for row in rows)
    except (TypeError, IndexError, AttributeError, UnicodeDecodeError) as error:
        raise ConfigError(f"desc expected a list of strings, one for each row of the map, got {desc!r}") from error
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
    """Native attributes as Gymnasium holds them: hands as lists, no last action as None."""
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


FAMILY = Family("toy text", tuple(_ENTRY_POINTS), _translate, _make_renderer, _RENDER_FPS)
WITHOUT_PICTURES = Family("toy text", ("NChain-v0",))
