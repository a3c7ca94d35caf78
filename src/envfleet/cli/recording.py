"""Recorder: writes a GIF or an MP4 of a grid of envs."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import envfleet
from envfleet.core.errors import ConfigError
from envfleet.core.rendering import Frame, shrink, tile
from envfleet.wrappers.recording import RecordGrid, record_rollout
from envfleet.wrappers.video import writer_of

_MAX_GRID_WIDTH = 720  # pixels: a GIF of full frames would have tens of megabytes
_MIN_TILE_WIDTH = 64
_GAP = 2


class Recorder:
    """A pool of a few envs, for the recording alone. Reports an env that cannot be rendered when it is made."""

    def __init__(
        self, path: Path, env: Any, num_envs: int, options: dict[str, Any], num_frames: int, fps: float | None
    ) -> None:
        writer_of(path)  # so that a missing package is reported before the envs are made
        self._seed = options["seed"]
        # Without it, SDL looks for a display, and complains on stderr if there is none.
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        envs = envfleet.make(env, num_envs=num_envs, render_mode="rgb_array", **options)
        try:
            self._grid = _Grid(envs, path, num_frames=num_frames, env_ids=range(num_envs), fps=fps)
            envs.reset()
            self._grid.grid_frame()
        except BaseException:
            envs.close()
            raise

    def write(self, progress: Callable[[float, str], None]) -> None:
        """Run a rollout and write the file. progress: called with the share that is done, and what is done."""
        with self._grid:
            record_rollout(self._grid, None, self._seed, progress)


class _Grid(RecordGrid):
    """A grid with gaps between its frames. Small frames are enlarged."""

    def grid_frame(self) -> Frame:
        frames = [_checked(frame) for frame in self._render()]
        max_width = max(1, _MAX_GRID_WIDTH // math.ceil(math.sqrt(len(frames))))
        return tile([shrink(_enlarged(frame, max_width), max_width) for frame in frames], _GAP)


def _checked(frame: Any) -> Frame:
    # A Python env may return anything: text, a list of frames, None.
    if not isinstance(frame, np.ndarray) or frame.ndim != 3 or frame.shape[2] != 3:
        got = f"an array of shape {frame.shape}" if isinstance(frame, np.ndarray) else type(frame).__name__
        raise ConfigError(f"--record expected the env's render() to return an RGB array, got {got}")
    return frame.astype(np.uint8, copy=False)


def _enlarged(frame: Frame, max_width: int) -> Frame:
    """Repeat the pixels of a frame that is narrower than _MIN_TILE_WIDTH."""
    factor = min(_MIN_TILE_WIDTH, max_width) // frame.shape[1]
    return frame.repeat(factor, axis=0).repeat(factor, axis=1) if factor > 1 else frame
