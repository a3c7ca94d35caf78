"""Canvas: off-screen pictures of a MuJoCo model, one GL context for all envs of a thread that draw the same model.

Thread safety: a canvas belongs to the thread that made it; shared() gives each thread its own.
"""

from __future__ import annotations

import importlib
import os
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from envfleet.envs.mujoco_pictures import choose_gl

T = TypeVar("T")
_FREE_CAMERA = -1
_MAX_GEOMS = 10_000
_local = threading.local()


def shared(key: Hashable, make: Callable[[], T]) -> T:
    """What make() gives, made once for all callers of this thread that hold it under the same key."""
    # A GL context is current in one thread, and lost in a forked child.
    if getattr(_local, "pid", None) != os.getpid():
        _local.pid, _local.known = os.getpid(), weakref.WeakValueDictionary()
    found: T | None = _local.known.get(key)
    if found is None:
        found = _local.known[key] = make()
    return found


class Canvas:
    """Draws any model with the same meshes and textures as the one that it was made for."""

    def __init__(self, model: Any, height: int, width: int) -> None:
        choose_gl()
        import mujoco

        # Not mujoco.GLContext, which is chosen when mujoco is imported: that may have been before choose_gl().
        backend = os.environ.get("MUJOCO_GL", "").strip().lower() or "glfw"
        self._gl: Any = importlib.import_module(f"mujoco.{backend}").GLContext(width, height)
        self._gl.make_current()
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_150)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        if width > self._context.offWidth or height > self._context.offHeight:
            size = max(width, self._context.offWidth), max(height, self._context.offHeight)
            mujoco.mjr_resizeOffscreen(*size, self._context)
        self._area = mujoco.MjrRect(0, 0, width, height)
        self._scene = mujoco.MjvScene(model, _MAX_GEOMS)
        self._option, self._perturbation = mujoco.MjvOption(), mujoco.MjvPerturb()
        self._shape = (height, width, 3)

    def draw(self, model: Any, data: Any, camera_id: int) -> NDArray[np.uint8]:
        """What this camera sees; -1 is the free one."""
        import mujoco

        self._gl.make_current()
        for field in range(model.nhfield):  # a task may draw a new landscape for each episode
            mujoco.mjr_uploadHField(model, self._context, field)
        camera = mujoco.MjvCamera()
        if camera_id == _FREE_CAMERA:
            mujoco.mjv_defaultFreeCamera(model, camera)
        else:
            camera.type, camera.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, camera_id
        everything = mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(model, data, self._option, self._perturbation, camera, everything, self._scene)
        mujoco.mjr_render(self._area, self._scene, self._context)
        picture = np.empty(self._shape, np.uint8)
        mujoco.mjr_readPixels(picture, None, self._area, self._context)
        return picture[::-1]  # OpenGL's first row is the lowest
