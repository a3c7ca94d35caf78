"""rollout(): steps a vector env and gives arrays of shape (steps, num_envs, ...), right at the ends of episodes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from envfleet.apis.gymnasium import GymnasiumPool
from envfleet.autoreset import parse_mode
from envfleet.errors import CallOrderError, ConfigError
from envfleet.making.options import integer_option
from envfleet.sampling.columns import Columns, same_values, written
from envfleet.sampling.rollout_result import Episodes, Rollout

Policy = Callable[[Any], Any]


@dataclass
class _Place:
    """Where the envs stand between two rollouts.

    ended: whose next step is the ignored one (next_step), or who must be reset first (disabled).
    """

    obs: Any
    ended: NDArray[np.bool_]
    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]


# By the vector env itself: as long as it lives, and no longer.
_places: weakref.WeakKeyDictionary[VectorEnv[Any, Any, Any], _Place] = weakref.WeakKeyDictionary()


def rollout(
    envs: VectorEnv[Any, Any, Any],
    policy: Policy | None,
    steps: int,
    *,
    seed: Any = None,
    reset: bool = False,
    autoreset_mode: AutoresetMode | str | None = None,
) -> Rollout:
    """Steps all envs `steps` times.

    envs: a synchronous pool of envfleet.make(), or any Gymnasium VectorEnv. policy: from observations of all envs to
    actions, or to (actions, extras), where extras is a dict of arrays with a row for each env (log-probabilities,
    values); None acts at random.

    The first call resets the envs, later ones go on where the last one ended; seed or reset=True starts anew.
    autoreset_mode: what the vector env does at an episode's end, where its metadata does not tell.
    """
    mode = _mode_of(envs, autoreset_mode)
    num_steps = integer_option("steps", steps, 1, 1 << 40)
    if policy is not None and not callable(policy):
        raise ConfigError(f"policy expected a callable from observations to actions, or None, got {policy!r}")
    place = None if reset or seed is not None else _places.get(envs)
    # Until the end: whatever goes wrong on the way, nobody knows where the envs stand, and the next call resets.
    _places.pop(envs, None)
    if place is None:
        obs, _ = envs.reset(seed=seed)
        none = np.zeros(envs.num_envs, np.bool_)
        place = _Place(obs, none, np.zeros(envs.num_envs), np.zeros(envs.num_envs, np.int64))
    else:
        _check_unmoved(envs, place)
    collected = _Collector(envs, policy, mode, num_steps, place)
    for step in range(num_steps):
        collected.step(step)
    _places[envs] = place
    return collected.result()


class _Collector:
    def __init__(
        self, envs: VectorEnv[Any, Any, Any], policy: Policy | None, mode: AutoresetMode, num_steps: int, place: _Place
    ) -> None:
        self._envs, self._policy, self._mode, self._place = envs, policy, mode, place
        shape = (num_steps, envs.num_envs)
        self._obs = Columns(envs.single_observation_space, shape, "obs")
        self._actions = Columns(envs.single_action_space, shape, "actions")
        self._extras: dict[str, NDArray[Any]] = {}
        self._rewards = np.zeros(shape)
        self._terminated, self._truncated = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
        self._mask = np.ones(shape, np.bool_)
        self._finals = Columns(envs.single_observation_space, (0,), "final_obs")
        self._final_at: list[tuple[int, int]] = []
        self._episodes: list[tuple[int, int, float, int]] = []
        self._has_tuple_actions = isinstance(envs.single_action_space, gymnasium.spaces.Tuple)

    def step(self, step: int) -> None:
        place = self._place
        if self._mode is AutoresetMode.DISABLED and place.ended.any():
            place.obs, _ = self._envs.reset(options={"reset_mask": place.ended.copy()})
        # Before the step: a pool with copy=False overwrites what it gave.
        self._obs.write(step, place.obs)
        actions, extras = self._act(place.obs)
        obs, reward, terminated, truncated, info = self._envs.step(actions)
        self._actions.write(step, actions)
        self._write_extras(step, extras)
        self._rewards[step], self._terminated[step], self._truncated[step] = reward, terminated, truncated
        ended = np.asarray(terminated) | np.asarray(truncated)
        valid = self._mask[step]
        if self._mode is AutoresetMode.NEXT_STEP:
            valid &= ~place.ended
        # Where an env raised and was restarted, nothing of the row means anything but its end.
        failed = np.asarray(truncated) & info["_error"] if "error" in info and "_error" in info else None
        if failed is not None:
            valid &= ~failed
        place.returns += np.where(valid, reward, 0.0)
        place.lengths += valid
        if ended.any():
            self._end(step, ended, obs, info, failed)
        place.obs, place.ended = obs, ended

    def _act(self, obs: Any) -> tuple[Any, Mapping[str, Any]]:
        if self._policy is None:
            return self._envs.action_space.sample(), {}
        given = self._policy(obs)
        is_pair = isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Mapping)
        # Tuple actions of two parts, the second a Dict, look the same: there the first is no tuple.
        if is_pair and (not self._has_tuple_actions or isinstance(given[0], tuple)):
            return given[0], given[1]
        return given, {}

    def _write_extras(self, step: int, extras: Mapping[str, Any]) -> None:
        for key, value in extras.items():
            row = np.asarray(value)
            if row.shape[:1] != (self._envs.num_envs,):
                raise ConfigError(
                    f"policy expected to give extras with a row for each of {self._envs.num_envs} envs, "
                    f"got {key!r} of shape {row.shape}"
                )
            if key not in self._extras:
                if step:
                    raise ConfigError(f"policy expected to give the same extras each step, got {key!r} at step {step}")
                self._extras[key] = np.zeros((len(self._rewards), *row.shape), row.dtype)
            column = self._extras[key]
            if row.shape != column.shape[1:]:
                raise ConfigError(
                    f"policy expected to give extras of the same shape each step, got {key!r} of shape {row.shape} "
                    f"at step {step}, {column.shape[1:]} before"
                )
            self._extras[key] = written(column, step, row)
        if len(extras) != len(self._extras):
            missing = sorted(set(self._extras) - set(extras))
            raise ConfigError(
                f"policy expected to give the same extras each step, got none of {missing} at step {step}"
            )

    def _end(
        self, step: int, ended: NDArray[np.bool_], obs: Any, info: Mapping[str, Any], failed: NDArray[np.bool_] | None
    ) -> None:
        place = self._place
        for env_id in np.flatnonzero(ended).tolist():
            self._final_at.append((step, env_id))
            if self._mode is AutoresetMode.SAME_STEP:
                self._finals.append(info["final_obs"][env_id])
            else:
                self._finals.append_row(obs, env_id)
            if failed is None or not failed[env_id]:
                self._episodes.append((env_id, step, float(place.returns[env_id]), int(place.lengths[env_id])))
        place.returns[ended], place.lengths[ended] = 0.0, 0

    def result(self) -> Rollout:
        rows = np.array(self._episodes, dtype=np.float64).reshape(-1, 4)
        episodes = Episodes(
            rows[:, 0].astype(np.int32), rows[:, 1].astype(np.int64), rows[:, 2], rows[:, 3].astype(np.int64)
        )
        at = np.array(self._final_at, dtype=np.int64).reshape(-1, 2)
        return Rollout(
            obs=self._obs.joined(),
            actions=self._actions.joined(),
            rewards=self._rewards,
            terminated=self._terminated,
            truncated=self._truncated,
            mask=self._mask,
            final_obs=self._finals.stacked(),
            final_at=(at[:, 0], at[:, 1]),
            last_obs=self._obs.copied(self._place.obs),
            extras=self._extras,
            episodes=episodes,
            space=self._envs.single_observation_space,
        )


def _mode_of(envs: Any, given: AutoresetMode | str | None) -> AutoresetMode:
    if not isinstance(envs, VectorEnv):
        raise ConfigError(
            f"rollout() expected a Gymnasium VectorEnv, such as envfleet.make() gives, got {type(envs).__name__}; "
            "make the pool with the gymnasium api"
        )
    inner = envs.unwrapped
    if isinstance(inner, GymnasiumPool) and inner.is_async:
        raise ConfigError(
            f"rollout() expected a synchronous pool, got batch_size={inner.pool.config.batch_size} of "
            f"{inner.num_envs} envs: its envs make different numbers of steps, which fit no (steps, num_envs) array; "
            "leave batch_size out, or use send() and recv()"
        )
    if given is None:
        given = (envs.metadata or {}).get("autoreset_mode")
        if given is None:
            raise ConfigError(
                f"rollout() expected {type(envs).__name__}.metadata['autoreset_mode'], got none; "
                "pass autoreset_mode='next_step', 'same_step' or 'disabled'"
            )
    return parse_mode(given)


def _check_unmoved(envs: Any, place: _Place) -> None:
    """A sanity check, where it is cheap: a pool tells its present observations."""
    if isinstance(envs, GymnasiumPool) and not same_values(envs.pool.observe(), place.obs):
        raise CallOrderError(
            "rollout() expected the envs where the last rollout left them, got others' steps or resets in between; "
            "pass reset=True or a seed to begin anew"
        )
