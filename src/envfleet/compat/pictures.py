"""Pictures of another size."""

from __future__ import annotations

from typing import Any

import numpy as np


def resized(picture: Any, width: int, height: int) -> Any:
    """A picture of (rows, columns, ...) in this size; 0 keeps a side, nothing but arrays is changed.

    Each new pixel is the mean of those it covers: pictures shrink without specks, and grow in blocks.
    """
    if not isinstance(picture, np.ndarray) or picture.ndim < 2:
        return picture
    for axis, size in ((0, height), (1, width)):
        if size > 0 and size != picture.shape[axis]:
            picture = _resized_along(picture, axis, size)
    return picture


def _resized_along(picture: np.ndarray[Any, Any], axis: int, size: int) -> np.ndarray[Any, Any]:
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
    result: np.ndarray[Any, Any] = np.moveaxis(means, 0, axis).astype(picture.dtype)
    return result
