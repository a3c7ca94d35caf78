"""Gymnasium's own renderers, drawing the state of native envs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from envfleet.envs.family import Renderer
from envfleet.errors import MissingExtraError


def gymnasium_renderer(
    entry_point: str,
    kwargs: Mapping[str, Any],
    to_gymnasium: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda attributes: attributes,
) -> Renderer:
    """A renderer that gives a Gymnasium env the native env's attributes and lets it draw.

    entry_point: "module:Class", since a native id need not be one of the installed
    Gymnasium's. to_gymnasium turns a native env's attributes into the Gymnasium env's.
    """
    try:
        import pygame  # noqa: F401 (asked for here, before Gymnasium fails with a message of its own)
    except ImportError as error:
        raise MissingExtraError("pygame", "render", "drawing this env") from error
    if not os.environ.get("DISPLAY") and not os.environ.get("WAYLAND_DISPLAY"):
        # SDL looks for a screen even when it draws in memory, and complains where there is none.
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    make: Any = gymnasium.envs.registration.load_env_creator(entry_point)
    canvas = make(render_mode="rgb_array", **kwargs)
    canvas.reset(seed=0)

    def draw(attributes: Mapping[str, Any]) -> NDArray[np.uint8]:
        for name, value in to_gymnasium(attributes).items():
            setattr(canvas, name, value)
        # A copy: Gymnasium hands out views of the surface that the next picture is drawn on.
        return np.array(canvas.render(), dtype=np.uint8)

    return draw
