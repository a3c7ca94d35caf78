"""Pictures of native MuJoCo envs, drawn by Gymnasium's envs of the same name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from envfleet.envs.family import Renderer
from envfleet.errors import ConfigError, MissingExtraError

_DRAWN = ("qpos", "qvel", "act", "mocap_pos", "mocap_quat")
# Of a first attempt to draw in this process that MuJoCo gave up: it ends the process at the second.
_fatal_error: Exception | None = None


def make_renderer(entry_point: str, kwargs: Mapping[str, Any], has_fixed_camera: bool = False) -> Renderer:
    """A renderer that gives a Gymnasium env the native env's state and lets it draw.

    Gymnasium points its free camera at the bodies where they are when it draws for the first time, and leaves it there.
    has_fixed_camera: at the bodies of the model's own pose, so that a picture does not depend on an earlier one.
    """
    choose_gl()
    with explained():
        import mujoco

        make: Any = gymnasium.envs.registration.load_env_creator(entry_point)
        canvas = make(render_mode="rgb_array", **_as_arrays(kwargs))

    if has_fixed_camera:
        with explained():
            canvas.set_state(canvas.init_qpos, canvas.init_qvel)
            canvas.render()

    def draw(attributes: Mapping[str, Any]) -> NDArray[np.uint8]:
        global _fatal_error
        if _fatal_error is not None:
            with explained():
                raise _fatal_error
        canvas.data.time = attributes["time"]
        for name in _DRAWN:
            own = getattr(canvas.data, name)
            own[:] = np.reshape(attributes[name], own.shape)
        with explained():
            mujoco.mj_forward(canvas.model, canvas.data)
            try:
                viewer = canvas.mujoco_renderer.viewer
                if viewer is not None:  # another renderer of this thread may have drawn since
                    viewer.make_context_current()
                return np.array(canvas.render(), dtype=np.uint8)
            except mujoco.FatalError as error:
                _fatal_error = error
                raise

    return draw


@contextmanager
def explained() -> Iterator[None]:
    """Turns what goes wrong between here and the graphics driver into a sentence."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "mujoco", "mujoco", "drawing this env") from error
    except Exception as error:  # each of the libraries has errors of its own, AttributeError among them
        raise ConfigError(
            f"MuJoCo cannot draw with MUJOCO_GL={os.environ.get('MUJOCO_GL')!r}: {error}; check the "
            "parameters for pictures; without a screen it needs MUJOCO_GL=egl and libegl1 with a driver, or "
            "MUJOCO_GL=osmesa and libosmesa6"
        ) from error


def choose_gl() -> None:
    """Without a screen there are no windows to draw in; egl and osmesa draw in memory."""
    if not os.environ.get("DISPLAY") and not os.environ.get("WAYLAND_DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")


def _as_arrays(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """What was JSON on its way through the native env: lists as arrays, numbers as keys."""
    plain = dict(kwargs)
    if plain.get("default_camera_config"):
        camera = plain["default_camera_config"].items()
        plain["default_camera_config"] = {k: np.array(v) if isinstance(v, list) else v for k, v in camera}
    if plain.get("visual_options"):
        plain["visual_options"] = {int(flag): bool(value) for flag, value in plain["visual_options"].items()}
    return plain
