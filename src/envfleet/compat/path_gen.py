"""env-wrappers' ready-made generator for its samplers: an env, a policy, whole paths."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import numpy as np

from envfleet.compat.vec_env_adapter import make_env
from envfleet.envs.adapters import adapt

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
    kept. limit: steps per path, 10 by default; path["success"] is there if the episode ended before. A request changes
    these: trajs(limit=5), trajs(policy=...). Other keywords are kept and not used.
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
    """What a request changes: named arguments of trajs(), or a bare number for limit."""
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
