"""Videos of a grid of envs."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from envfleet.core.errors import ConfigError
from envfleet.core.option_checks import integer_option
from envfleet.core.policies import BatchPolicy, Policy, as_arrays
from envfleet.core.rendering import Frame, shrink, tile
from envfleet.wrappers.base import BatchRows, PoolWrapper, check_number
from envfleet.wrappers.video import Video, check_path, writer_of

_DEFAULT_FPS = 30  # if the env's metadata has no render_fps
_GRID_SIZE = 16
_MIN_FPS, _MAX_FPS = 0.01, 1000  # a GIF has 16 bits for hundredths of a second, and MP4 encoders have limits too


class RecordGrid(PoolWrapper):
    """Records what some envs (default: the first 16) render, one frame per step, as a .gif or .mp4 file.

    A video ends after num_frames frames, or with close().

    Args:
        env: A synchronous pool with render_mode="rgb_array".
        path: The file. With trigger, {step} in it is replaced by the number of the first step.
        num_frames: The length of a video.
        env_ids: The envs to record; None for the first 16.
        trigger: A video starts at each step for which trigger(step) is true, where step counts batches. None for one
            video, from the first reset.
        fps: Frames per second; None for the env's own.
        max_width: Larger frames are shrunk to at most this width.

    Attributes:
        paths: The files of the videos that were started.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        path: str | os.PathLike[str],
        *,
        num_frames: int = 300,
        env_ids: Sequence[int] | None = None,
        trigger: Callable[[int], bool] | None = None,
        fps: float | None = None,
        max_width: int = 720,
    ) -> None:
        super().__init__(env)
        self._check(env, path, trigger)
        self._path, self._trigger = str(path), trigger
        self._num_frames = integer_option("num_frames", num_frames, 1, 1 << 40)
        self._max_width = integer_option("max_width", max_width, 1, 1 << 31)
        self._shown = list(range(min(self.num_envs, _GRID_SIZE))) if env_ids is None else self._checked_ids(env_ids)
        if fps is not None:
            check_number(self, "fps", fps)
            if not _MIN_FPS <= fps <= _MAX_FPS:
                raise ConfigError(f"fps expected a number from {_MIN_FPS} to {_MAX_FPS}, or None, got {fps!r}")
        self._fps = float(env.metadata.get("render_fps") or _DEFAULT_FPS) if fps is None else float(fps)
        self._video: Video | None = None
        self._finish: Any = None
        self._left = 0
        self._batches = -1
        self.paths: list[Path] = []

    @staticmethod
    def _check(env: VectorEnv[Any, Any, Any], path: Any, trigger: Any) -> None:
        envs: Any = env.unwrapped
        pool = envs.pool
        if pool.config.is_async:
            raise ConfigError(
                f"RecordGrid expected a pool that is idle between batches, got batch_size={pool.config.batch_size} of "
                f"num_envs={pool.num_envs}; make the pool without batch_size"
            )
        if env.render_mode != "rgb_array":
            raise ConfigError(f"RecordGrid expected render_mode='rgb_array' at make(), got {env.render_mode!r}")
        if trigger is not None and not callable(trigger):
            raise ConfigError(f"trigger expected a callable from step numbers to bool, or None, got {trigger!r}")
        if trigger is not None and "{step}" not in str(path):
            raise ConfigError(f"path expected {{step}} in it, so that each video has its own file, got {str(path)!r}")
        # A missing package is reported now, not after hours of training.
        writer_of(check_path(path))

    def _checked_ids(self, env_ids: Any) -> list[int]:
        try:
            given = list(env_ids)
        except TypeError:  # not even several
            given = []
        ids = [integer_option("env_ids", env_id, 0, self.num_envs - 1) for env_id in given]
        if not ids or len(set(ids)) < len(ids):
            raise ConfigError(f"env_ids expected at least one id, and each only once, got {env_ids!r}")
        return ids

    @property
    def recording(self) -> bool:
        """Whether a video is under way."""
        return self._video is not None

    def process(
        self, rows: BatchRows, obs: Any, reward: NDArray[np.float64], info: dict[str, Any]
    ) -> tuple[Any, NDArray[np.float64]]:
        """Start a video if one is due, and add a frame to the current one."""
        self._batches += 1
        if self._video is None and self._begins():
            self._video = Video(self._path.replace("{step}", str(self._batches)), self._fps)
            # Also when the wrapper is dropped or the program ends without close().
            self._finish = weakref.finalize(self, self._video.close)
            self._left = self._num_frames
            self.paths.append(self._video.path)
        if self._video is not None:
            self._video.append(self.grid_frame())
            self._left -= 1
            if self._left == 0:
                self.stop()
        return obs, reward

    def _begins(self) -> bool:
        return not self.paths if self._trigger is None else bool(self._trigger(self._batches))

    def _render(self) -> Sequence[Any]:
        envs: Any = self.unwrapped
        frames: Sequence[Any] = envs.pool.render_all(self._shown)
        return frames

    def grid_frame(self) -> Frame:
        """Return the frames of the recorded envs as one."""
        return shrink(tile(self._render(), env_ids=self._shown), self._max_width)

    def stop(self) -> None:
        """Complete the current video, if any."""
        if self._finish is not None:
            self._finish()
        self._video = None

    def discard(self) -> None:
        """End the current video, if any, without a file: one that was there before stays."""
        if self._finish is not None:
            self._finish.detach()
        if self._video is not None:
            self._video.discard()
        self._video = None

    def close(self, **kwargs: Any) -> None:
        """Complete the video, then close the pool."""
        self.stop()
        super().close(**kwargs)


def record(
    envs: VectorEnv[Any, Any, Any],
    path: str | os.PathLike[str],
    policy: Policy | None = None,
    *,
    num_frames: int = 300,
    seed: int | None = None,
    env_ids: Sequence[int] | None = None,
    fps: float | None = None,
    max_width: int = 720,
) -> Path:
    """Reset the envs, run them with a policy (default: random actions) and write a .gif or .mp4 file.

    The envs stay open after the last frame. If anything fails, no file is written, and one that was there stays.

    Args:
        envs: A synchronous pool with render_mode="rgb_array".
        path: The file to write.
        policy: Maps the observations of all envs to actions, as rollout() takes it; None for random actions.
        num_frames: The length of the video.
        seed: The seed of the reset, and of random actions.
        env_ids: The envs to record; None for the first 16.
        fps: Frames per second; None for the env's own.
        max_width: Larger frames are shrunk to at most this width.

    Returns:
        The path of the file.
    """
    grid = RecordGrid(envs, path, num_frames=num_frames, env_ids=env_ids, fps=fps, max_width=max_width)
    record_rollout(grid, policy, seed)
    return grid.paths[0]


def record_rollout(
    grid: RecordGrid, policy: Policy | None, seed: int | None, progress: Callable[[float, str], None] | None = None
) -> None:
    """Reset the envs and run them with a policy, or random actions for None, until the video is complete.

    progress: called after each frame with the share that is done, and what is done.
    """
    chosen = BatchPolicy(policy, grid.single_action_space)
    if chosen.is_random:
        grid.action_space.seed(seed)
    starts, ended = np.ones(grid.num_envs, np.bool_), np.zeros(grid.num_envs, np.bool_)

    def first() -> NDArray[np.bool_]:
        return starts

    try:
        obs, _ = grid.reset(seed=seed)
        while grid.recording:
            actions = grid.action_space.sample() if chosen.is_random else as_arrays(chosen.act(obs, first)[0])
            obs, _, terminated, truncated, _ = grid.step(actions)
            if progress is not None:
                progress(1 - grid._left / grid._num_frames, "recording")
            before, ended = ended, terminated | truncated
            starts = before if grid._mode is AutoresetMode.NEXT_STEP else ended
            if grid._mode is AutoresetMode.DISABLED and ended.any():
                obs, _ = grid.env.reset(options={"reset_mask": ended})
    except BaseException:
        grid.discard()
        raise
    grid.stop()
