"""Spaces of the gym package as Gymnasium's. gym is never imported: its classes are known by their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from envfleet.errors import ConfigError


def to_gymnasium_space(space: Any) -> spaces.Space[Any]:
    """A space of the gym package as Gymnasium's of the same structure; Gymnasium's own as they are."""
    if isinstance(space, spaces.Space):
        return space
    for cls in type(space).__mro__:
        convert = _CONVERTERS.get(cls.__name__)
        if convert is not None:
            return convert(space)
    raise ConfigError(
        f"expected a space of gymnasium or gym, got {space!r} of type {type(space).__qualname__}; "
        "declare observation_space and action_space with gymnasium.spaces"
    )


def _box(space: Any) -> spaces.Box:
    dtype = np.dtype(space.dtype).type
    return spaces.Box(np.asarray(space.low), np.asarray(space.high), tuple(space.shape), dtype)


def _discrete(space: Any) -> spaces.Discrete:
    return spaces.Discrete(int(space.n), start=int(getattr(space, "start", 0)))


def _multi_discrete(space: Any) -> spaces.MultiDiscrete:
    dtype = np.dtype(getattr(space, "dtype", None) or np.int64).type
    return spaces.MultiDiscrete(np.asarray(space.nvec), dtype=dtype)


def _multi_binary(space: Any) -> spaces.MultiBinary:
    return spaces.MultiBinary(int(space.n) if np.ndim(space.n) == 0 else [int(n) for n in space.n])


def _dict(space: Any) -> spaces.Dict:
    # Pairs in gym's own order: a plain dict would be sorted by key, and flattening would change.
    return spaces.Dict([(key, to_gymnasium_space(part)) for key, part in space.spaces.items()])


def _tuple(space: Any) -> spaces.Tuple[Any]:
    return spaces.Tuple([to_gymnasium_space(part) for part in space.spaces])


def _text(space: Any) -> spaces.Text:
    charset = getattr(space, "character_set", None) or getattr(space, "charset", None)
    charset = spaces.Text(1).character_set if charset is None else frozenset(charset)
    return spaces.Text(int(space.max_length), min_length=int(space.min_length), charset=charset)


def _sequence(space: Any) -> spaces.Sequence:
    return spaces.Sequence(to_gymnasium_space(space.feature_space))


def _graph(space: Any) -> spaces.Graph:
    edges = None if space.edge_space is None else to_gymnasium_space(space.edge_space)
    return spaces.Graph(to_gymnasium_space(space.node_space), edges)


_CONVERTERS: dict[str, Callable[[Any], spaces.Space[Any]]] = {
    "Box": _box,
    "Discrete": _discrete,
    "MultiDiscrete": _multi_discrete,
    "MultiBinary": _multi_binary,
    "Dict": _dict,
    "Tuple": _tuple,
    "Text": _text,
    "Sequence": _sequence,
    "Graph": _graph,
}
