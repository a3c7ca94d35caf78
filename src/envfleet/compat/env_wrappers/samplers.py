"""env-wrappers' samplers: runners that iterate over generators' trajectories, and path_gen(), a ready-made one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from envfleet.compat.vec_env_adapter import make_env
from envfleet.envs.adapters import adapt
from envfleet.sampling import Runner
from envfleet.sampling.generators import READY


class NamedRequest(dict[str, Any]):
    """The named arguments of trajs(), as a dict.

    With one argument it also acts as that number: env-wrappers' own example passes the value of its yield
    back to range().
    """

    def __index__(self) -> int:
        if len(self) != 1:
            raise TypeError(
                f"a request used as a number expected exactly one named argument of trajs(), got {dict(self)!r}"
            )
        (value,) = self.values()
        return int(value.__index__())


class _ReadyFirst:
    """A generator function that yields "ready" first, even if the wrapped one does not (older env-wrappers examples).

    The first value of such a generator is its answer to the first request. A class, not a closure, so that plain pickle
    can pickle it.
    """

    def __init__(self, gen_fn: Callable[..., Any]) -> None:
        self.gen_fn = gen_fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        generator = self.gen_fn(*args, **kwargs)
        # Runner refuses anything else.
        return _ready_first(generator) if isinstance(generator, Generator) else generator


def _ready_first(generator: Generator[Any, Any, Any]) -> Generator[Any, Any, None]:
    try:
        first = next(generator)
        request = yield READY
        if not (isinstance(first, str) and first == READY):
            request = yield first
        while True:
            request = yield generator.send(request)
    except StopIteration:
        return
    finally:
        generator.close()


class _CompatRunner(Runner, ABC):
    """The signature and requests that both runners share."""

    def __init__(
        self,
        gen_fns: Iterable[Callable[..., Any]],
        *args: Any,
        context: str | None = None,
        context_fn: Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(gen_fns, Iterable):  # Runner refuses anything else
            gen_fns = [_ReadyFirst(own) if callable(own) else own for own in gen_fns]
        super().__init__(gen_fns, *args, context_fn=context_fn, **self._settings(context), **kwargs)

    @abstractmethod
    def _settings(self, context: str | None) -> dict[str, Any]:
        """Return the settings for Runner."""

    def _request(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        request = super()._request(args, kwargs)
        return NamedRequest(request) if isinstance(request, dict) else request


class SubprocRunner(_CompatRunner):
    """Runs each generator in its own process, one request ahead, and yields whichever trajectory is ready first.

    context: "fork", "spawn" or "forkserver"; None means envfleet's own, which needs no `if __name__ == "__main__":`.
    context_fn(manager): returns keyword arguments for the generators. Other arguments are passed to the generators.
    """

    def _settings(self, context: str | None) -> dict[str, Any]:
        return {"backend": "processes", "start_method": context}


class DummyRunner(_CompatRunner):
    """Runs the generators in this process, round-robin. context is ignored."""

    def _settings(self, context: str | None) -> dict[str, Any]:
        return {"backend": "serial", "ordered": True}


_DEFAULT_LIMIT = 10


def goal_preproc(observation: Any, achieved_goal: Any, desired_goal: Any, **_: Any) -> tuple[Any, Any, Any]:
    """Pick the three parts of a goal env's observation, for policy(observation, achieved_goal, desired_goal)."""
    return observation, achieved_goal, desired_goal


def path_gen(
    env_id: Any,
    seed: int,
    *wrappers: Callable[[Any], Any],
    policy: Callable[..., Any] | None = None,
    preproc: Callable[..., Any] | None = None,
    collect: Sequence[str] | None = None,
    limit: int | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    **config: Any,
) -> Generator[Any, Any, None]:
    """Yield "ready", then a path per request: a dict of arrays obs (or the keys of a Dict), r, a, done and info.

    policy: called with the observation, or with the values of a Dict; without one, actions are random. preproc: called
    with the observation (of a Dict, by keyword) and returns the policy's arguments. collect: which keys of a Dict are
    kept. limit: steps per path, 10 by default; path["success"] is set if the episode ended earlier. A request changes
    these: trajs(limit=5), trajs(policy=...). Other keywords are ignored.
    """
    options = {"policy": policy, "preproc": preproc, "collect": collect, "limit": limit, **config}
    env = adapt(make_env(env_id, seed, *wrappers, **(env_kwargs or {}))())
    env.action_space.seed(seed)
    try:
        request = yield "ready"
        while True:
            options.update(_changes(request))
            request = yield _path(env, options)
    finally:
        env.close()


def _changes(request: Any) -> dict[str, Any]:
    """Return the settings that a request changes: named arguments of trajs(), or a bare number for limit."""
    if isinstance(request, (int, np.integer)):
        return {"limit": int(request)}
    parts = request if isinstance(request, (list, tuple)) else [request]
    return {
        key: value for part in parts if isinstance(part, Mapping) for key, value in part.items() if value is not None
    }


def _path(env: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    obs, _ = env.reset()
    path: defaultdict[str, list[Any]] = defaultdict(list)
    _add(path, obs, options["collect"])
    has_ended = False
    for _ in range(options["limit"] or _DEFAULT_LIMIT):
        action = _action(env, obs, options["policy"], options["preproc"])
        obs, reward, terminated, truncated, info = env.step(action)
        has_ended = bool(terminated or truncated)
        _add(path, obs, options["collect"])
        for key, value in (("r", reward), ("a", action), ("done", has_ended), ("info", info)):
            path[key].append(value)
        if has_ended:
            break
    stacked: dict[str, Any] = {key: np.stack(rows) for key, rows in path.items()}
    return {**stacked, "success": True} if has_ended else stacked


def _add(path: defaultdict[str, list[Any]], obs: Any, collect: Sequence[str] | None) -> None:
    parts = obs if isinstance(obs, Mapping) else {"obs": obs}
    chosen = collect if collect and isinstance(obs, Mapping) else parts
    for key in chosen:
        if key in parts:
            path[key].append(parts[key])


def _action(env: Any, obs: Any, policy: Any, preproc: Any) -> Any:
    if policy is None:
        return env.action_space.sample()
    if isinstance(obs, Mapping):
        return policy(*(obs.values() if preproc is None else preproc(**obs)))
    return policy(obs if preproc is None else preproc(obs))
