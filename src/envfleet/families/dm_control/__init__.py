"""dm_control's suite: ids such as "cheetah-run", and EnvPool's names for them ("CheetahRun-v1").

All tasks are native: models.py passes dm_control's models to the MuJoCo plug-in. On a Python backend they run
dm_control itself, through env.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from envfleet.core.errors import ConfigError
from envfleet.core.family import Family, Renderer, convert_each

_TASKS = {
    "acrobot": "swingup swingup_sparse",
    "ball_in_cup": "catch",
    "cartpole": "balance balance_sparse swingup swingup_sparse two_poles three_poles",
    "cheetah": "run",
    "dog": "stand walk trot run fetch",
    "finger": "spin turn_easy turn_hard",
    "fish": "upright swim",
    "hopper": "stand hop",
    "humanoid": "stand walk run run_pure_state",
    "humanoid_CMU": "stand walk run",
    "lqr": "lqr_2_1 lqr_6_2",
    "manipulator": "bring_ball bring_peg insert_ball insert_peg",
    "pendulum": "swingup",
    "point_mass": "easy hard",
    "quadruped": "walk run escape fetch",
    "reacher": "easy hard",
    "stacker": "stack_2 stack_4",
    "swimmer": "swimmer6 swimmer15",
    "walker": "stand walk run",
}

_CONTROL_TIMESTEPS = {
    "acrobot": 0.01,
    "ball_in_cup": 0.02,
    "cartpole": 0.01,
    "cheetah": 0.01,
    "dog": 0.015,
    "finger": 0.02,
    "fish": 0.04,
    "hopper": 0.02,
    "humanoid": 0.025,
    "humanoid_CMU": 0.02,
    "lqr": 0.03,
    "manipulator": 0.01,
    "pendulum": 0.02,
    "point_mass": 0.02,
    "quadruped": 0.02,
    "reacher": 0.02,
    "stacker": 0.01,
    "swimmer": 0.03,
    "walker": 0.025,
}


def envpool_name(domain: str, task: str) -> str:
    """Return EnvPool's name of a task: "ball_in_cup", "catch" -> "BallInCupCatch-v1"."""
    words = [*domain.split("_"), *task.split("_")]
    return "".join(word[:1].upper() + word[1:] for word in words) + "-v1"


@cache
def tasks() -> dict[str, tuple[str, str]]:
    """Return the domain and task of every id."""
    pairs = [(domain, task) for domain, names in _TASKS.items() for task in names.split()]
    return {
        **{f"{domain}-{task}": (domain, task) for domain, task in pairs},
        **{envpool_name(domain, task): (domain, task) for domain, task in pairs},
    }


@cache
def all_ids() -> frozenset[str]:
    """Return every id of dm_control 1.0's suite."""
    return frozenset(tasks())


def spec_of(env_id: str) -> GymnasiumSpec:
    """Return the Gymnasium spec of an id. The task enforces its own time limit."""
    domain, task = tasks()[env_id]
    return GymnasiumSpec(
        env_id,
        entry_point="envfleet.families.dm_control.env:DmControlEnv",
        kwargs={"domain_name": domain, "task_name": task},
    )


@cache
def native_ids() -> tuple[str, ...]:
    """Return the ids of the native tasks: all of them."""
    return tuple(tasks())


def _supports_params(params: Mapping[str, Any]) -> bool:
    """Return whether the native env supports these parameters; arguments of the task itself need dm_control."""
    return not params.get("task_kwargs") and all(
        isinstance(own, Mapping) and set(own) <= {"flat_observation"}
        for own in _as_list(params.get("environment_kwargs") or {})
    )


def _translate(params: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the parameters of DmControlEnv to the native env's."""
    if "task" in params:
        raise ConfigError("dm_control expected the task in the id, got the option task; leave it out")
    native = {name: value for name, value in params.items() if name not in ("task_kwargs", "environment_kwargs")}
    if "from_pixels" in native and native["from_pixels"] in (False, 0):
        del native["from_pixels"]  # EnvPool's default; building/pixels.py handles True
    if kwargs := params.get("environment_kwargs"):
        native["flat_observation"] = convert_each(lambda own: own.get("flat_observation", False), kwargs)
    if any(isinstance(own, str) for own in _as_list(native.get("camera_id"))):
        cameras = native.pop("camera_id")
        native["camera_name"] = convert_each(lambda own: own if isinstance(own, str) else "", cameras)
        native["camera_id"] = convert_each(lambda own: 0 if isinstance(own, str) else own, cameras)
    return native


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _load(env_id: str) -> None:
    FAMILY.check_installed(env_id)
    from envfleet.families.dm_control.models import add_model

    add_model(*tasks()[env_id])


def _make_renderer(env_id: str, params: Mapping[str, Any]) -> Renderer:
    from envfleet.families.dm_control.models import make_suite_renderer

    return make_suite_renderer(*tasks()[env_id], params)


FAMILY = Family(
    "dm_control",
    native_ids(),
    package="dm_control",
    extra="dm_control",
    translate=_translate,
    supports_params=_supports_params,
    load=_load,
    make_renderer=_make_renderer,
    render_fps={env_id: round(1 / _CONTROL_TIMESTEPS[tasks()[env_id][0]]) for env_id in native_ids()},
    python_ids=all_ids,
    spec_of=spec_of,
    has_pixels=True,
)
