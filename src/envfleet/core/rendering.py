"""Frames that envs render: resizing, tiling, and the window of render_mode="human"."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.core.errors import ConfigError, MissingExtraError

Frame = NDArray[np.uint8]

_GAP_GRAY = 64  # the lines between tiled frames

# As set by the user: renderers without a screen set it to "dummy" for themselves.
_USER_DRIVER = os.environ.get("SDL_VIDEODRIVER")


def tile(
    frames: Sequence[Any], gap: int = 0, *, env_ids: Sequence[int] | None = None, render_mode: str | None = "rgb_array"
) -> Frame:
    """Return RGB frames as one frame: a nearly square grid, filled row by row.

    gap: pixels between frames. The rest of the grid is black, or gray with a gap. env_ids and render_mode: those of the
    frames, for errors; without env_ids, the frames are of envs 0, 1, 2 ...
    """
    for env_id, frame in zip(range(len(frames)) if env_ids is None else env_ids, frames, strict=True):
        if not isinstance(frame, np.ndarray) or frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
            got = f"{frame.dtype} of shape {frame.shape}" if isinstance(frame, np.ndarray) else type(frame).__name__
            remedy = "fix its render()" if render_mode == "rgb_array" else "make the pool with render_mode='rgb_array'"
            raise ConfigError(
                f"render() of env {env_id} expected to return a uint8 array of shape (height, width, 3), got {got}; "
                f"{remedy}"
            )
    columns = math.ceil(math.sqrt(len(frames)))
    rows = math.ceil(len(frames) / columns)
    height = max(frame.shape[0] for frame in frames)
    width = max(frame.shape[1] for frame in frames)
    shape = (rows * (height + gap) - gap, columns * (width + gap) - gap, 3)
    grid = np.full(shape, _GAP_GRAY if gap else 0, dtype=np.uint8)
    for position, frame in enumerate(frames):
        top, left = position // columns * (height + gap), position % columns * (width + gap)
        grid[top : top + frame.shape[0], left : left + frame.shape[1]] = frame
    return grid


def shrink(frame: Frame, max_width: int) -> Frame:
    """Shrink a frame to at most max_width by an integer factor."""
    height, width = frame.shape[:2]
    factor = max(1, min(math.ceil(width / max_width), height))
    smaller: Frame = resized(frame, width // factor, height // factor)
    return smaller


def check_screen() -> None:
    """Raise ConfigError if no window can be opened, and MissingExtraError without pygame."""
    has_screen = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    if sys.platform == "linux" and not has_screen and _USER_DRIVER is None:
        raise ConfigError(
            "render_mode expected 'rgb_array' or None on a machine without a screen, got 'human', and neither DISPLAY "
            "nor WAYLAND_DISPLAY is set; with 'rgb_array' render() returns frames"
        )
    _pygame()


class Window:
    """A window that opens with the first frame, in its size."""

    def __init__(self, title: str, fps: int) -> None:
        check_screen()
        self._title, self._fps = title, fps
        self._surface: Any = None
        self._clock: Any = None

    def show(self, frame: Frame) -> None:
        """Show an RGB frame, at most fps frames per second."""
        pygame = _pygame()
        size = (frame.shape[1], frame.shape[0])
        if self._surface is None or self._surface.get_size() != size:
            if _USER_DRIVER is None:
                os.environ.pop("SDL_VIDEODRIVER", None)
            pygame.display.init()
            pygame.display.set_caption(self._title)
            self._surface, self._clock = pygame.display.set_mode(size), pygame.time.Clock()
        pygame.surfarray.blit_array(self._surface, np.swapaxes(frame, 0, 1))
        pygame.event.pump()  # otherwise the window system reports the window as not responding
        pygame.display.flip()
        self._clock.tick(self._fps)

    def close(self) -> None:
        """Close the window. Idempotent."""
        if self._surface is not None:
            self._surface = None
            _pygame().display.quit()


def _pygame() -> Any:
    try:
        import pygame
    except ImportError as error:
        raise MissingExtraError("pygame", "render", "render_mode='human'") from error
    return pygame


def resized(frame: Any, width: int, height: int) -> Any:
    """Resize a frame of (rows, columns, ...). A side of 0 keeps its length; non-arrays are returned unchanged.

    Each new pixel is the mean of the area it covers.
    """
    if not isinstance(frame, np.ndarray) or frame.ndim < 2:
        return frame
    for axis, size in ((0, height), (1, width)):
        if size > 0 and size != frame.shape[axis]:
            frame = _resized_along(frame, axis, size)
    return frame


def _resized_along(frame: NDArray[Any], axis: int, size: int) -> NDArray[Any]:
    length = frame.shape[axis]
    # The sum up to any edge, by interpolation between the sums up to whole pixels.
    edges = np.linspace(0, length, size + 1)
    whole = np.minimum(edges.astype(np.int64), length - 1)
    pixels = np.moveaxis(frame, axis, 0)
    sums = np.zeros((length + 1, *pixels.shape[1:]))
    np.cumsum(pixels, axis=0, out=sums[1:])
    part = (edges - whole).reshape(-1, *(1,) * (pixels.ndim - 1))
    means = np.diff(sums[whole] + part * pixels[whole], axis=0) * (size / length)
    if frame.dtype.kind in "iu":
        means = np.rint(means)
    result: NDArray[Any] = np.moveaxis(means, 0, axis).astype(frame.dtype)
    return result
