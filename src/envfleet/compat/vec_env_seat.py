"""The worker's side of env-wrappers' vector envs: an env that keeps its own seed and draws in any size."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import gymnasium

from envfleet.compat.modules import is_available
from envfleet.envs.adapters import AdaptedEnv
from envfleet.errors import ConfigError, UnknownEnvError
from envfleet.making.builders import gymnasium_spec
from envfleet.pictures import resized

# The option of a reset that carries seeds which the user asked for; others are the pool's own.
ASKED_SEED = "envfleet.env_wrappers.seed"


class Seat(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One env in its place. Its factory has seeded it: the pool's seeds are not for it, but those of seed() are."""

    @property
    def step(self) -> Callable[[Any], Any]:
        """The env's own step: nothing is paid for the seat."""
        step: Callable[[Any], Any] = self.env.step
        return step

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """A reset with the seed that was asked for, or with none."""
        asked = None if options is None else options.get(ASKED_SEED)
        return self.env.reset(seed=asked)

    def draw(self, mode: str, wishes: Mapping[str, Any]) -> Any:
        """What the env draws: wishes go to its render() where it takes them; else the picture is resized."""
        env = self.env
        rest = dict(wishes)
        if isinstance(env, AdaptedEnv):
            render = env.env.render
            taken = _taken(render, {"mode": mode, **rest})
            picture = render(**taken)
            rest = {name: value for name, value in rest.items() if name not in taken}
        else:
            if mode != env.render_mode:
                raise ConfigError(
                    f"render({mode!r}) expected envs made with render_mode={mode!r}, got {env.render_mode!r}; "
                    f"pass render_mode={mode!r} to make_env() or gymnasium.make()"
                )
            picture = env.render()
        width, height = rest.pop("width", None), rest.pop("height", None)
        return resized(picture, int(width or 0), int(height or 0))


class SeededOnce(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Gives its seed to the first reset: Gymnasium's envs have no other way to be seeded."""

    def __init__(self, env: Any, seed: int | None) -> None:
        super().__init__(env)
        self._own_seed = seed

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The env's reset."""
        own, self._own_seed = self._own_seed, None
        return self.env.reset(seed=own if seed is None else seed, options=options)


def make_env(env_id: Any, seed: int | None = None, *wrappers: Callable[[Any], Any], **env_kwargs: Any) -> Any:
    """A factory of an env by its id (Gymnasium's, or gym's where that is installed) or class, seeded and wrapped.

    An env of Gymnasium that can draw pictures is made to: render("rgb_array") comes without being told before.
    """
    return _Factory(env_id, seed, wrappers, env_kwargs)


class _Factory:
    """What make_env() gives. A class, not a closure, so that plain pickle takes it too."""

    def __init__(self, env_id: Any, seed: int | None, wrappers: tuple[Any, ...], env_kwargs: dict[str, Any]) -> None:
        self.env_id, self.seed, self.wrappers, self.env_kwargs = env_id, seed, wrappers, env_kwargs
        self.__name__ = env_id if isinstance(env_id, str) else getattr(env_id, "__name__", "PythonEnv")

    def __call__(self) -> Any:
        env = self._bare()
        for wrapper in self.wrappers:
            env = wrapper(env)
        if isinstance(env, gymnasium.Env):
            return SeededOnce(env, self.seed)
        if self.seed is not None and callable(getattr(env, "seed", None)):
            env.seed(self.seed)
        return env

    def _bare(self) -> Any:
        if callable(self.env_id):
            return self.env_id(**self.env_kwargs)
        try:
            spec = gymnasium_spec(self.env_id)
        except (gymnasium.error.Error, ImportError) as error:
            return _old_env(self.env_id, self.env_kwargs, error)
        kwargs = {**_drawing(spec), **self.env_kwargs}
        return gymnasium.make(spec, disable_env_checker=True, **kwargs)


def _drawing(spec: Any) -> dict[str, Any]:
    entry = spec.entry_point
    creator = gymnasium.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
    modes = getattr(creator, "metadata", {}).get("render_modes", [])
    return {"render_mode": "rgb_array"} if "rgb_array" in modes else {}


def _old_env(env_id: str, env_kwargs: dict[str, Any], error: Exception) -> Any:
    if is_available("gym"):
        gym = import_module("gym")
        if getattr(gym, "_envfleet_installer", None) is None:
            return gym.make(env_id, **env_kwargs)
    raise UnknownEnvError(f"make_env() expected an id that Gymnasium knows, got {env_id!r}: {error}") from error


def _taken(function: Any, wishes: dict[str, Any]) -> dict[str, Any]:
    """Those of the keywords that a function takes."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}
    if any(own.kind is own.VAR_KEYWORD for own in parameters):
        # A wrapper's render(**kwargs) takes what the env inside takes.
        inner = getattr(getattr(function, "__self__", None), "env", None)
        if inner is not None:
            return _taken(inner.render, wishes)
        return wishes
    names = {own.name for own in parameters}
    return {name: value for name, value in wishes.items() if name in names}
