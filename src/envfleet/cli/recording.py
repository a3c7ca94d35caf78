"""Recorder: writes a GIF or an MP4 of a grid of envs."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import envfleet
from envfleet.errors import ConfigError
from envfleet.tuning.throughput import sample_batches
from envfleet.wrappers.video import Video, writer_of

Frame = NDArray[np.uint8]

_MAX_GRID_WIDTH = 720  # pixels: a GIF of full frames would have tens of megabytes
_MIN_TILE_WIDTH = 64
_GAP = 2
_DEFAULT_FPS = 30  # of an env without render_fps
_GAP_GRAY = 64


class Recorder:
    """A pool of a few envs, for the recording alone."""

    def __init__(self, path: Path, env_id: str, num_envs: int, options: dict[str, Any]) -> None:
        writer_of(path)  # so that a missing package is reported before the run
        self._path = path
        # Without it, SDL looks for a display, and complains on stderr if there is none.
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        self._envs = envfleet.make(env_id, num_envs=num_envs, render_mode="rgb_array", **options)
        try:
            self._actions = sample_batches(self._envs.single_action_space, num_envs, options["seed"])
            self._envs.reset()
            self._first = self._grid()
        except BaseException:
            self._envs.close()
            raise

    def write(self, num_frames: int, fps: float | None) -> None:
        """Run a rollout and write the file."""
        video = Video(self._path, fps or self._envs.metadata.get("render_fps") or _DEFAULT_FPS)
        with self._envs, contextlib.closing(video):
            video.append(self._first)
            for step in range(num_frames - 1):
                self._envs.step(self._actions[step % len(self._actions)])
                video.append(self._grid())

    def _grid(self) -> Frame:
        return tile([self._frame(env_id) for env_id in range(self._envs.num_envs)])

    def _frame(self, env_id: int) -> Frame:
        frame: Any = self._envs.render_env(env_id)
        # A Python env may return anything: text, a list of frames, None.
        if not isinstance(frame, np.ndarray) or frame.ndim != 3 or frame.shape[2] != 3:
            got = f"an array of shape {frame.shape}" if isinstance(frame, np.ndarray) else type(frame).__name__
            raise ConfigError(f"--record expected the env's render() to return an RGB array, got {got}")
        return frame.astype(np.uint8, copy=False)


def tile(frames: Sequence[Frame]) -> Frame:
    """Arrange frames of the same size in a nearly square grid, row by row, scaled down to fit a GIF."""
    columns = math.ceil(math.sqrt(len(frames)))
    rows = math.ceil(len(frames) / columns)
    tiles = [_resize(frame, _MAX_GRID_WIDTH // columns) for frame in frames]
    height, width = tiles[0].shape[:2]
    shape = (rows * (height + _GAP) - _GAP, columns * (width + _GAP) - _GAP, 3)
    grid = np.full(shape, _GAP_GRAY, dtype=np.uint8)
    for position, tile_ in enumerate(tiles):
        top, left = (position // columns) * (height + _GAP), (position % columns) * (width + _GAP)
        grid[top : top + height, left : left + width] = tile_
    return grid


def _resize(frame: Frame, max_width: int) -> Frame:
    """Scale a frame by an integer factor: average blocks of pixels, or repeat pixels."""
    height, width = frame.shape[:2]
    if width < _MIN_TILE_WIDTH:
        factor = min(_MIN_TILE_WIDTH, max_width) // width
        return frame.repeat(factor, axis=0).repeat(factor, axis=1) if factor > 1 else frame
    factor = min(math.ceil(width / max(max_width, 1)), height)
    height, width = height // factor, width // factor
    blocks: Frame = frame[: height * factor, : width * factor].reshape(height, factor, width, factor, -1)
    shrunk: Frame = blocks.mean(axis=(1, 3)).astype(np.uint8)
    return shrunk
