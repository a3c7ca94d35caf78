"""The models of dm_control's suite for its native tasks, and pictures of them.

suite.load() assembles and compiles a model -> its bytes -> the plug-in, by the name of the task
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.envs.dm_control_env import _suite
from envfleet.envs.family import Renderer
from envfleet.envs.mujoco_canvas import Canvas
from envfleet.envs.mujoco_files import asset_folder
from envfleet.envs.mujoco_pictures import explained
from envfleet.envs.mujoco_plugin import load
from envfleet.errors import CompileError

_DRAWN = ("qpos", "qvel", "act")
_OF_MODEL = "model_"  # how the native env names the arrays of its model that change
_lock = threading.Lock()


def add_model(domain: str, task: str) -> None:
    """Gives the plug-in the model of a task, unless it has it. Raises CompileError with the reason."""
    plugin = load(asset_folder())
    name = f"{domain}-{task}".encode()
    with _lock:
        plugin.envfleet_dm_control_has_model.argtypes = (ctypes.c_char_p,)
        if plugin.envfleet_dm_control_has_model(name):
            return
        plugin.envfleet_dm_control_set_fused_kernels(*_fused_kernels())
        env = _suite().load(domain, task)
        model = _model_bytes(env.physics.model.ptr)
        add = plugin.envfleet_dm_control_add_model
        add.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int, ctypes.c_double)
        # dm_control has no public names for these two.
        failed = add(name, model, len(model), env._n_sub_steps, env._step_limit)
        env.close()
    if failed:
        raise CompileError(f"MuJoCo cannot load its own model of {domain}-{task}; install mujoco again")


def make_suite_renderer(domain: str, task: str, params: Mapping[str, Any]) -> Renderer:
    """A renderer that gives a model of the suite the native env's state and draws it."""
    env = _suite().load(domain, task)
    env.reset()  # some tasks hide a part of their model
    model, data = env.physics.model.ptr, env.physics.data.ptr
    camera_id = env.physics.model.name2id(params["camera_name"], "camera") if params["camera_name"] else None
    with explained():
        import mujoco

        canvas = Canvas(model, params["height"], params["width"])

    def draw(attributes: Mapping[str, Any]) -> NDArray[np.uint8]:
        data.time = attributes["time"]
        for name in _DRAWN:
            getattr(data, name)[:] = attributes[name]
        for name, value in attributes.items():
            if name.startswith(_OF_MODEL):
                own = getattr(model, name.removeprefix(_OF_MODEL))
                own[:] = np.reshape(value, own.shape)
        with explained():
            mujoco.mj_forward(model, data)
            return canvas.draw(model, data, params["camera_id"] if camera_id is None else camera_id)

    return draw


def _fused_kernels() -> tuple[bool, bool, bool]:
    """Whether numpy's BLAS fuses multiply-adds here: of two vectors, a vector and a matrix, two matrices."""
    # Unfused, the second product is rounded to the negative of the first, and the sum is 0.
    near_one = 1 + 2.0**-30
    row = np.array([1.0, near_one, 0.0])
    column = np.array([-(1 + 2.0**-29), near_one, 0.0])
    rows, columns = np.tile(row, (3, 1)), np.ascontiguousarray(np.tile(column, (3, 1)).T)
    return bool(row.dot(column)), bool(row.dot(columns)[0]), bool(rows.dot(columns)[0, 0])


def _model_bytes(model: Any) -> bytes:
    import mujoco

    buffer = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, buffer)
    return buffer.tobytes()
