"""The models of dm_control's suite, for the native tasks and for rendering them.

suite.load() assembles and compiles a model -> its bytes -> the MuJoCo plug-in, under the name of the task
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.core.errors import CompileError
from envfleet.core.family import Renderer
from envfleet.envs.mujoco_plugin import load
from envfleet.envs.mujoco_rendering import OffscreenRenderer, explained_errors
from envfleet.families.dm_control.env import import_suite

_STATE = ("qpos", "qvel", "act")
_MODEL_PREFIX = "model_"  # of the native env's attributes that are arrays of its model
_lock = threading.Lock()


def add_model(domain: str, task: str) -> None:
    """Add the model of a task to the plug-in, unless it has it. Raises CompileError with the reason."""
    plugin = load()
    name = f"{domain}-{task}".encode()
    with _lock:
        plugin.envfleet_dm_control_has_model.argtypes = (ctypes.c_char_p,)
        if plugin.envfleet_dm_control_has_model(name):
            return
        plugin.envfleet_dm_control_set_fused_kernels(*_fused_kernels())
        env = import_suite().load(domain, task)
        model = _model_bytes(env.physics.model.ptr)
        add = plugin.envfleet_dm_control_add_model
        add.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int, ctypes.c_double)
        # dm_control has no public names for these two.
        failed = add(name, model, len(model), env._n_sub_steps, env._step_limit)
        env.close()
    if failed:
        raise CompileError(f"MuJoCo cannot load its own model of {domain}-{task}; reinstall mujoco")


def make_suite_renderer(domain: str, task: str, params: Mapping[str, Any]) -> Renderer:
    """Return a renderer that copies the native env's state into a model of the suite and renders that."""
    env = import_suite().load(domain, task)
    env.reset()  # some tasks hide a part of their model
    model, data = env.physics.model.ptr, env.physics.data.ptr
    camera_id = env.physics.model.name2id(params["camera_name"], "camera") if params["camera_name"] else None
    with explained_errors():
        import mujoco

        renderer = OffscreenRenderer(model, params["height"], params["width"])

    def render(attributes: Mapping[str, Any]) -> NDArray[np.uint8]:
        data.time = attributes["time"]
        for name in _STATE:
            getattr(data, name)[:] = attributes[name]
        for name, value in attributes.items():
            if name.startswith(_MODEL_PREFIX):
                own = getattr(model, name.removeprefix(_MODEL_PREFIX))
                own[:] = np.reshape(value, own.shape)
        with explained_errors():
            mujoco.mj_forward(model, data)
            return renderer.render(model, data, params["camera_id"] if camera_id is None else camera_id)

    return render


def _fused_kernels() -> tuple[bool, bool, bool]:
    """Return whether NumPy's BLAS fuses multiply-adds of two vectors, a vector and a matrix, two matrices."""
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
