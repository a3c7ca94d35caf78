"""Pools of envs that are called as other libraries call theirs, in the spaces that a view has chosen."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium

from envfleet.building.builders import EnvBuilder, EnvBuilders
from envfleet.building.pools import make_pool_of
from envfleet.core.pool import Pool


class EnvWithSpaces:
    """An env with other spaces than its own, such as wider bounds (observation_mode="different")."""

    def __init__(self, env: Any, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> None:
        self.env = env
        self.observation_space = observation_space
        self.action_space = action_space
        self.metadata = getattr(env, "metadata", {})
        self.render_mode = getattr(env, "render_mode", None)

    @property
    def unwrapped(self) -> Any:
        """The env without wrappers."""
        return self.env.unwrapped

    @property
    def step(self) -> Callable[..., Any]:
        """The env's own step, so that the adapter costs nothing."""
        step: Callable[..., Any] = self.env.step
        return step

    @property
    def reset(self) -> Callable[..., Any]:
        """The env's own reset."""
        reset: Callable[..., Any] = self.env.reset
        return reset

    def close(self) -> None:
        """Close the env."""
        self.env.close()

    def get_wrapper_attr(self, name: str) -> Any:
        """Return an attribute of the env or of an env that it wraps."""
        return self.env.get_wrapper_attr(name)

    def set_wrapper_attr(self, name: str, value: Any) -> None:
        """Set an attribute of the env or of an env that it wraps."""
        self.env.set_wrapper_attr(name, value)


def inner_env(env: Any) -> Any:
    """Return the env as its factory made it."""
    return env.env if isinstance(env, EnvWithSpaces) else env


@dataclass(frozen=True)
class ReadyEnvBuilder(EnvBuilder):
    """Builds one env, or takes one that the caller has already built, and gives it these spaces.

    ready: such envs by env id; each is taken once. observation_space, action_space: None for the env's own.
    """

    observation_space: gymnasium.Space[Any] | None = None
    action_space: gymnasium.Space[Any] | None = None
    ready: dict[int, Any] | None = None

    def build(self, env_id: int) -> Any:
        """Return the env."""
        env = self.ready.pop(env_id) if self.ready and env_id in self.ready else super().build(env_id)
        try:
            self._check(env)
        except RuntimeError:
            env.close()
            raise
        own = (env.observation_space, env.action_space)
        spaces = (self.observation_space or own[0], self.action_space or own[1])
        return env if spaces == own else EnvWithSpaces(env, *spaces)

    def _check(self, env: Any) -> None:
        """Raise RuntimeError if the env's own spaces do not fit."""

    def __getstate__(self) -> tuple[_Authkey, dict[str, Any]]:
        # First: objects in a factory's closure (a manager's proxy, a queue) need the key while they are unpickled.
        return _Authkey(), {**self.__dict__, "ready": None}

    def __setstate__(self, state: tuple[None, dict[str, Any]]) -> None:
        self.__dict__.update(state[1])


def make_pool_of_factories(
    name: str,
    env_fns: Sequence[Callable[[], Any]],
    make_builder: Callable[[Callable[[], Any]], ReadyEnvBuilder],
    backend: str,
    **options: Any,
) -> Pool:
    """Make a pool of envs that are called as other libraries call theirs. Options: see make().

    Actions are passed on unchecked, reset() alone seeds the envs, and they can be stepped before it.
    """
    # One builder for each factory, so that a pickle of many holds it once.
    builders = {id(env_fn): make_builder(env_fn) for env_fn in env_fns}
    env_builders = EnvBuilders(name, tuple(builders[id(env_fn)] for env_fn in env_fns), None)
    pool = make_pool_of(env_builders, backend, check_actions=False, seed_envs=False, **options)
    pool.mark_running()
    return pool


class _Authkey:
    """multiprocessing's key of the caller's process, which envfleet's workers do not inherit."""

    def __reduce__(self) -> tuple[Callable[[bytes], None], tuple[bytes]]:
        return _set_authkey, (bytes(multiprocessing.current_process().authkey),)


def _set_authkey(key: bytes) -> None:
    multiprocessing.current_process().authkey = key
