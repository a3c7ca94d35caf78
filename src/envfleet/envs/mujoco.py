"""MuJoCo: Gymnasium's envs and gym's older versions of them, native, with what their parameters and pictures need.

Cheap to import: MuJoCo's library and the plug-in with the envs are loaded when one is made.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from envfleet.envs.family import Family, Renderer
from envfleet.envs.mujoco_files import asset_folder, full_path, stamp
from envfleet.errors import ConfigError

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
# By name; of all versions alike.
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
# Those that gym wrote a version 3 for. Gymnasium has versions 4 and 5 alone.
_WITH_VERSION_3 = ("Ant", "HalfCheetah", "Hopper", "Humanoid", "Swimmer", "Walker2d")
IDS = tuple(
    f"{name}-v{version}" for name in _ENV_CLASSES for version in (2, 3, 4, 5) if version != 3 or name in _WITH_VERSION_3
)
# Parameters that only the renderer reads, and what stands for None in the native env.
_FOR_PICTURES = {"width": None, "height": None, "camera_id": -2, "camera_name": "", "max_geom": None}
_AS_JSON = ("default_camera_config", "visual_options")
# Where Gymnasium takes None, it is the default.
_MAY_BE_NONE = frozenset((*_FOR_PICTURES, "visual_options"))


def _translate(params: Mapping[str, Any]) -> dict[str, Any]:
    """Gymnasium's arguments as the native env takes them: full paths, no None, dicts as text."""
    native = dict(params)
    if "from_pixels" in native and native["from_pixels"] in (False, 0):
        del native["from_pixels"]  # EnvPool's default; True is for envs/pixels.py
    for name, convert in _CONVERSIONS.items():
        if name in native:
            native[name] = _each(convert, native[name])
    if "xml_file" in native:
        known_stamp = cache(stamp)  # a list may name one file for many envs
        # What is no path the native env refuses.
        native["xml_stamp"] = _each(lambda own: known_stamp(own) if isinstance(own, str) else "", native["xml_file"])
    return {name: value for name, value in native.items() if value is not None or name not in _MAY_BE_NONE}


def _each(convert: Callable[[Any], Any], value: Any) -> Any:
    """One value, or a list of one for each env."""
    return [convert(own) for own in value] if isinstance(value, (list, tuple)) else convert(value)


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
    """Arrays, numpy's numbers and MuJoCo's enums, which JSON has no names for. Raises TypeError."""
    return np.asarray(value).tolist() if isinstance(value, (np.ndarray, np.generic)) else operator.index(value)


_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "xml_file": full_path,
    "main_body": lambda body: body if isinstance(body, bool) else str(body),
    "default_camera_config": _as_json,
    "visual_options": lambda flags: None if flags is None else _as_json(flags),
}


def _make_renderer(native_id: str, params: Mapping[str, Any], has_fixed_camera: bool = False) -> Renderer:
    from envfleet.envs.mujoco_pictures import make_renderer

    name, version = native_id.rsplit("-v", 1)
    module, class_name = _ENV_CLASSES[name].split(":")
    drawn_as = 4 if version == "4" and name != "Pusher" else 5  # the others have no class, or one that refuses
    kwargs = {key: params[key] for key, none in _FOR_PICTURES.items() if params[key] != none}
    for key in _AS_JSON:
        if params.get(key):
            kwargs[key] = json.loads(params[key])
    if native_id == "Pusher-v4":
        kwargs["xml_file"] = "pusher.xml"
    if "xml_file" in params:
        kwargs["xml_file"] = params["xml_file"]
        if params["xml_stamp"] not in ("", stamp(params["xml_file"])):
            raise ConfigError(f"{params['xml_file']} was changed since the pool was made; make a new one to draw it")
    return make_renderer(f"gymnasium.envs.mujoco.{module}_v{drawn_as}:{class_name}", kwargs, has_fixed_camera)


def _make_shared_renderer(native_id: str, params: Mapping[str, Any]) -> Renderer:
    return _make_renderer(native_id, params, has_fixed_camera=True)


def _load(native_id: str) -> None:
    from envfleet.envs.mujoco_plugin import load

    load(asset_folder())


FAMILY = Family(
    "MuJoCo",
    IDS,
    _translate,
    _make_renderer,
    {env_id: _RENDER_FPS[env_id[:-3]] for env_id in IDS},
    load=_load,
    extra="mujoco",
    native_only=frozenset(env_id for env_id in IDS if env_id.endswith(("-v2", "-v3")) or env_id == "Pusher-v4"),
    make_shared_renderer=_make_shared_renderer,
)
