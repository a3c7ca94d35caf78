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
