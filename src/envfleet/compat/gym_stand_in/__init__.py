"""A stand-in for gym 0.25, for old code where the real package is not installed.

It has what envs, wrappers and users of EnvPool refer to: Env, the wrapper base classes, spaces (Gymnasium's own
classes), make(), and gym.wrappers (wrappers.py). It is never used if the real gym is installed.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding

from envfleet.compat.modules import AliasModule, install_tree, is_available, remove_tree
from envfleet.core.rendering import resized

# The last gym with this API: user code that checks the version unpacks results accordingly.
__version__ = "0.25.2"

_INSTALLER = __name__
_LOG_LEVELS = {"DEBUG": 10, "INFO": 20, "WARN": 30, "ERROR": 40, "DISABLED": 50}


class Space(spaces.Space[Any]):
    """gym.spaces.space.Space, which no space of Gymnasium's is an instance of; gym.Space is Gymnasium's.

    TorchRL identifies gym envs by spaces of this class. Gymnasium's spaces must not be instances of it: TorchRL would
    expect 4-tuples from their envs.
    """


class Env:
    """gym 0.25's Env: reset() -> obs; step(action) -> obs, reward, done, info; seed(); render(mode)."""

    metadata: dict[str, Any] = {"render.modes": []}  # noqa: RUF012 (gym's own is such a dict)
    reward_range = (-float("inf"), float("inf"))
    spec: Any = None
    action_space: Any
    observation_space: Any
    _np_random: np.random.Generator | None = None

    @property
    def np_random(self) -> np.random.Generator:
        """The env's generator; seed() replaces it."""
        if self._np_random is None:
            self._np_random, _ = seeding.np_random()
        return self._np_random

    @np_random.setter
    def np_random(self, value: np.random.Generator) -> None:
        self._np_random = value

    def step(self, action: Any) -> Any:
        """Step the env."""
        raise NotImplementedError

    def reset(
        self, *, seed: int | None = None, return_info: bool = False, options: dict[str, Any] | None = None
    ) -> Any:
        """Seed the generator if there is a seed: envs call super().reset(seed=seed)."""
        if seed is not None:
            self._np_random, _ = seeding.np_random(seed)

    def render(self, mode: str = "human") -> Any:
        """Render the env."""
        raise NotImplementedError

    def seed(self, seed: int | None = None) -> list[int]:
        """Replace the generator."""
        self._np_random, used = seeding.np_random(seed)
        return [used]

    def close(self) -> None:
        """Close the env; nothing to do by default."""

    @property
    def unwrapped(self) -> Any:
        """The env without wrappers."""
        return self

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _of_the_inner(name: str) -> Any:
    """Return a property that reads the wrapped env's attribute unless the wrapper has set its own."""

    def get(self: Any) -> Any:
        return self.__dict__[name] if name in self.__dict__ else getattr(self.env, name)

    return property(get, lambda self, value: self.__dict__.__setitem__(name, value))


class Wrapper(Env):
    """gym 0.25's Wrapper. It accepts anything with an env's methods, including pools."""

    metadata = _of_the_inner("metadata")
    reward_range = _of_the_inner("reward_range")
    spec = _of_the_inner("spec")
    np_random = _of_the_inner("np_random")

    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "env":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.env, name)

    def step(self, action: Any) -> Any:
        """Step the env."""
        return self.env.step(action)

    def reset(self, **kwargs: Any) -> Any:
        """Reset the env."""
        return self.env.reset(**kwargs)

    def render(self, *args: Any, **kwargs: Any) -> Any:
        """Render the env."""
        return self.env.render(*args, **kwargs)

    def seed(self, seed: int | None = None) -> Any:
        """Seed the env."""
        return self.env.seed(seed)

    def close(self) -> None:
        """Close the env."""
        self.env.close()

    @property
    def unwrapped(self) -> Any:
        """The innermost env."""
        return self.env.unwrapped

    def __len__(self) -> int:
        return len(self.env)


class ObservationWrapper(Wrapper):
    """A wrapper that transforms observations."""

    def reset(self, **kwargs: Any) -> Any:
        """Reset the env and transform the observation."""
        if kwargs.get("return_info"):
            obs, info = self.env.reset(**kwargs)
            return self.observation(obs), info
        return self.observation(self.env.reset(**kwargs))

    def step(self, action: Any) -> Any:
        """Step the env and transform the observation."""
        obs, *others = self.env.step(action)
        return self.observation(obs), *others

    def observation(self, observation: Any) -> Any:
        """Return the transformed observation."""
        raise NotImplementedError


class RewardWrapper(Wrapper):
    """A wrapper that transforms rewards."""

    def step(self, action: Any) -> Any:
        """Step the env and transform the reward."""
        obs, reward, *others = self.env.step(action)
        return obs, self.reward(reward), *others

    def reward(self, reward: Any) -> Any:
        """Return the transformed reward."""
        raise NotImplementedError


class ActionWrapper(Wrapper):
    """A wrapper that transforms actions."""

    def step(self, action: Any) -> Any:
        """Step the env with the transformed action."""
        return self.env.step(self.action(action))

    def action(self, action: Any) -> Any:
        """Return the transformed action."""
        raise NotImplementedError


class OldCalls(Env):
    """A Gymnasium env with gym 0.25's API. Other attributes are those of the env and its wrappers."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.metadata = {**env.metadata, "render.modes": env.metadata.get("render_modes", [])}
        self.spec = env.spec
        self._seed: int | None = None

    @property
    def np_random(self) -> Any:
        """The env's generator."""
        return self.env.unwrapped.np_random

    @np_random.setter
    def np_random(self, value: Any) -> None:
        self.env.unwrapped.np_random = value

    def seed(self, seed: int | None = None) -> list[int]:
        """Seed the next reset."""
        self._seed = seed
        return [] if seed is None else [seed]

    def reset(
        self, *, seed: int | None = None, return_info: bool = False, options: dict[str, Any] | None = None
    ) -> Any:
        """Reset the env and return the observation, with return_info also the info."""
        earlier_seed, self._seed = self._seed, None
        result = self.env.reset(seed=earlier_seed if seed is None else seed, options=options)
        return result if return_info else result[0]

    def step(self, action: Any) -> Any:
        """Step the env; info["TimeLimit.truncated"] is set when an episode was truncated."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        if truncated:
            info["TimeLimit.truncated"] = not terminated
        return obs, reward, terminated or truncated, info

    def render(self, mode: str = "human", width: int | None = None, height: int | None = None) -> Any:
        """Return what the env renders in the mode that it was made with; a frame is resized to width and height."""
        return resized(self.env.render(), int(width or 0), int(height or 0))

    def close(self) -> None:
        """Close the env."""
        self.env.close()

    @property
    def unwrapped(self) -> Any:
        """The innermost env."""
        return self.env.unwrapped

    def __getattr__(self, name: str) -> Any:
        # _max_episode_steps too: gym's TimeLimit was the outermost wrapper, and scripts read it there.
        if name.startswith("__") or name == "env":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self.env.get_wrapper_attr(name)


def make(env_id: str, **kwargs: Any) -> OldCalls:
    """Make an env with gym 0.25's API, with render_mode="rgb_array" if it supports that.

    env_id: of Gymnasium's registry, or one that Gymnasium has dropped and envfleet runs, such as Taxi-v3.
    """
    from envfleet.building.builders import gymnasium_spec

    spec = gymnasium_spec(env_id)
    if "rgb_array" in _render_modes(spec):
        kwargs.setdefault("render_mode", "rgb_array")
    kwargs.setdefault("disable_env_checker", True)
    return OldCalls(gymnasium.make(spec, **kwargs))


def _render_modes(spec: gymnasium.envs.registration.EnvSpec) -> list[str]:
    entry = spec.entry_point
    creator = gymnasium.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
    return list(getattr(creator, "metadata", {}).get("render_modes", []))


def install() -> bool:
    """Install the stand-in unless gym is available; return True if it was installed."""
    if is_available("gym"):
        return False
    from envfleet.compat.gym_stand_in.wrappers import WRAPPERS  # here: they derive from the classes above

    core = {
        "Env": Env,
        "Wrapper": Wrapper,
        "ObservationWrapper": ObservationWrapper,
        "RewardWrapper": RewardWrapper,
        "ActionWrapper": ActionWrapper,
    }
    kinds = ("space", "box", "discrete", "multi_discrete", "multi_binary", "dict", "tuple", "text", "graph", "sequence")
    makers = {"make": make, "register": gymnasium.register, "spec": gymnasium.spec}
    members: dict[str, dict[str, Any]] = {
        "": {**core, **makers, "Space": spaces.Space, "__version__": __version__},
        "core": core,
        "spaces": {name: getattr(spaces, name) for name in spaces.__all__},
        "utils": {"EzPickle": gymnasium.utils.EzPickle},
        "utils.seeding": {"np_random": seeding.np_random},
        "error": {name: own for name, own in vars(gymnasium.error).items() if not name.startswith("_")},
        "logger": {
            **{name: getattr(gymnasium.logger, name) for name in ("warn", "error", "deprecation")},
            **_LOG_LEVELS,
            "set_level": _set_level,
        },
        "envs": {**makers, "registry": gymnasium.registry},
        "envs.registration": {**makers, "registry": gymnasium.registry},
        "wrappers": dict(WRAPPERS),
        "vector": {"VectorEnv": gymnasium.vector.VectorEnv},
    }
    for kind in kinds:
        module = getattr(spaces, kind)
        members[f"spaces.{kind}"] = {name: own for name, own in vars(module).items() if isinstance(own, type)}
    members["spaces.space"] = {"Space": Space}
    for name, wrapper in WRAPPERS.items():
        members.setdefault(f"wrappers.{_module_name(name)}", {})[name] = wrapper
    for path, names in members.items():
        names["__getattr__"] = partial(_missing, f"gym.{path}" if path else "gym")
    install_tree("gym", members, _INSTALLER, __doc__ or "", in_worker={})
    return True


def uninstall() -> bool:
    """Remove the stand-in unless another alias still needs it. A real gym is never removed."""
    aliases = [module for module in list(sys.modules.values()) if isinstance(module, AliasModule)]
    if any(module._envfleet_installer != _INSTALLER for module in aliases):
        return False
    return remove_tree("gym", _INSTALLER)


def _module_name(class_name: str) -> str:
    """Return the module of gym.wrappers that a wrapper is in: TimeLimit is in time_limit."""
    if class_name.startswith("Normalize"):
        return "normalize"
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in class_name).lstrip("_")


def _set_level(level: int) -> None:
    """Set the level from which on Gymnasium warns."""
    gymnasium.logger.min_level = level


def _missing(module: str, name: str) -> Any:
    raise AttributeError(
        f"module {module!r} is envfleet's stand-in and has no {name!r}; it has Env, wrappers, spaces and make(). "
        "For everything else: pip install gym"
    )
