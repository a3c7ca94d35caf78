"""adapt(): any Python env, of whatever API, in Gymnasium's.

Besides Gymnasium's own envs, three kinds are supported: gym up to 0.25 (4-tuple step, seed()), gym 0.26 (Gymnasium's
calls with gym's classes and spaces), and the five-method protocol of envpool_wrapper. gym itself is never imported: its
envs and spaces are recognized by their attributes and class names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding

from envfleet.core.errors import ConfigError

__all__ = [
    "AdaptedEnv",
    "EnvPoolProtocolEnv",
    "adapt",
    "is_envpool_protocol",
    "reset_keywords",
    "takes_env_id",
    "to_gymnasium_space",
]

_PROTOCOL = ("_step_envpool", "_reset_envpool", "_make_obs_envpool", "_reward_envpool", "_done_envpool")
_RESET_KEYWORDS = frozenset({"seed", "options", "return_info"})
_TIME_LIMIT_KEY = "TimeLimit.truncated"


def adapt(env: Any, render_mode: str | None = None) -> Any:
    """Return the env itself if it has Gymnasium's API, else the env in an AdaptedEnv.

    Every gymnasium.Env is returned unchanged, so that a step costs nothing more; a broken one fails when it is stepped.
    render_mode is for old envs, whose constructors do not accept it.
    """
    if is_envpool_protocol(env):
        return EnvPoolProtocolEnv(env, render_mode)
    if isinstance(env, gymnasium.Env) or has_gymnasium_api(env):
        return env
    return AdaptedEnv(env, render_mode)


class AdaptedEnv(gymnasium.Env[Any, Any]):
    """Adapts an old gym env to Gymnasium's API. All other attributes are those of the env.

    reset() passes options on only if the env's reset() has such a parameter; old envs do not.
    """

    style = "gym"

    def __init__(self, env: Any, render_mode: str | None = None) -> None:
        self.env = env
        self.observation_space = _space_of(env, "observation_space")
        self.action_space = _space_of(env, "action_space")
        self.metadata = _metadata_of(env)
        self.render_mode = render_mode or getattr(env, "render_mode", None)
        spec = getattr(env, "spec", None)
        # gym's EnvSpec is not Gymnasium's, and code that expects one must not get the other.
        self.spec = spec if isinstance(spec, gymnasium.envs.registration.EnvSpec) else None
        self._takes = reset_keywords(env)
        if self._takes is None and callable(getattr(env, "seed", None)):
            # gym dropped seed() when reset() got its seed argument: an env that has seed() predates that.
            self._takes = frozenset()
        self._render_takes_mode = _takes_mode(getattr(env, "render", None))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the env, seeding it through reset(seed=...) or seed(), whichever it has."""
        if self._takes is None:
            result = self._first_reset(seed, options)
        else:
            result = self._reset_with(self._takes, seed, options)
        return result if self._is_obs_and_info(result) else (result, {})

    def step(self, action: Any) -> Any:
        """Step the env. A result that is neither a 4-tuple nor a 5-tuple is returned as is; the caller rejects it."""
        result = self.env.step(action)
        if not isinstance(result, tuple | list) or len(result) != 4:
            return result
        obs, reward, done, info = result
        truncated = isinstance(info, Mapping) and bool(info.get(_TIME_LIMIT_KEY, False))
        return obs, reward, bool(done) and not truncated, truncated, info

    def render(self) -> Any:
        """Render the env, in render_mode if its render() takes a mode, else in a mode that returns a frame."""
        if not self._render_takes_mode:
            return self.env.render()
        mode = self.render_mode
        if mode is None:
            known = self.metadata["render_modes"]
            mode = next((m for m in ("rgb_array", "ansi") if m in known), None)
        return self.env.render() if mode is None else self.env.render(mode=mode)

    def close(self) -> None:
        """Close the env, if it has a close() method."""
        close = getattr(self.env, "close", None)
        if callable(close):
            close()

    @property
    def unwrapped(self) -> Any:
        """The innermost env, which need not be a gymnasium.Env."""
        return getattr(self.env, "unwrapped", self.env)

    @property
    def np_random(self) -> Any:
        """The env's random generator."""
        return self.env.np_random if hasattr(self.env, "np_random") else super().np_random

    @np_random.setter
    def np_random(self, value: Any) -> None:
        self.env.np_random = value

    @property
    def np_random_seed(self) -> Any:
        """The seed of the env's random generator, if the env stores it."""
        return self.env.np_random_seed if hasattr(self.env, "np_random_seed") else super().np_random_seed

    def has_wrapper_attr(self, name: str) -> bool:
        """Return whether the env or this adapter has the attribute."""
        return hasattr(self.env, name) or hasattr(self, name)

    def get_wrapper_attr(self, name: str) -> Any:
        """Return the env's attribute, or this adapter's if the adapter defines it."""
        if name in self.__dict__ or name in AdaptedEnv.__dict__ or not hasattr(self.env, name):
            return getattr(self, name)
        return getattr(self.env, name)

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        """Set the attribute where get_wrapper_attr() finds it; a new one is set on the env."""
        if name in self.__dict__:
            setattr(self, name, value)
            return True
        if force or self.has_wrapper_attr(name):
            setattr(_owner_of(self.env, name), name, value)
            return True
        return False

    def __getattr__(self, name: str) -> Any:
        # "env" is missing while unpickling: looking it up on self.env would recurse infinitely.
        if name.startswith("__") or name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    def __str__(self) -> str:
        return f"<{type(self).__name__}<{self.env}>>"

    def _first_reset(self, seed: int | None, options: Any) -> Any:
        """Reset an env whose signature is reset(**kwargs): try Gymnasium's keywords, and remember which ones work."""
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
        # An observation of a Tuple space may itself be a pair whose second part is a dict.
        space = self.observation_space
        return not (isinstance(space, spaces.Tuple) and len(space.spaces) == 2 and space.contains(result))


class EnvPoolProtocolEnv(AdaptedEnv):
    """Adapts an env of envpool_wrapper's protocol to Gymnasium's API.

    The order of calls, on which stateful envs rely: step or reset, then observation, done, reward.
    """

    style = "envpool_wrapper"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Seed the env through seed() or its np_random, and reset it."""
        if seed is not None:
            _seed_old(self.env, seed)
        self.env._reset_envpool()
        obs, _, _ = self._results()
        return obs, {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the env. The protocol has no truncation: every end is a termination."""
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
    """Return the env's metadata, with gym 0.21's keys also under Gymnasium's names."""
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
    # Old envs seed a RandomState, which only takes 32 bits.
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
    """Return the env, among nested wrappers, that has the attribute: the inner env does not see a wrapper's."""
    level, seen = env, set()
    while level is not None and id(level) not in seen:
        if name in getattr(level, "__dict__", {}) or hasattr(type(level), name):
            return level
        seen.add(id(level))
        level = getattr(level, "env", None)
    return env


def _kind(env: Any) -> str:
    return f"{type(env).__module__}.{type(env).__qualname__}"


# --- which API an env has ----------------------------------------------------------------------


def takes_env_id(cls: Any) -> bool:
    """Return whether this is a class of envpool_wrapper's protocol whose constructor takes the env's id first."""
    if not inspect.isclass(cls) or not _has_protocol(cls):
        return False
    try:
        params = list(inspect.signature(cls).parameters.values())
    except (TypeError, ValueError):
        return False
    if not params or params[0].kind not in (params[0].POSITIONAL_ONLY, params[0].POSITIONAL_OR_KEYWORD):
        return False
    return params[0].name in ("envid", "env_id") or params[0].default is params[0].empty


def is_envpool_protocol(env: Any) -> bool:
    """Return whether to step an env through the five methods of envpool_wrapper's protocol."""
    if not _has_protocol(env):
        return False
    # An env that also implements all of Gymnasium's methods is treated as a Gymnasium env.
    own_step = isinstance(env, gymnasium.Env) and type(env).step is not gymnasium.Env.step
    own_reset = isinstance(env, gymnasium.Env) and type(env).reset is not gymnasium.Env.reset
    return not (own_step and own_reset and {"seed", "options"} <= (reset_keywords(env) or frozenset()))


def has_gymnasium_api(env: Any) -> bool:
    """Return whether an env of another class has Gymnasium's reset() and spaces; step() cannot be inspected."""
    takes = reset_keywords(env)
    return (
        takes == frozenset({"seed", "options"})
        and not callable(getattr(env, "seed", None))
        and isinstance(getattr(env, "observation_space", None), spaces.Space)
        and isinstance(getattr(env, "action_space", None), spaces.Space)
    )


def reset_keywords(env: Any) -> frozenset[str] | None:
    """Return which of seed, options and return_info env.reset() accepts, or None if its signature does not tell.

    A wrapper's reset(**kwargs) does not tell, so the first env inside that names its parameters decides.
    """
    seen: set[int] = set()
    while id(env) not in seen:
        seen.add(id(env))
        try:
            params = inspect.signature(env.reset).parameters.values()
        except (AttributeError, TypeError, ValueError):
            return None
        named = frozenset(p.name for p in params if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
        if not any(p.kind is p.VAR_KEYWORD for p in params):
            return named & _RESET_KEYWORDS
        if {"seed", "options"} <= named:
            return named & _RESET_KEYWORDS
        inner = getattr(env, "env", None)
        if inner is None:
            return None
        env = inner
    return None


def _has_protocol(env: Any) -> bool:
    return all(callable(getattr(env, name, None)) for name in _PROTOCOL)


# --- spaces of the gym package -----------------------------------------------------------------


def to_gymnasium_space(space: Any) -> spaces.Space[Any]:
    """Convert a space of the gym package to Gymnasium's; return a Gymnasium space unchanged."""
    if isinstance(space, spaces.Space):
        return space
    for cls in type(space).__mro__:
        convert = _CONVERTERS.get(cls.__name__)
        if convert is not None:
            return convert(space)
    raise ConfigError(
        f"expected a space of gymnasium or gym, got {space!r} of type {type(space).__qualname__}; "
        "declare observation_space and action_space with gymnasium.spaces"
    )


def _box(space: Any) -> spaces.Box:
    dtype = np.dtype(space.dtype).type
    return spaces.Box(np.asarray(space.low), np.asarray(space.high), tuple(space.shape), dtype)


def _discrete(space: Any) -> spaces.Discrete:
    return spaces.Discrete(int(space.n), start=int(getattr(space, "start", 0)))


def _multi_discrete(space: Any) -> spaces.MultiDiscrete:
    dtype = np.dtype(getattr(space, "dtype", None) or np.int64).type
    return spaces.MultiDiscrete(np.asarray(space.nvec), dtype=dtype)


def _multi_binary(space: Any) -> spaces.MultiBinary:
    return spaces.MultiBinary(int(space.n) if np.ndim(space.n) == 0 else [int(n) for n in space.n])


def _dict(space: Any) -> spaces.Dict:
    # Pairs in gym's order: Gymnasium sorts a plain dict by key, which would change the flattened space.
    return spaces.Dict([(key, to_gymnasium_space(part)) for key, part in space.spaces.items()])


def _tuple(space: Any) -> spaces.Tuple[Any]:
    return spaces.Tuple([to_gymnasium_space(part) for part in space.spaces])


def _text(space: Any) -> spaces.Text:
    charset = getattr(space, "character_set", None) or getattr(space, "charset", None)
    charset = spaces.Text(1).character_set if charset is None else frozenset(charset)
    return spaces.Text(int(space.max_length), min_length=int(space.min_length), charset=charset)


def _sequence(space: Any) -> spaces.Sequence:
    return spaces.Sequence(to_gymnasium_space(space.feature_space))


def _graph(space: Any) -> spaces.Graph:
    edges = None if space.edge_space is None else to_gymnasium_space(space.edge_space)
    return spaces.Graph(to_gymnasium_space(space.node_space), edges)


_CONVERTERS: dict[str, Callable[[Any], spaces.Space[Any]]] = {
    "Box": _box,
    "Discrete": _discrete,
    "MultiDiscrete": _multi_discrete,
    "MultiBinary": _multi_binary,
    "Dict": _dict,
    "Tuple": _tuple,
    "Text": _text,
    "Sequence": _sequence,
    "Graph": _graph,
}
