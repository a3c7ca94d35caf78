"""MuJoCo: native versions of Gymnasium's envs and of gym's older ones.

model_files.py reads the models' XML files; envs/mujoco_plugin.py finds or builds the plug-in that contains the envs,
and envs/mujoco_rendering.py renders them. Cheap to import: MuJoCo's library and the plug-in are loaded when an env is
made.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from envfleet.core.errors import ConfigError
from envfleet.core.family import Family, Renderer, convert_each
from envfleet.families.mujoco.model_files import full_path, stamp

_ENV_CLASSES = {
    "Ant": "ant:AntEnv",
    "HalfCheetah": "half_cheetah:HalfCheetahEnv",
    "Hopper": "hopper:HopperEnv",
    "Humanoid": "humanoid:HumanoidEnv",
    "HumanoidStandup": "humanoidstandup:HumanoidStandupEnv",
    "InvertedDoublePendulum": "inverted_double_pendulum:InvertedDoublePendulumEnv",
    "InvertedPendulum": "inverted_pendulum:InvertedPendulumEnv",
    "Pusher": "pusher:PusherEnv",
    "Reacher": "reacher:ReacherEnv",
    "Swimmer": "swimmer:SwimmerEnv",
    "Walker2d": "walker2d:Walker2dEnv",
}
# By name; the same for all versions.
_RENDER_FPS = {
    "Ant": 20,
    "HalfCheetah": 20,
    "Hopper": 125,
    "Humanoid": 67,
    "HumanoidStandup": 67,
    "InvertedDoublePendulum": 20,
    "InvertedPendulum": 25,
    "Pusher": 20,
    "Reacher": 50,
    "Swimmer": 25,
    "Walker2d": 125,
}
# Envs that have a version 3 in gym. Gymnasium only has versions 4 and 5.
_WITH_VERSION_3 = ("Ant", "HalfCheetah", "Hopper", "Humanoid", "Swimmer", "Walker2d")
IDS = tuple(
    f"{name}-v{version}" for name in _ENV_CLASSES for version in (2, 3, 4, 5) if version != 3 or name in _WITH_VERSION_3
)
# Parameters that only the renderer reads, and the value that means None in the native env.
_RENDER_PARAMS = {"width": None, "height": None, "camera_id": -2, "camera_name": "", "max_geom": None}
_AS_JSON = ("default_camera_config", "visual_options")
# Parameters that Gymnasium lets be None, which is their default.
_MAY_BE_NONE = frozenset((*_RENDER_PARAMS, "visual_options"))


def _translate(params: Mapping[str, Any]) -> dict[str, Any]:
    """Convert Gymnasium's arguments to the native env's: full paths, no None, dicts as JSON."""
    native = dict(params)
    if "from_pixels" in native and native["from_pixels"] in (False, 0):
        del native["from_pixels"]  # EnvPool's default; building/pixels.py handles True
    for name, convert in _CONVERSIONS.items():
        if name in native:
            native[name] = convert_each(convert, native[name])
    if "xml_file" in native:
        known_stamp = cache(stamp)  # a list may name one file for many envs
        # The native env rejects what is not a path.
        native["xml_stamp"] = convert_each(
            lambda own: known_stamp(own) if isinstance(own, str) else "", native["xml_file"]
        )
    return {name: value for name, value in native.items() if value is not None or name not in _MAY_BE_NONE}


def _as_json(value: Any) -> str:
    if isinstance(value, Mapping) or value is None:
        try:
            named = value and {key if isinstance(key, str) else operator.index(key): own for key, own in value.items()}
            return json.dumps(named, default=_plain)
        except (TypeError, ValueError):
            pass
    raise ConfigError(
        f"{' and '.join(_AS_JSON)} expected a dict of numbers and arrays, got {type(value).__name__}: {value!r}"
    )


def _plain(value: Any) -> Any:
    """Convert arrays, NumPy scalars and MuJoCo's enums to what JSON can hold. Raises TypeError."""
    return np.asarray(value).tolist() if isinstance(value, (np.ndarray, np.generic)) else operator.index(value)


_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "xml_file": full_path,
    "main_body": lambda body: body if isinstance(body, bool) else str(body),
    "default_camera_config": _as_json,
    "visual_options": lambda flags: None if flags is None else _as_json(flags),
}


def _make_renderer(native_id: str, params: Mapping[str, Any], has_fixed_camera: bool = False) -> Renderer:
    from envfleet.envs.mujoco_rendering import make_renderer

    name, version = native_id.rsplit("-v", 1)
    module, class_name = _ENV_CLASSES[name].split(":")
    class_version = 4 if version == "4" and name != "Pusher" else 5  # the others have no class, or one that raises
    kwargs = {key: params[key] for key, none in _RENDER_PARAMS.items() if params[key] != none}
    for key in _AS_JSON:
        if params.get(key):
            kwargs[key] = json.loads(params[key])
    if native_id == "Pusher-v4":
        kwargs["xml_file"] = "pusher.xml"
    if "xml_file" in params:
        kwargs["xml_file"] = params["xml_file"]
        if params["xml_stamp"] not in ("", stamp(params["xml_file"])):
            raise ConfigError(f"{params['xml_file']} has changed since the pool was made; make a new pool to render it")
    return make_renderer(f"gymnasium.envs.mujoco.{module}_v{class_version}:{class_name}", kwargs, has_fixed_camera)


def _make_shared_renderer(native_id: str, params: Mapping[str, Any]) -> Renderer:
    return _make_renderer(native_id, params, has_fixed_camera=True)


def _load(native_id: str) -> None:
    from envfleet.envs.mujoco_plugin import load

    load()


FAMILY = Family(
    "MuJoCo",
    IDS,
    package="mujoco",
    extra="mujoco",
    translate=_translate,
    load=_load,
    make_renderer=_make_renderer,
    render_fps={env_id: _RENDER_FPS[env_id[:-3]] for env_id in IDS},
    native_only=frozenset(env_id for env_id in IDS if env_id.endswith(("-v2", "-v3")) or env_id == "Pusher-v4"),
    make_shared_renderer=_make_shared_renderer,
    has_pixels=True,
)
