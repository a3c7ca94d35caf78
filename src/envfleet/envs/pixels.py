"""Pixel observations of MuJoCo and dm_control envs: EnvPool's from_pixels=True.

The env runs as a Python env: the native env, or dm_control's, is stepped, and a renderer produces the observation. All
envs of a worker share one renderer, so that a pool has one GL context per worker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.core.errors import ConfigError
from envfleet.core.option_checks import integer_option

_MAX_SIZE = 2**14
# EnvPool's names and defaults. render_camera_id -1 is the camera of render().
DEFAULTS = {"render_width": 84, "render_height": 84, "render_camera_id": -1, "frame_stack": 1}


def make_pixel_env(of: str, from_pixels: bool = True, render_mode: str | None = None, **params: Any) -> PixelEnv:
    """Make the env of the entry point `of`, with pixel observations. render() returns frames of the same size."""
    if render_mode not in (None, "rgb_array"):
        raise ConfigError(f"render_mode expected 'rgb_array' or None, got {render_mode!r}")
    sizes = pixel_sizes(params)
    own = {name: value for name, value in params.items() if name not in DEFAULTS}
    if sizes["render_camera_id"] >= 0:
        own["camera_id"] = sizes["render_camera_id"]
    make: Any = gymnasium.envs.registration.load_env_creator(of)
    env = make(render_mode="rgb_array", width=sizes["render_width"], height=sizes["render_height"], **own)
    return PixelEnv(env, sizes["render_height"], sizes["render_width"], sizes["frame_stack"])


class PixelEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Observations are the last frame_stack frames, the newest last: uint8 of (3 * frame_stack, height, width)."""

    def __init__(self, env: Any, height: int, width: int, frame_stack: int) -> None:
        super().__init__(env)
        self._frames: deque[NDArray[np.uint8]] = deque(maxlen=frame_stack)
        self.observation_space = spaces.Box(0, 255, (3 * frame_stack, height, width), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the env and fill the stack with its first frame."""
        _, info = self.env.reset(seed=seed, options=options)
        self._frames.extend([self._frame()] * (self._frames.maxlen or 1))
        return np.concatenate(self._frames), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the env and render it once."""
        _, reward, terminated, truncated, info = self.env.step(action)
        self._frames.append(self._frame())
        return np.concatenate(self._frames), reward, terminated, truncated, info

    def _frame(self) -> NDArray[np.uint8]:
        return np.moveaxis(np.asarray(self.env.render()), 2, 0)


def pixel_sizes(params: Mapping[str, Any]) -> dict[str, int]:
    """Return the checked parameters of DEFAULTS, by name."""
    for name in ("height", "width"):
        if name in params:
            raise ConfigError(
                f"from_pixels=True expected the size of the images as render_height and render_width, got {name}"
            )
    limits = {"render_camera_id": (-1, 2**15), "frame_stack": (1, 2**10)}
    return {
        name: integer_option(name, params.get(name, default), *limits.get(name, (1, _MAX_SIZE)))
        for name, default in DEFAULTS.items()
    }
