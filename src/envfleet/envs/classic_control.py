"""Classic control: Gymnasium's pictures for the native envs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from envfleet.envs.family import Family, Renderer
from envfleet.errors import MissingExtraError

_RENDER_FPS = {
    "CartPole-v0": 50,
    "CartPole-v1": 50,
    "MountainCar-v0": 30,
    "MountainCarContinuous-v0": 30,
    "Pendulum-v1": 30,
    "Acrobot-v1": 15,
}


def _make_renderer(env_id: str, config: Mapping[str, Any]) -> Renderer:
    """Draws with Gymnasium's own renderer on the native env's state."""
    try:
        import pygame  # noqa: F401 (asked for before Gymnasium fails with a message of its own)
    except ImportError as error:
        raise MissingExtraError("pygame", "render", f"drawing {env_id}") from error
    canvas: Any = gymnasium.make(env_id, render_mode="rgb_array", disable_env_checker=True).unwrapped
    canvas.reset(seed=0)

    def draw(attributes: Mapping[str, Any]) -> NDArray[np.uint8]:
        for name, value in attributes.items():
            setattr(canvas, name, value)
        return np.asarray(canvas.render(), dtype=np.uint8)

    return draw


FAMILY = Family("classic control", tuple(_RENDER_FPS), make_renderer=_make_renderer, render_fps=_RENDER_FPS)
