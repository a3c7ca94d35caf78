"""MuJoCo: Gymnasium's envs, native, with what their parameters and pictures need in Python.

Cheap to import: MuJoCo's library and the plug-in with the envs are loaded when one is made.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from envfleet.envs.family import Family, Renderer
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
# By name; of version 4 and 5 alike.
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
# Pusher-v4 is left to Gymnasium, which refuses it: its model works with MuJoCo 2 alone.
IDS = tuple(f"{name}-v{version}" for name in _ENV_CLASSES for version in (4, 5) if (name, version) != ("Pusher", 4))
# Parameters that only the renderer reads, and what stands for None in the native env.
_FOR_PICTURES = {"width": 0, "height": 0, "camera_id": -2, "camera_name": "", "max_geom": 0}
_AS_JSON = ("default_camera_config", "visual_options")


def asset_folder() -> Path:
    """The folder of Gymnasium's XML files."""
    return Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets"


def _translate(params: Mapping[str, Any]) -> dict[str, Any]:
    """Gymnasium's arguments as the native env takes them: full paths, no None, dicts as text."""
    native = dict(params)
    for name, convert in _CONVERSIONS.items():
        if name in native:
            native[name] = _each(convert, native[name])
    if "xml_file" in native:
        native["xml_stamp"] = _each(_stamp, native["xml_file"])
    return {name: value for name, value in native.items() if value is not None}


def _each(convert: Callable[[Any], Any], value: Any) -> Any:
    """One value, or a list of one for each env."""
    return [convert(own) for own in value] if isinstance(value, (list, tuple)) else convert(value)


def _full_path(xml_file: Any) -> Any:
    if not isinstance(xml_file, (str, os.PathLike)):
        return xml_file
    path = os.fspath(xml_file)
    # As Gymnasium reads it: a bare name is one of its own files.
    is_own = isinstance(path, str) and not path.startswith((".", "/", "~"))
    return str(asset_folder() / path) if is_own else os.path.abspath(os.path.expanduser(path))


def _stamp(path: Any) -> str:
    """What a file is now, as native/mujoco/model.cc writes it: a pool's envs are all of the same model."""
    try:
        found = os.stat(path)
    except (OSError, TypeError, ValueError):
        return ""  # the native env says what is wrong
    return f"{found.st_mtime_ns}:{found.st_size}"


def _as_json(value: Any) -> str:
    if isinstance(value, Mapping) or value is None:
        try:
            return json.dumps(value, default=_plain)
        except (TypeError, ValueError):
            pass
    raise ConfigError(
        f"{' and '.join(_AS_JSON)} expected a dict of numbers and arrays, got {type(value).__name__}: {value!r}"
    )


def _plain(value: Any) -> Any:
    """Arrays and numpy's numbers, which JSON has no names for."""
    return np.asarray(value).tolist() if isinstance(value, (np.ndarray, np.generic)) else str(value)


_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "xml_file": _full_path,
    "main_body": lambda body: body if isinstance(body, bool) else str(body),
    "default_camera_config": _as_json,
    "visual_options": lambda flags: None if flags is None else _as_json(flags),
}


def _make_renderer(native_id: str, params: Mapping[str, Any]) -> Renderer:
    from envfleet.envs.mujoco_pictures import make_renderer

    name, version = native_id.rsplit("-v", 1)
    module, class_name = _ENV_CLASSES[name].split(":")
    kwargs = {key: params[key] for key, none in _FOR_PICTURES.items() if params[key] != none}
    for key in _AS_JSON:
        if params.get(key):
            kwargs[key] = json.loads(params[key])
    if "xml_file" in params:
        kwargs["xml_file"] = params["xml_file"]
    return make_renderer(f"gymnasium.envs.mujoco.{module}_v{version}:{class_name}", kwargs)


def _load() -> None:
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
)
