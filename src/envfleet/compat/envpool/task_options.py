"""EnvPool's options and infos of single tasks that envfleet has under another name, or with one value only.

MuJoCo's envs take Gymnasium's arguments, EnvPool's have names of their own: healthy_z_min and healthy_z_max are one
healthy_z_range here. Where the native env has no such parameter, EnvPool's default is accepted and anything else is
refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from envfleet import _native
from envfleet.building.native_envs import find_entry, load_entry
from envfleet.core.errors import CompileError, ConfigError
from envfleet.core.spec import ArraySpec, EnvSpec
from envfleet.families import dm_control


def _since_5(before: Any, since: Any) -> dict[int, Any]:
    """Return the values by version of a default that changed in version 5 of an env."""
    return {2: before, 3: before, 4: before, 5: since}


_CONTACT = {2: True, 3: True, 4: False, 5: True}
_LEGACY_REWARD = {"legacy_healthy_reward": _since_5(True, False)}
_AT_END = {"reward_if_not_terminated": _since_5(False, True)}
_AFTER_STEP = {"reward_after_step": _since_5(False, True)}
_BODIES = {
    "exclude_worldbody_observations": _since_5(False, True),
    "exclude_root_actuator_forces": _since_5(False, True),
}
_VELOCITY = {"velocity_min": -10.0, "velocity_max": 10.0}
# EnvPool's defaults of the options that some version here lacks, or has under another name. A dict: by version.
_MUJOCO: dict[str, dict[str, Any]] = {
    "Ant": {
        "frame_skip": 5,
        "use_contact_force": _CONTACT,
        **_LEGACY_REWARD,
        "exclude_worldbody_contact_forces": _since_5(False, True),
        "forward_reward_weight": 1.0,
        "healthy_z_min": 0.2,
        "healthy_z_max": 1.0,
        "contact_force_min": -1.0,
        "contact_force_max": 1.0,
    },
    "HalfCheetah": {"frame_skip": 5, "xml_file": "half_cheetah.xml"},
    "Hopper": {
        "frame_skip": 4,
        "xml_file": "hopper.xml",
        **_LEGACY_REWARD,
        **_VELOCITY,
        "healthy_state_min": -100.0,
        "healthy_state_max": 100.0,
        "healthy_angle_min": -0.2,
        "healthy_angle_max": 0.2,
        "healthy_z_min": 0.7,
    },
    "Humanoid": {
        "frame_skip": 5,
        "xml_file": "humanoid.xml",
        **_LEGACY_REWARD,
        **_BODIES,
        "use_contact_force": _CONTACT,
        "healthy_z_min": 1.0,
        "healthy_z_max": 2.0,
        "contact_cost_weight": 5e-7,
        "contact_cost_max": 10.0,
    },
    "HumanoidStandup": {
        "frame_skip": 5,
        "xml_file": "humanoidstandup.xml",
        **_BODIES,
        "forward_reward_weight": 1.0,
        "exclude_current_positions_from_observation": True,
        "ctrl_cost_weight": 0.1,
        "contact_cost_weight": 5e-7,
        "contact_cost_max": 10.0,
        "healthy_reward": 1.0,
        "reset_noise_scale": 0.01,
    },
    "InvertedDoublePendulum": {
        "frame_skip": 5,
        "xml_file": "inverted_double_pendulum.xml",
        **_AT_END,
        "healthy_reward": 10.0,
        "constraint_obs_dim": _since_5(3, 1),
        "healthy_z_max": 1.0,
        "observation_min": -10.0,
        "observation_max": 10.0,
        "reset_noise_scale": 0.1,
    },
    "InvertedPendulum": {
        "frame_skip": 2,
        "xml_file": "inverted_pendulum.xml",
        **_AT_END,
        "healthy_reward": 1.0,
        "healthy_z_min": -0.2,
        "healthy_z_max": 0.2,
        "reset_noise_scale": 0.01,
    },
    "Pusher": {
        "frame_skip": 5,
        "xml_file": _since_5("pusher.xml", "pusher_v5.xml"),
        **_AFTER_STEP,
        "ctrl_cost_weight": 0.1,
        "dist_cost_weight": 1.0,
        "near_cost_weight": 0.5,
        "weighted_reward_info": _since_5(False, True),
        "reset_qvel_scale": 0.005,
        "cylinder_x_min": -0.3,
        "cylinder_x_max": 0.0,
        "cylinder_y_min": -0.2,
        "cylinder_y_max": 0.2,
        "cylinder_dist_min": 0.17,
    },
    "Reacher": {
        "frame_skip": 2,
        "xml_file": "reacher.xml",
        **_AFTER_STEP,
        "ctrl_cost_weight": 1.0,
        "dist_cost_weight": 1.0,
        "obs_include_z_distance": _since_5(True, False),
        "reset_qpos_scale": 0.1,
        "reset_qvel_scale": 0.005,
        "reset_goal_scale": 0.2,
    },
    "Swimmer": {"frame_skip": 4, "xml_file": "swimmer.xml"},
    "Walker2d": {
        "frame_skip": 4,
        "xml_file": _since_5("walker2d.xml", "walker2d_v5.xml"),
        **_LEGACY_REWARD,
        **_VELOCITY,
        "healthy_z_min": 0.8,
        "healthy_z_max": 2.0,
        "healthy_angle_min": -1.0,
        "healthy_angle_max": 1.0,
    },
}
_EVERY_MUJOCO_ENV = {"frame_stack": 1, "gymnasium_v5_render_camera": _since_5(False, True)}
_OTHERS: dict[str, dict[str, Any]] = {
    "Catch": {"height": 10, "width": 5},
    "Pendulum": {"version": {0: 0, 1: 1}},
}
# EnvPool's name of an option, of any env: envfleet's names, of which an env has at most one.
_RENAMED: dict[str, tuple[str, ...]] = {
    "use_contact_force": ("use_contact_forces",),
    "ctrl_cost_weight": ("reward_control_weight",),
    "dist_cost_weight": ("reward_dist_weight",),
    "near_cost_weight": ("reward_near_weight",),
    "contact_cost_weight": ("impact_cost_weight",),
    "contact_cost_max": ("contact_cost_max", "impact_cost_max"),
    "height": ("rows",),
    "width": ("columns",),
}
# Physics steps per step of the task, which is EnvPool's frame_skip. envfleet's counts the steps of the task.
_DMC_FRAME_SKIP = {
    "ball_in_cup": 10,
    "dog": 3,
    "finger": 2,
    "fish": 10,
    "hopper": 4,
    "humanoid": 5,
    "humanoid_CMU": 10,
    "manipulator": 10,
    "quadruped": 4,
    "stacker": 10,
    "swimmer": 15,
    "walker": 10,
}
# EnvPool's infos that have another name in Gymnasium's version 5.
_RENAMED_INFOS: dict[str, dict[str, str]] = {
    "HalfCheetah-v5": {"reward_run": "reward_forward"},
    "Humanoid-v5": {
        "reward_linvel": "reward_forward",
        "reward_quadctrl": "reward_ctrl",
        "reward_alive": "reward_survive",
        "reward_impact": "reward_contact",
    },
    "Swimmer-v5": {"reward_fwd": "reward_forward"},
}
# EnvPool's infos that are zero without contact forces.
_ZERO_INFOS = {"Ant-v4": "reward_contact", "Humanoid-v4": "reward_impact"}


def envpool_defaults(task_id: Any) -> dict[str, Any]:
    """Return EnvPool's defaults of those options of a task that envfleet has in another form, if at all."""
    entry = find_entry(task_id)
    if entry is None:
        return {}
    if entry.native_id in dm_control.all_ids():
        domain, task = dm_control.tasks()[entry.native_id]
        return {"frame_skip": _DMC_FRAME_SKIP.get(domain, 1), "frame_stack": 1, "task_name": task}
    name, _, version = entry.native_id.rpartition("-v")
    options = _OTHERS.get(name, {})
    if name in _MUJOCO:
        options = {**_EVERY_MUJOCO_ENV, **_MUJOCO[name]}
    return {
        option: default[int(version)] if isinstance(default, dict) else default for option, default in options.items()
    }


def to_envfleet(task_id: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Convert EnvPool's options of a task to envfleet's. Raises ConfigError for a value that envfleet does not have."""
    defaults = envpool_defaults(task_id)
    given = [name for name in options if name in defaults]
    parameters = _parameters(task_id) if given else None
    if parameters is None:
        return options
    converted = dict(options)
    for name in given:
        if name in parameters or (name == "frame_stack" and options.get("from_pixels")):
            continue
        value = converted.pop(name)
        own, end = _own_name(name, parameters)
        if own is None:
            if not np.array_equal(value, defaults[name]):
                raise ConfigError(
                    f"{task_id} expected {name}={defaults[name]!r}, the only value that envfleet supports, "
                    f"got {value!r}; leave it out"
                )
        elif own in options:
            raise ConfigError(f"{task_id} expected {own} or EnvPool's {name}, got both; leave one out")
        elif end is None:
            converted[own] = value
        else:
            bounds = list(converted.get(own, parameters[own]))
            bounds[end] = value
            converted[own] = tuple(bounds)
    return converted


def task_config(task_id: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return those options of a task that EnvPool's config has in another form than envfleet's config."""
    config = _of_same_meaning(task_id, config)
    shown = {}
    for name, default in envpool_defaults(task_id).items():
        if name not in config:
            own, end = _own_name(name, config)
            shown[name] = default if own is None else config[own] if end is None else config[own][end]
    return shown


def info_arrays(spec: EnvSpec) -> dict[str, ArraySpec]:
    """Return EnvPool's additional infos of a task: the array that each is a copy of, or one that no env writes."""
    arrays = {array.name: array for array in spec.info_arrays}
    added = {name: arrays[own] for name, own in _RENAMED_INFOS.get(spec.native_id, {}).items() if own in arrays}
    zero = _ZERO_INFOS.get(spec.native_id)
    if zero is not None and spec.config.get("use_contact_forces"):
        added[zero] = arrays["reward_ctrl"]  # where Gymnasium's Ant-v4 reports the contact cost
    elif zero is not None:
        added[zero] = ArraySpec(zero, spaces.Box(-np.inf, np.inf, (), np.float64))
    return added


def _parameters(task_id: str) -> dict[str, Any] | None:
    """Return the parameters of a task's native env and their defaults, or None if the task runs in Python."""
    entry = find_entry(task_id)
    assert entry is not None
    try:
        load_entry(entry)
    except CompileError:  # make() warns
        return None
    parameters = {own["name"]: own["default"] for own in _native.params_of(entry.native_id)}
    return _of_same_meaning(task_id, {**parameters, **entry.params})


def _of_same_meaning(task_id: Any, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out a parameter that has the name of an option of EnvPool's and another meaning."""
    entry = find_entry(task_id)
    is_dm_control = entry is not None and entry.native_id in dm_control.all_ids()
    return {name: value for name, value in parameters.items() if not (is_dm_control and name == "frame_skip")}


def _own_name(name: str, parameters: Mapping[str, Any]) -> tuple[str | None, int | None]:
    """Return envfleet's name of an option, and which end of a range it is, if it is one."""
    for own in _RENAMED.get(name, (name,)):
        if own in parameters:
            return own, None
        if (bound := re.fullmatch(r"(.*)_(min|max)", own)) and f"{bound[1]}_range" in parameters:
            return f"{bound[1]}_range", ("min", "max").index(bound[2])
    return None, None
