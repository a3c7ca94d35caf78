"""An animated GIF of a grid of envs."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import envfleet
from envfleet.driving import draw_actions
from envfleet.errors import ConfigError, MissingExtraError

try:
    import imageio.v3 as imageio
except ImportError as error:
    raise MissingExtraError("imageio", "cli", "--record") from error

Frame = NDArray[np.uint8]

_GRID_WIDTH = 720  # pixels at most: a GIF of full frames would be tens of megabytes
_MIN_TILE_WIDTH = 64
_GAP = 2
_USUAL_FPS = 30  # of an env that does not say
_GAP_GRAY = 64


class Recorder:
    """A pool of a few envs that is rolled out for the picture alone."""

    def __init__(self, env_id: str, num_envs: int, options: dict[str, Any]) -> None:
        # Without it SDL looks for a screen, and complains on stderr where there is none.
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        self._envs = envfleet.make(env_id, num_envs=num_envs, render_mode="rgb_array", **options)
        try:
            self._actions = draw_actions(self._envs.single_action_space, num_envs, options["seed"])
            self._envs.reset()
            self._first = self._grid()
        except BaseException:
            self._envs.close()
            raise

    def write(self, path: Path, num_frames: int, fps: float | None) -> None:
        """Rolls out and writes the file."""
        frames = [self._first]
        with self._envs:
            for turn in range(num_frames - 1):
                self._envs.step(self._actions[turn % len(self._actions)])
                frames.append(self._grid())
        duration_ms = 1000 / (fps or self._envs.metadata.get("render_fps") or _USUAL_FPS)
        imageio.imwrite(path, np.stack(frames), extension=".gif", duration=duration_ms, loop=0)

    def _grid(self) -> Frame:
        return tile([self._frame(env_id) for env_id in range(self._envs.num_envs)])

    def _frame(self, env_id: int) -> Frame:
        frame: Any = self._envs.render_env(env_id)
        # A Python env draws what it likes: text, a list of all its frames, nothing.
        if not isinstance(frame, np.ndarray) or frame.ndim != 3 or frame.shape[2] != 3:
            got = f"an array of shape {frame.shape}" if isinstance(frame, np.ndarray) else type(frame).__name__
            raise ConfigError(f"--record expected the env's render() to give an RGB array, got {got}")
        return frame.astype(np.uint8, copy=False)


def tile(frames: Sequence[Frame]) -> Frame:
    """Pictures of one size in a grid near a square, row by row, shrunk to a width that a GIF bears."""
    columns = math.ceil(math.sqrt(len(frames)))
    rows = math.ceil(len(frames) / columns)
    tiles = [_resize(frame, _GRID_WIDTH // columns) for frame in frames]
    height, width = tiles[0].shape[:2]
    shape = (rows * (height + _GAP) - _GAP, columns * (width + _GAP) - _GAP, 3)
    grid = np.full(shape, _GAP_GRAY, dtype=np.uint8)
    for position, picture in enumerate(tiles):
        top, left = (position // columns) * (height + _GAP), (position % columns) * (width + _GAP)
        grid[top : top + height, left : left + width] = picture
    return grid


def _resize(frame: Frame, max_width: int) -> Frame:
    """By a whole factor: the mean of blocks of pixels, or pixels repeated."""
    height, width = frame.shape[:2]
    if width < _MIN_TILE_WIDTH:
        times = min(_MIN_TILE_WIDTH, max_width) // width
        return frame.repeat(times, axis=0).repeat(times, axis=1) if times > 1 else frame
    factor = min(math.ceil(width / max(max_width, 1)), height)
    height, width = height // factor, width // factor
    blocks: Frame = frame[: height * factor, : width * factor].reshape(height, factor, width, factor, -1)
    shrunk: Frame = blocks.mean(axis=(1, 3)).astype(np.uint8)
    return shrunk
