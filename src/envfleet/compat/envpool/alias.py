"""install(): the module tree `envpool`, made of envfleet's classes and functions."""

from __future__ import annotations

import sys
import warnings
from functools import partial
from types import ModuleType
from typing import Any

from envfleet.compat import gym_stand_in
from envfleet.compat.envpool import array_spec, families, registration
from envfleet.compat.envpool.array_spec import ArraySpec
from envfleet.compat.envpool.env_spec import EnvPoolSpec, __version__
from envfleet.compat.envpool.gym_envpools import GymEnvPool, GymnasiumEnvPool
from envfleet.compat.envpool.pool_mixin import EnvPoolMixin
from envfleet.compat.modules import WITHOUT_GYM, install_tree, installed, remove_tree
from envfleet.core.errors import ConfigError

_INSTALLER = "envfleet.compat.envpool"
_FUNCTIONS = ("list_all_envs", "make", "make_dm", "make_gym", "make_gymnasium", "make_spec", "register")
_DATA = (
    "dm_spec_transform",
    "gym_spec_transform",
    "gymnasium_spec_transform",
    "to_namedtuple",
    "to_nested_dict",
)


def install(*, old_gym: bool = True) -> ModuleType:
    """Install the module tree `envpool`. A second call does nothing.

    old_gym: also install a stand-in for `gym`, unless the real one is installed: EnvPool's users test for its spaces.
    """
    doc = "EnvPool's names, on envfleet."
    is_first = installed("envpool", _INSTALLER) is None
    module = install_tree("envpool", envpool_members(), _INSTALLER, doc, WITHOUT_GYM)
    if old_gym:
        gym_stand_in.install()
    torchrl = sys.modules.get("torchrl.envs.libs.envpool")
    if is_first and torchrl is not None and not getattr(torchrl, "_has_envpool", True):
        warnings.warn(
            "install() was called after torchrl was imported and had found no envpool: its MultiThreadedEnv will "
            "raise; call install(), or import envpool_wrap, before the first import of torchrl",
            RuntimeWarning,
            stacklevel=2,
        )
    return module


def uninstall() -> bool:
    """Remove the tree and the gym stand-in; return True if there was one. Existing pools keep working."""
    was_there = remove_tree("envpool", _INSTALLER)
    gym_stand_in.uninstall()
    return was_there


def envpool_members() -> dict[str, dict[str, Any]]:
    """Return the names of each module of EnvPool's tree, by the module's path."""
    functions = {name: getattr(registration, name) for name in _FUNCTIONS}
    # EnvPool's protocols are for annotations; these are the classes that they describe.
    protocols = {
        "EnvPool": EnvPoolMixin,
        "EnvSpec": EnvPoolSpec,
        "GymEnvPool": GymEnvPool,
        "GymnasiumEnvPool": GymnasiumEnvPool,
        "DMEnvPool": EnvPoolMixin,
    }
    registry_names = {
        "registry": registration.registry,
        "EnvRegistry": registration.EnvRegistry,
        "base_path": registration.base_path,
    }
    members: dict[str, dict[str, Any]] = {
        "": {**functions, **protocols, "__version__": __version__, "__file__": __file__},
        "registration": {**functions, **registry_names},
        "entry": {},
        "python": {},
        "python.api": {**protocols, "py_env": py_env},
        "python.data": {**{name: getattr(array_spec, name) for name in _DATA}, "ArraySpec": ArraySpec},
        "python.dm_envpool": {"DMEnvPoolMixin": EnvPoolMixin},
        "python.env_spec": {"EnvSpecMixin": EnvPoolSpec},
        "python.envpool": {"EnvPoolMixin": EnvPoolMixin},
        "python.gym_envpool": {"GymEnvPoolMixin": GymEnvPool},
        "python.gymnasium_envpool": {"GymnasiumEnvPoolMixin": GymnasiumEnvPool},
        "python.protocol": {**protocols, "ArraySpec": ArraySpec},
        "python.utils": {"check_key_duplication": array_spec.check_key_duplication},
        "mujoco": {},
    }
    for module in families.MODULES:
        members[module] = {
            # Classes are made on first use; `import *` and completion see their names.
            "__getattr__": partial(_family_member, module),
            "__dir__": partial(families.class_names, module),
        }
        members[f"{module}.registration"] = {}
    return members


def py_env(envspec: Any, envpool: Any) -> Any:
    """Raise ConfigError: envfleet has no C++ classes of EnvPool's to wrap."""
    raise ConfigError(
        f"py_env() is not supported: envfleet cannot run C++ classes built for EnvPool, got {envspec!r}; "
        "port the env with envfleet.compile()"
    )


def _family_member(module: str, name: str) -> Any:
    if name == "__all__":
        return families.class_names(module)
    return families.class_of(module, name)
