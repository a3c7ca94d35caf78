"""Infos of players out of a batch's columns; flatten_infos() in players.py put them there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def split_infos(info: Mapping[str, Any], num_agents: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The columns of each agent's infos, by its id, and those of the env itself."""
    own: list[dict[str, Any]] = [{} for _ in range(num_agents)]
    of_env: dict[str, Any] = {}
    for name, column in info.items():
        mark = "_" if name.startswith("_") and name[1:] in info else ""
        place, colon, key = name[len(mark) :].partition(":")
        if colon and place.isdecimal() and int(place) < num_agents:
            own[int(place)][mark + key] = column
        else:
            of_env[name] = column
    return own, of_env
