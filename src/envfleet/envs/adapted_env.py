"""Envs of other APIs in Gymnasium's: those of gym up to 0.26, and envpool_wrapper's protocol."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding

from envfleet.envs.env_styles import reset_keywords
from envfleet.envs.gym_spaces import to_gymnasium_space
from envfleet.errors import ConfigError

_TIME_LIMIT_KEY = "TimeLimit.truncated"


class AdaptedEnv(gymnasium.Env[Any, Any]):
    """An old gym env in Gymnasium's API. What is not here is the env's own, through the attribute.

    Old envs know no options: they are not passed on where reset() has no such parameter.
    """

    style = "gym"

    def __init__(self, env: Any, render_mode: str | None = None) -> None:
        self.env = env
        self.observation_space = _space_of(env, "observation_space")
        self.action_space = _space_of(env, "action_space")
        self.metadata = _metadata_of(env)
        self.render_mode = render_mode or getattr(env, "render_mode", None)
        spec = getattr(env, "spec", None)
        # gym's EnvSpec is not Gymnasium's, and code that reads one must not get the other.
        self.spec = spec if isinstance(spec, gymnasium.envs.registration.EnvSpec) else None
        self._takes = reset_keywords(env)
        if self._takes is None and callable(getattr(env, "seed", None)):
            # gym dropped seed() when reset() took over the seed: who still has it is of the old kind.
            self._takes = frozenset()
        self._render_takes_mode = _takes_mode(getattr(env, "render", None))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Gymnasium's reset: the seed through reset(seed=...) or seed(), whichever the env has."""
        if self._takes is None:
            result = self._first_reset(seed, options)
        else:
            result = self._reset_with(self._takes, seed, options)
        return result if self._is_obs_and_info(result) else (result, {})

    def step(self, action: Any) -> Any:
        """Gymnasium's step. A result that is neither a 4-tuple nor a 5-tuple is passed on for the caller to refuse."""
        result = self.env.step(action)
        if not isinstance(result, tuple | list) or len(result) != 4:
            return result
        obs, reward, done, info = result
        truncated = isinstance(info, Mapping) and bool(info.get(_TIME_LIMIT_KEY, False))
        return obs, reward, bool(done) and not truncated, truncated, info

    def render(self) -> Any:
        """The env's picture; an old env is asked for render_mode, or for what it can return rather than show."""
        if not self._render_takes_mode:
            return self.env.render()
        mode = self.render_mode
        if mode is None:
            known = self.metadata["render_modes"]
            mode = next((m for m in ("rgb_array", "ansi") if m in known), None)
        return self.env.render() if mode is None else self.env.render(mode=mode)

    def close(self) -> None:
        """Closes the env, if it can be."""
        close = getattr(self.env, "close", None)
        if callable(close):
            close()

    @property
    def unwrapped(self) -> Any:
        """The innermost env, which need not be a gymnasium.Env."""
        return getattr(self.env, "unwrapped", self.env)

    @property
    def np_random(self) -> Any:
        """The env's generator."""
        return self.env.np_random if hasattr(self.env, "np_random") else super().np_random

    @np_random.setter
    def np_random(self, value: Any) -> None:
        self.env.np_random = value

    @property
    def np_random_seed(self) -> Any:
        """The seed of the env's generator, where it keeps one."""
        return self.env.np_random_seed if hasattr(self.env, "np_random_seed") else super().np_random_seed

    def has_wrapper_attr(self, name: str) -> bool:
        """Whether the env or this adapter has that attribute."""
        return hasattr(self.env, name) or hasattr(self, name)

    def get_wrapper_attr(self, name: str) -> Any:
        """The attribute of the env, except for what this adapter translates."""
        if name in self.__dict__ or name in AdaptedEnv.__dict__ or not hasattr(self.env, name):
            return getattr(self, name)
        return getattr(self.env, name)

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        """Sets the attribute where get_wrapper_attr() finds it; a new one goes to the env."""
        if name in self.__dict__:
            setattr(self, name, value)
            return True
        if force or self.has_wrapper_attr(name):
            setattr(_owner_of(self.env, name), name, value)
            return True
        return False

    def __getattr__(self, name: str) -> Any:
        # "env" is missing while unpickling: asking self.env for it would recurse without end.
        if name.startswith("__") or name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    def __str__(self) -> str:
        return f"<{type(self).__name__}<{self.env}>>"

    def _first_reset(self, seed: int | None, options: Any) -> Any:
        """For reset(**kwargs) without seed(): tries Gymnasium's call and keeps what the env answers to."""
        takes = frozenset({"seed", "options"})
        try:
            result = self._reset_with(takes, seed, options)
        except TypeError as error:
            if "unexpected keyword" not in str(error):
                raise
            takes = frozenset()
            result = self._reset_with(takes, seed, options)
        self._takes = takes
        return result

    def _reset_with(self, takes: frozenset[str], seed: int | None, options: Any) -> Any:
        keywords: dict[str, Any] = {}
        if "seed" in takes:
            keywords["seed"] = seed
        elif seed is not None:
            _seed_old(self.env, seed)
        if "options" in takes:
            keywords["options"] = options
        if "return_info" in takes:
            keywords["return_info"] = True
        return self.env.reset(**keywords)

    def _is_obs_and_info(self, result: Any) -> bool:
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
            return False
        # An observation of a Tuple space may itself be a pair that ends with a dict.
        space = self.observation_space
        return not (isinstance(space, spaces.Tuple) and len(space.spaces) == 2 and space.contains(result))


class EnvPoolProtocolEnv(AdaptedEnv):
    """A class of envpool_wrapper's protocol in Gymnasium's API.

    Order, which stateful envs lean on: step or reset, then observation, done, reward.
    """

    style = "envpool_wrapper"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Seeds the env by seed(), or its np_random, and resets it."""
        if seed is not None:
            _seed_old(self.env, seed)
        self.env._reset_envpool()
        obs, _, _ = self._results()
        return obs, {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step; an end is a termination, for the protocol knows no other."""
        self.env._step_envpool(action)
        obs, done, reward = self._results()
        return obs, reward, bool(done), False, {}

    def _results(self) -> tuple[Any, Any, Any]:
        return self.env._make_obs_envpool(), self.env._done_envpool(), self.env._reward_envpool()


def _space_of(env: Any, name: str) -> spaces.Space[Any]:
    space = getattr(env, name, None)
    if space is None:
        raise ConfigError(f"expected an env with {name}, got {_kind(env)} without it; set self.{name} in __init__()")
    return to_gymnasium_space(space)


def _metadata_of(env: Any) -> dict[str, Any]:
    """The env's metadata, with gym 0.21's names under Gymnasium's as well."""
    metadata = dict(getattr(env, "metadata", None) or {})
    metadata.setdefault("render_modes", list(metadata.get("render.modes", [])))
    if "video.frames_per_second" in metadata:
        metadata.setdefault("render_fps", metadata["video.frames_per_second"])
    return metadata


def _takes_mode(render: Any) -> bool:
    try:
        return "mode" in inspect.signature(render).parameters
    except (TypeError, ValueError):
        return False


def _seed_old(env: Any, seed: int) -> None:
    # Old envs put the seed into numpy's RandomState, which takes 32 bits and raises for more.
    legacy_seed = int(seed) % 2**32
    if callable(getattr(env, "seed", None)):
        env.seed(legacy_seed)
    elif isinstance(env, gymnasium.Env):
        gymnasium.Env.reset(env, seed=seed)
    elif hasattr(env, "np_random"):
        legacy = isinstance(env.np_random, np.random.RandomState)
        generator = np.random.RandomState(legacy_seed) if legacy else seeding.np_random(int(seed))[0]
        _owner_of(env, "np_random").np_random = generator


def _owner_of(env: Any, name: str) -> Any:
    """The env inside which the attribute lives: set on a wrapper, the env below would never see it."""
    level, seen = env, set()
    while level is not None and id(level) not in seen:
        if name in getattr(level, "__dict__", {}) or hasattr(type(level), name):
            return level
        seen.add(id(level))
        level = getattr(level, "env", None)
    return env


def _kind(env: Any) -> str:
    return f"{type(env).__module__}.{type(env).__qualname__}"
