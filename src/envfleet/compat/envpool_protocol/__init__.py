"""envpool_wrapper's names: Python envs of five methods, behind EnvPool's API, without a compiler.

    import envfleet.compat.envpool_protocol
    envfleet.compat.envpool_protocol.install()

    from envpool_protocol.envpool_protocol import EnvPoolProtocol
    from envpool_protocol.manager import EnvManager, CppWrapperGenerator

and later, in this process or another, `import envpool_wrap as envpool`.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from pathlib import Path
from typing import Any

from envfleet.compat import envpool_wrap, gym_stand_in
from envfleet.compat.envpool import envpool_members
from envfleet.compat.envpool_protocol.registry import forget, import_path_of, registry_file, remember, task_id_of
from envfleet.compat.modules import WITHOUT_GYM, install_tree, installed, remove_tree
from envfleet.core.errors import ConfigError

__all__ = ["CppWrapperGenerator", "EnvManager", "EnvPoolProtocol", "forget", "install", "registry_file", "uninstall"]

_MARK = "# Written by envfleet.compat.envpool_protocol; safe to delete.\n"
_WRAP_FILE = f'''{_MARK}"""The registered Python envs behind EnvPool's API, for `import envpool_wrap` in this folder."""

import sys

from envfleet.compat.envpool import register
from envfleet.compat.envpool_wrap import *
from envfleet.compat.envpool_wrap import __version__, provide_envpool

provide_envpool()
registration = sys.modules[f"{{__name__}}.registration"] = sys.modules[__name__]
'''


class EnvPoolProtocol:
    """The five methods. Order: step or reset, then the observation, done, the reward."""

    def _step_envpool(self, act: Any) -> None:
        """Step the env."""
        raise NotImplementedError

    def _reset_envpool(self) -> None:
        """Reset the env."""
        raise NotImplementedError

    def _make_obs_envpool(self) -> Any:
        """Return the observation."""
        raise NotImplementedError

    def _reward_envpool(self) -> float:
        """Return the reward of the last step."""
        raise NotImplementedError

    def _done_envpool(self) -> bool:
        """Return whether the episode has ended."""
        raise NotImplementedError


_METHODS = tuple(name for name in vars(EnvPoolProtocol) if name.endswith("_envpool"))


class EnvManager:
    """Registers classes; envpool_wrap.make() finds them by "<class name>_wrap"."""

    managed_envs_: list[type] = []  # noqa: RUF012 (the original's name and kind)

    @staticmethod
    def register_env(env: Any) -> None:
        """Register a class (or an instance's class) in this process and, if it can be imported, for later ones."""
        cls = _checked(env if inspect.isclass(env) else type(env))
        if remember(cls) is None:
            warnings.warn(
                f"{cls.__name__} is registered in this process only, because other processes cannot import it; "
                "define it at the top level of a file",
                stacklevel=2,
            )
        if cls not in EnvManager.managed_envs_:
            EnvManager.managed_envs_.append(cls)


class CppWrapperGenerator:
    """The original compiled a wrapper; here nothing has to be compiled."""

    @staticmethod
    def generate_envpool_wrap(cls: type, verbose: bool = False, *, write_module: bool = True) -> None:
        """Register the class and write envpool_wrap.py next to its file, so that `import envpool_wrap` works there.

        With write_module=False, other processes have to call envfleet.compat.envpool_protocol.install().
        """
        if not inspect.isclass(cls):
            raise ConfigError(f"generate_envpool_wrap() expected a class, got {type(cls).__name__}: {cls!r}")
        EnvManager.register_env(cls)
        target = _wrap_file_for(cls) if write_module else None
        if target is not None:
            _write_wrap_file(target)
        if verbose:
            hint = "" if target is None else f"; import envpool_wrap works in {target.parent}"
            print(f"{task_id_of(cls)} is registered in {registry_file()}{hint}")


def install(*, old_gym: bool = True) -> None:
    """Install `envpool_protocol` and `envpool_wrap`. A second call does nothing.

    old_gym: also install a stand-in for `gym`, unless the real one is installed: protocol classes derive from gym.Env.
    """
    managers = {"EnvManager": EnvManager, "CppWrapperGenerator": CppWrapperGenerator}
    members: dict[str, dict[str, Any]] = {
        "": {},
        "envpool_protocol": {"EnvPoolProtocol": EnvPoolProtocol},
        "manager": managers,
    }
    doc = __doc__ or ""
    keeps_file = _is_generated("envpool_wrap")
    if not keeps_file:
        installed("envpool_wrap", __name__)  # raises before anything is installed
    install_tree("envpool_protocol", members, __name__, doc, WITHOUT_GYM)
    wrapped = {name: getattr(envpool_wrap, name) for name in envpool_wrap.__all__}
    tree = envpool_members()
    tree[""] = {**tree[""], **wrapped}
    tree["registration"] = {**tree["registration"], **wrapped}
    if not keeps_file:
        install_tree("envpool_wrap", tree, __name__, doc, WITHOUT_GYM)
    if old_gym:
        gym_stand_in.install()


def uninstall() -> bool:
    """Remove the modules and the gym stand-in; return True if there were any. Registered envs stay registered."""
    was_there = remove_tree("envpool_protocol", __name__) | remove_tree("envpool_wrap", __name__)
    gym_stand_in.uninstall()
    return was_there


def _checked(cls: type) -> type:
    missing = [name for name in _METHODS if getattr(cls, name, None) in (None, getattr(EnvPoolProtocol, name))]
    if missing:
        raise ConfigError(
            f"register_env() expected a class with the methods {', '.join(_METHODS)}, "
            f"got {cls.__name__}, which lacks {', '.join(missing)}; define them"
        )
    for name in ("observation_space", "action_space"):
        # Usually set in the constructor: then the pool checks it when the env is built.
        space = getattr(cls, name, None)
        if isinstance(space, type):
            raise ConfigError(f"{cls.__name__}.{name} expected a space such as gymnasium.spaces.Box(...), got a class")
    return cls


def _wrap_file_for(cls: type) -> Path | None:
    path = import_path_of(cls)
    return None if path is None else Path(path.file).parent / "envpool_wrap.py"


def _write_wrap_file(target: Path) -> None:
    try:
        if target.exists():
            text = target.read_text()
            if text == _WRAP_FILE:
                return
            if not text.startswith(_MARK):
                raise ConfigError(
                    f"generate_envpool_wrap() would overwrite {target}, which it did not write; "
                    "move that file, or pass write_module=False"
                )
        target.write_text(_WRAP_FILE)
    except OSError as error:
        warnings.warn(
            f"{target} cannot be written ({error}); other processes need to call "
            "envfleet.compat.envpool_protocol.install() before `import envpool_wrap`",
            stacklevel=3,
        )


def _is_generated(name: str) -> bool:
    """Return whether the module of that name is the file that generate_envpool_wrap() wrote."""
    file = getattr(sys.modules.get(name), "__file__", None)
    return file is not None and Path(file).is_file() and Path(file).read_text().startswith(_MARK)
