"""The worker's side of env-wrappers' vector envs: envs that are seeded by their factory and render in any size."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import gymnasium

from envfleet.building.builders import gymnasium_spec
from envfleet.compat.modules import is_available
from envfleet.core.errors import ConfigError, UnknownEnvError
from envfleet.core.rendering import resized
from envfleet.envs.adapters import AdaptedEnv


class EnvAdapter(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An env with a render method that takes a mode and a size, as env-wrappers calls it."""

    @property
    def step(self) -> Callable[[Any], Any]:
        """The env's own step, so that the adapter costs nothing."""
        step: Callable[[Any], Any] = self.env.step
        return step

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the env; env-wrappers passes no options."""
        return self.env.reset(seed=seed)

    def render_as(self, mode: str, keywords: Mapping[str, Any]) -> Any:
        """Render the env: its render() gets the keywords that it accepts; otherwise the frame is resized."""
        env = self.env
        rest = dict(keywords)
        if isinstance(env, AdaptedEnv):
            render = env.env.render
            accepted = _accepted_keywords(render, {"mode": mode, **rest})
            frame = render(**accepted)
            rest = {name: value for name, value in rest.items() if name not in accepted}
        else:
            if mode != env.render_mode:
                raise ConfigError(
                    f"render({mode!r}) expected envs made with render_mode={mode!r}, got {env.render_mode!r}; "
                    f"pass render_mode={mode!r} to make_env() or gymnasium.make()"
                )
            frame = env.render()
        width, height = rest.pop("width", None), rest.pop("height", None)
        return resized(frame, int(width or 0), int(height or 0))


class SeededOnce(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Passes its seed to the first reset: Gymnasium's envs cannot be seeded in another way."""

    def __init__(self, env: Any, seed: int | None) -> None:
        super().__init__(env)
        self._first_seed = seed

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the env."""
        first_seed, self._first_seed = self._first_seed, None
        return self.env.reset(seed=first_seed if seed is None else seed, options=options)


def make_env(env_id: Any, seed: int | None = None, *wrappers: Callable[[Any], Any], **env_kwargs: Any) -> Any:
    """Return a factory of an env by its id (Gymnasium's, or gym's if that is installed) or class, seeded and wrapped.

    Gymnasium envs that support render_mode="rgb_array" are made with it, so that render("rgb_array") works.
    """
    return _Factory(env_id, seed, wrappers, env_kwargs)


class _Factory:
    """The factory of make_env(). A class, not a closure, so that plain pickle can pickle it."""

    def __init__(self, env_id: Any, seed: int | None, wrappers: tuple[Any, ...], env_kwargs: dict[str, Any]) -> None:
        self.env_id, self.seed, self.wrappers, self.env_kwargs = env_id, seed, wrappers, env_kwargs
        self.__name__ = env_id if isinstance(env_id, str) else getattr(env_id, "__name__", "PythonEnv")

    def __call__(self) -> Any:
        env = self._build()
        for wrapper in self.wrappers:
            env = wrapper(env)
        if isinstance(env, gymnasium.Env):
            return SeededOnce(env, self.seed)
        if self.seed is not None and callable(getattr(env, "seed", None)):
            env.seed(self.seed)
        return env

    def _build(self) -> Any:
        if callable(self.env_id):
            return self.env_id(**self.env_kwargs)
        try:
            spec = gymnasium_spec(self.env_id)
        except (gymnasium.error.Error, ImportError) as error:
            return _gym_env(self.env_id, self.env_kwargs, error)
        kwargs = {**_render_keywords(spec), **self.env_kwargs}
        return gymnasium.make(spec, disable_env_checker=True, **kwargs)


def _render_keywords(spec: Any) -> dict[str, Any]:
    entry = spec.entry_point
    creator = gymnasium.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
    modes = getattr(creator, "metadata", {}).get("render_modes", [])
    return {"render_mode": "rgb_array"} if "rgb_array" in modes else {}


def _gym_env(env_id: str, env_kwargs: dict[str, Any], error: Exception) -> Any:
    if is_available("gym"):
        gym = import_module("gym")
        if getattr(gym, "_envfleet_installer", None) is None:
            return gym.make(env_id, **env_kwargs)
    raise UnknownEnvError(f"make_env() expected an id that Gymnasium knows, got {env_id!r}: {error}") from error


def _accepted_keywords(function: Any, keywords: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords that a function accepts."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        # A wrapper's render(**kwargs) accepts what the wrapped env accepts.
        inner = getattr(getattr(function, "__self__", None), "env", None)
        if inner is not None:
            return _accepted_keywords(inner.render, keywords)
        return keywords
    names = {parameter.name for parameter in parameters}
    return {name: value for name, value in keywords.items() if name in names}
