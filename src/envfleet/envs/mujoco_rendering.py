"""Rendering of MuJoCo models: of native envs by Gymnasium's envs of the same name, and off screen.

Thread safety: a renderer belongs to the thread that made it; envs.rendering.shared() has one per thread.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from envfleet.core.errors import ConfigError, MissingExtraError
from envfleet.core.family import Renderer

_STATE = ("qpos", "qvel", "act", "mocap_pos", "mocap_quat")
# The error of the first attempt to render in this process, if it failed: MuJoCo ends the process at the second.
_fatal_error: Exception | None = None
_FREE_CAMERA = -1
_MAX_GEOMS = 10_000


def make_renderer(entry_point: str, kwargs: Mapping[str, Any], has_fixed_camera: bool = False) -> Renderer:
    """Return a renderer that copies the native env's state into a Gymnasium env and renders that.

    Gymnasium points its free camera at the bodies when it renders for the first time, and leaves it there.
    has_fixed_camera: at the bodies in the model's initial pose, so that a frame does not depend on an earlier one.
    """
    choose_gl_backend()
    with explained_errors():
        import mujoco

        make: Any = gymnasium.envs.registration.load_env_creator(entry_point)
        env = make(render_mode="rgb_array", **_as_arrays(kwargs))

    if has_fixed_camera:
        with explained_errors():
            env.set_state(env.init_qpos, env.init_qvel)
            env.render()

    def render(attributes: Mapping[str, Any]) -> NDArray[np.uint8]:
        global _fatal_error
        if _fatal_error is not None:
            with explained_errors():
                raise _fatal_error
        env.data.time = attributes["time"]
        for name in _STATE:
            own = getattr(env.data, name)
            own[:] = np.reshape(attributes[name], own.shape)
        with explained_errors():
            mujoco.mj_forward(env.model, env.data)
            try:
                viewer = env.mujoco_renderer.viewer
                if viewer is not None:  # another renderer of this thread may have made its own current
                    viewer.make_context_current()
                return np.array(env.render(), dtype=np.uint8)
            except mujoco.FatalError as error:
                _fatal_error = error
                raise

    return render


class OffscreenRenderer:
    """Renders any model with the same meshes and textures as the one it was made for, in its own GL context."""

    def __init__(self, model: Any, height: int, width: int) -> None:
        choose_gl_backend()
        import mujoco

        # Not mujoco.GLContext, which is chosen when mujoco is imported, possibly before choose_gl_backend().
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

    def render(self, model: Any, data: Any, camera_id: int) -> NDArray[np.uint8]:
        """Return what this camera sees; -1 is the free camera."""
        import mujoco

        self._gl.make_current()
        for field in range(model.nhfield):  # a task may generate a new terrain for each episode
            mujoco.mjr_uploadHField(model, self._context, field)
        camera = mujoco.MjvCamera()
        if camera_id == _FREE_CAMERA:
            mujoco.mjv_defaultFreeCamera(model, camera)
        else:
            camera.type, camera.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, camera_id
        everything = mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(model, data, self._option, self._perturbation, camera, everything, self._scene)
        mujoco.mjr_render(self._area, self._scene, self._context)
        frame = np.empty(self._shape, np.uint8)
        mujoco.mjr_readPixels(frame, None, self._area, self._context)
        return frame[::-1]  # OpenGL's first row is the lowest


@contextmanager
def explained_errors() -> Iterator[None]:
    """Raise MissingExtraError or a ConfigError with the remedy for an error of the graphics stack."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "mujoco", "mujoco", "rendering this env") from error
    except Exception as error:  # each of the libraries raises its own errors, AttributeError among them
        raise ConfigError(
            f"MuJoCo cannot render with MUJOCO_GL={os.environ.get('MUJOCO_GL')!r}: {error}; check the rendering "
            "parameters; without a display it needs MUJOCO_GL=egl and libegl1 with a driver, or MUJOCO_GL=osmesa and "
            "libosmesa6"
        ) from error


def choose_gl_backend() -> None:
    """Select EGL, which renders in memory, if there is no display and MUJOCO_GL is not set."""
    if not os.environ.get("DISPLAY") and not os.environ.get("WAYLAND_DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")


def _as_arrays(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Convert parameters back that were JSON in the native env: lists to arrays, keys to integers."""
    plain = dict(kwargs)
    if plain.get("default_camera_config"):
        camera = plain["default_camera_config"].items()
        plain["default_camera_config"] = {k: np.array(v) if isinstance(v, list) else v for k, v in camera}
    if plain.get("visual_options"):
        plain["visual_options"] = {int(flag): bool(value) for flag, value in plain["visual_options"].items()}
    return plain
