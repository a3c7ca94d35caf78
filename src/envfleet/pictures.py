"""Pictures of many envs as one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import ConfigError


def tile(frames: Sequence[Any]) -> NDArray[np.uint8]:
    """RGB pictures in a grid near a square, row by row; smaller ones and missing ones are black around."""
    for env_id, frame in enumerate(frames):
        if not isinstance(frame, np.ndarray) or frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
            got = f"{frame.dtype} of shape {frame.shape}" if isinstance(frame, np.ndarray) else type(frame).__name__
            raise ConfigError(
                f"a tiled picture expected uint8 pictures of shape (height, width, 3), got {got} from env {env_id}; "
                "make the pool with render_mode='rgb_array'"
            )
    columns = math.ceil(math.sqrt(len(frames)))
    rows = math.ceil(len(frames) / columns)
    height = max(frame.shape[0] for frame in frames)
    width = max(frame.shape[1] for frame in frames)
    picture = np.zeros((rows * height, columns * width, 3), dtype=np.uint8)
    for position, frame in enumerate(frames):
        top, left = position // columns * height, position % columns * width
        picture[top : top + frame.shape[0], left : left + frame.shape[1]] = frame
    return picture


def resized(picture: Any, width: int, height: int) -> Any:
    """Resize a picture of (rows, columns, ...). A side of 0 keeps its length; non-arrays are returned unchanged.

    Each new pixel is the mean of the area it covers.
    """
    if not isinstance(picture, np.ndarray) or picture.ndim < 2:
        return picture
    for axis, size in ((0, height), (1, width)):
        if size > 0 and size != picture.shape[axis]:
            picture = _resized_along(picture, axis, size)
    return picture


def _resized_along(picture: NDArray[Any], axis: int, size: int) -> NDArray[Any]:
    length = picture.shape[axis]
    # The sum up to any edge, by interpolation between the sums up to whole pixels.
    edges = np.linspace(0, length, size + 1)
    whole = np.minimum(edges.astype(np.int64), length - 1)
    pixels = np.moveaxis(picture, axis, 0).astype(np.float64)
    sums = np.concatenate([np.zeros((1, *pixels.shape[1:])), np.cumsum(pixels, axis=0)])
    part = (edges - whole).reshape(-1, *(1,) * (pixels.ndim - 1))
    up_to = sums[whole] + part * pixels[whole]
    means = np.diff(up_to, axis=0) * (size / length)
    if picture.dtype.kind in "iu":
        means = np.rint(means)
    result: NDArray[Any] = np.moveaxis(means, 0, axis).astype(picture.dtype)
    return result
