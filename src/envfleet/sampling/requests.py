"""What a generator's yield gives back for the arguments of trajs()."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def request_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """None, the positional arguments as a tuple, the named ones as a dict, or a list of the former and the dict.

    trajs() -> None, trajs("A") -> ("A",), trajs(limit=7) -> {"limit": 7}, trajs("B", limit=7) -> ["B", {"limit": 7}]
    """
    if args and kwargs:
        return [*args, dict(kwargs)]
    if kwargs:
        return dict(kwargs)
    return args or None
