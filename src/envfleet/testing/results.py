"""Checks of what an env returns: observations against their space, rewards, flags and infos."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.core.spaces import dtype_remedy
from envfleet.testing.report import Findings, short

_SPACE_REMEDY = "return observations of observation_space, or declare a space that contains them"


def check_observation(
    space: spaces.Space[Any], value: Any, method: str, findings: Findings, where: str = "obs"
) -> None:
    """Check an observation against its space, and report where in a nested one it differs."""
    if isinstance(space, spaces.Dict):
        _check_dict(space, value, method, findings, where)
    elif isinstance(space, spaces.Tuple):
        _check_tuple(space, value, method, findings, where)
    elif isinstance(space, spaces.Box):
        _check_array(space.low, space.high, np.dtype(space.dtype), value, method, findings, where, is_box=True)
    elif isinstance(space, spaces.MultiDiscrete):
        low = np.asarray(getattr(space, "start", np.zeros_like(space.nvec)))
        _check_array(low, low + space.nvec - 1, np.dtype(space.dtype), value, method, findings, where)
    elif isinstance(space, spaces.MultiBinary):
        low = np.zeros(space.shape, np.int8)
        _check_array(low, low + 1, np.dtype(np.int8), value, method, findings, where)
    elif isinstance(space, spaces.Discrete):
        low = np.asarray(space.start)
        _check_array(low, low + space.n - 1, np.dtype(np.int64), value, method, findings, where)
    elif not space.contains(value):
        seen = f"{method} returned {where} = {short(value)}, expected an element of {space}"
        findings.error("observation outside the space", seen, _SPACE_REMEDY, where)


def check_reward(reward: Any, method: str, findings: Findings) -> None:
    """Check that a reward is a real number, or a zero-dimensional array of one."""
    is_scalar_array = isinstance(reward, np.ndarray) and reward.ndim == 0 and reward.dtype.kind in "biuf"
    if not (isinstance(reward, Real | np.bool_) or is_scalar_array):
        findings.error(
            "reward is not a number",
            f"{method} expected a float, got {short(reward)} of type {type(reward).__name__}",
            "return float(reward)",
        )
    elif math.isnan(float(reward)):
        findings.error("reward is NaN", f"{method} returned NaN", "look for 0/0, or a simulator that has diverged")
    elif math.isinf(float(reward)):
        findings.warning("reward is infinite", f"{method} returned {reward}", "return a finite reward")


def check_flag(name: str, flag: Any, method: str, findings: Findings) -> None:
    """Check that terminated or truncated is a bool."""
    if isinstance(flag, bool | np.bool_):
        return
    seen = f"{method} expected {name} as a bool, got {short(flag)} of type {type(flag).__name__}"
    # 0 and 1 work as intended; a non-empty string or list would end every episode.
    if isinstance(flag, int | np.integer) or (isinstance(flag, np.ndarray) and flag.ndim == 0 and flag.dtype == bool):
        findings.warning("flag is not a bool", seen, f"return bool({name})", name)
    else:
        findings.error("flag is not a bool", seen, f"return bool({name})", name)


def check_info(info: Any, method: str, findings: Findings) -> None:
    """Check that an info is a dict."""
    if not isinstance(info, dict):
        findings.error(
            "info is not a dict",
            f"{method} expected a dict, got {short(info)} of type {type(info).__name__}",
            "return {} if there is nothing to report",
        )


def _check_dict(space: spaces.Dict, value: Any, method: str, findings: Findings, where: str) -> None:
    if not isinstance(value, Mapping) or set(value) != set(space.spaces):
        got = f"the keys {sorted(map(str, value))}" if isinstance(value, Mapping) else f"{type(value).__name__}"
        findings.error(
            "observation of another structure",
            f"{method} expected {where} as a dict of the keys {sorted(space.spaces)}, got {got}",
            _SPACE_REMEDY,
            where,
        )
        return
    for key, part in space.spaces.items():
        check_observation(part, value[key], method, findings, f"{where}[{key!r}]")


def _check_tuple(space: spaces.Tuple[Any], value: Any, method: str, findings: Findings, where: str) -> None:
    if not isinstance(value, tuple | list) or len(value) != len(space.spaces):
        got = f"{len(value)} parts" if isinstance(value, tuple | list) else f"{type(value).__name__}"
        findings.error(
            "observation of another structure",
            f"{method} expected {where} as a tuple of {len(space.spaces)} parts, got {got}",
            _SPACE_REMEDY,
            where,
        )
        return
    for index, part in enumerate(space.spaces):
        check_observation(part, value[index], method, findings, f"{where}[{index}]")


def _check_array(
    low: NDArray[Any],
    high: NDArray[Any],
    dtype: np.dtype[Any],
    value: Any,
    method: str,
    findings: Findings,
    where: str,
    is_box: bool = False,
) -> None:
    array = _as_array(value)
    if array is None or array.shape != low.shape:
        got = f"{type(value).__name__}" if array is None else f"shape {array.shape}"
        findings.error(
            "observation of another shape",
            f"{method} expected {where} of shape {low.shape}, got {got}",
            _SPACE_REMEDY,
            where,
        )
        return
    # For a zero-dimensional space, a Python number, which has no dtype, is fine.
    plain = array.ndim == 0 and isinstance(value, int | float)
    if not _check_dtype(dtype, array, plain, method, findings, where, is_box):
        return
    if array.dtype.kind == "f" and np.isnan(array).any():
        index = tuple(int(i) for i in np.argwhere(np.isnan(array))[0])
        findings.error(
            "observation is NaN",
            f"{method} returned {where}{''.join(f'[{i}]' for i in index)} = nan",
            "look for 0/0, inf - inf, or a simulator that has diverged: np.clip() keeps a NaN, and no bounds contain "
            "one; make(..., check_finite=True) raises at the first",
            where,
        )
        return
    outside = ~((array >= low) & (array <= high))
    if outside.any():
        index = tuple(int(i) for i in np.argwhere(outside)[0])
        element = where + "".join(f"[{i}]" for i in index)
        findings.error(
            "observation outside the space",
            f"{method} returned {element} = {array[index]}, expected from {low[index]} to {high[index]}",
            "clip the observation, or widen the bounds of the space",
            where,
        )


def _check_dtype(
    dtype: np.dtype[Any],
    array: NDArray[Any],
    plain: bool,
    method: str,
    findings: Findings,
    where: str,
    is_box: bool,
) -> bool:
    """Check the dtype; return False if the values cannot be compared with the bounds."""
    integers = array.dtype.kind in "iu" and dtype.kind in "iu"
    # An index of a Discrete, or a Python number, may have any width.
    if (
        array.dtype == dtype
        or (array.ndim == 0 and integers)
        or (plain and np.can_cast(array.dtype, dtype, "same_kind"))
    ):
        return True
    seen = f"{method} expected {where} of dtype {dtype}, got {array.dtype}"
    remedy = dtype_remedy(array, dtype, where, is_box=is_box)
    if np.can_cast(array.dtype, dtype, "same_kind"):
        findings.warning("observation of another dtype", seen, f"{remedy}; a pool converts every observation", where)
        return True
    findings.error("observation of another dtype", seen, remedy, where)
    return False


def _as_array(value: Any) -> NDArray[Any] | None:
    try:
        array = np.asarray(value)
    except Exception:  # ragged lists, and whatever __array__ may raise
        return None
    return array if array.dtype.kind in "biufc" else None
