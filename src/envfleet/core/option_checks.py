"""Checks of single options: integers, numbers, flags and choices. Each returns the value, or raises ConfigError."""

from __future__ import annotations

import math
import numbers
import operator
from typing import Any, TypeVar

import numpy as np

from envfleet.core.errors import ConfigError

MAX_ENVS = 2**31 - 1
MAX_WORKERS = 1024
MAX_RAY_WORKERS = 1 << 16
NO_LIMIT = -1  # max_episode_steps: not even the env's own limit, as in gymnasium.make()
ChoiceT = TypeVar("ChoiceT", bound=str)


def step_limit_option(value: Any) -> int:
    """Check a number of steps, or NO_LIMIT, Gymnasium's -1."""
    if isinstance(value, numbers.Integral) and value == NO_LIMIT:
        return NO_LIMIT
    return integer_option("max_episode_steps", value, 1, MAX_ENVS)


def choice_option(name: str, value: Any, choices: tuple[ChoiceT, ...]) -> ChoiceT:
    """Return the value, or raise a ConfigError that lists the choices."""
    if not isinstance(value, str) or value not in choices:
        raise ConfigError(f"{name} expected one of {choices}, got {value!r}")
    return value


def render_mode_option(value: Any) -> str | None:
    """Check the name of a render mode, or None."""
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"render_mode expected 'rgb_array' or None, got {value!r}; render() returns the frames")
    return value


def number_option(name: str, value: Any) -> float | None:
    """Return a number as a float, or None; raise ConfigError for anything else."""
    # numbers.Real: NumPy's numbers too.
    if value is not None and (isinstance(value, bool) or not isinstance(value, numbers.Real)):
        raise ConfigError(f"{name} expected a number or None, got {value!r}")
    return None if value is None else float(value)


def seconds_option(name: str, value: Any, meaning_of_none: str = "no limit") -> float | None:
    """Return a time in seconds above 0, or None; raise ConfigError for anything else."""
    seconds = number_option(name, value)
    if seconds is not None and not (seconds > 0 and math.isfinite(seconds)):
        raise ConfigError(f"{name} expected seconds above 0, or None for {meaning_of_none}, got {value!r}")
    return seconds


def integer_option(name: str, value: Any, lowest: int, highest: int) -> int:
    """Return the value as an int within these bounds, or raise a ConfigError that states them."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or not lowest <= number <= highest:
        raise ConfigError(f"{name} expected an integer from {lowest} to {highest}, got {value!r}")
    return number


def flag_option(name: str, value: Any) -> bool:
    """Return the value as a bool; raise ConfigError for anything but Python's and NumPy's bools."""
    if not isinstance(value, (bool, np.bool_)):
        raise ConfigError(f"{name} expected True or False, got {value!r}")
    return bool(value)
