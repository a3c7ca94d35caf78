"""Renderers of native envs: Gymnasium's own rendering code, and renderers that the envs of a thread share."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from envfleet.core.errors import MissingExtraError
from envfleet.core.family import Renderer

T = TypeVar("T")
_local = threading.local()


def shared(key: Hashable, make: Callable[[], T]) -> T:
    """Return the renderer of this key, which all callers of this thread share until the last one drops it."""
    # A GL context is current in one thread, and lost in a forked child.
    if getattr(_local, "pid", None) != os.getpid():
        _local.pid, _local.renderers = os.getpid(), weakref.WeakValueDictionary()
    renderer: T | None = _local.renderers.get(key)
    if renderer is None:
        renderer = _local.renderers[key] = make()
    return renderer


def gymnasium_renderer(
    entry_point: str,
    kwargs: Mapping[str, Any],
    to_gymnasium: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda attributes: attributes,
) -> Renderer:
    """Return a renderer that copies the native env's attributes into a Gymnasium env and renders that.

    entry_point: "module:Class", since the installed Gymnasium may not have the native id. to_gymnasium converts the
    native env's attributes to the Gymnasium env's.
    """
    try:
        import pygame  # noqa: F401 (imported here, before Gymnasium fails with a message of its own)
    except ImportError as error:
        raise MissingExtraError("pygame", "render", "rendering this env") from error
    if not os.environ.get("DISPLAY") and not os.environ.get("WAYLAND_DISPLAY"):
        # SDL looks for a display even if it renders in memory, and complains if there is none.
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    make: Any = gymnasium.envs.registration.load_env_creator(entry_point)
    env = make(render_mode="rgb_array", **kwargs)
    env.reset(seed=0)

    def render(attributes: Mapping[str, Any]) -> NDArray[np.uint8]:
        for name, value in to_gymnasium(attributes).items():
            setattr(env, name, value)
        # A copy: Gymnasium returns a view of the surface on which it renders the next frame.
        return np.array(env.render(), dtype=np.uint8)

    return render
