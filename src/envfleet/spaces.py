"""Structured observations: columns to what the space says, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
from gymnasium import spaces


def assembler_of(space: gymnasium.Space[Any], names: Sequence[str]) -> Callable[[Sequence[Any]], Any]:
    """A function from the columns of an observation to its structure: array, dict or tuple.

    names are the columns', in their order: a Dict space sorts its keys, the columns do not.
    """
    if isinstance(space, spaces.Dict):
        return lambda columns: dict(zip(names, columns, strict=True))
    if isinstance(space, spaces.Tuple):
        return tuple
    return lambda columns: columns[0]


def map_obs(function: Callable[[Any], Any], obs: Any) -> Any:
    """The same structure with the function applied to each array."""
    if isinstance(obs, dict):
        return {key: map_obs(function, value) for key, value in obs.items()}
    if isinstance(obs, tuple):
        return tuple(map_obs(function, value) for value in obs)
    return function(obs)
