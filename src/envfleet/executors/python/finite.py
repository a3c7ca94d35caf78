"""check_finite for Python envs: finds NaN and infinities in what an env returned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from envfleet.core.spaces import Leaf, path_text
from envfleet.core.tracebacks import WrongResultError


def check_reward(reward: float) -> None:
    """Raise WrongResultError if a reward is NaN or infinite."""
    if not math.isfinite(reward):
        raise _error("reward", reward)


def check_observation(leaves: Sequence[Leaf], values: Sequence[Any]) -> None:
    """Raise WrongResultError if an observation contains NaN or infinities. values: one per leaf."""
    for leaf, value in zip(leaves, values, strict=True):
        if leaf.kind == "array":
            with np.errstate(over="ignore"):
                value = np.asarray(value, leaf.dtype)  # a finite number may be infinite in a narrower dtype
        _check(f"observation{path_text(leaf.path)}", value)


def _check(where: str, value: Any) -> None:
    if isinstance(value, Mapping):
        for key, part in value.items():
            _check(f"{where}[{key!r}]", part)
    elif isinstance(value, (tuple, list)):  # the value of a Sequence or of a Graph
        for position, part in enumerate(value):
            _check(f"{where}[{position}]", part)
    elif isinstance(value, (np.ndarray, np.inexact, float)):
        array = np.asarray(value)
        if not np.issubdtype(array.dtype, np.inexact) or np.isfinite(array).all():
            return
        index = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise _error(f"{where}[{', '.join(map(str, index))}]" if index else where, array[index])


def _error(where: str, number: Any) -> WrongResultError:
    return WrongResultError(f"{where} is {number}, expected finite numbers, since check_finite is set")
