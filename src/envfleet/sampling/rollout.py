"""rollout(): steps a vector env and returns arrays of shape (steps, num_envs, ...), correct at the ends of episodes."""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from envfleet.apis.gymnasium import GymnasiumPool
from envfleet.core.autoreset import Phase, parse_mode
from envfleet.core.errors import ActionError, CallOrderError, ConfigError, EnvError
from envfleet.core.infos import restarted_rows
from envfleet.core.option_checks import integer_option
from envfleet.core.policies import BatchPolicy, Policy, as_arrays
from envfleet.core.pool import Pool
from envfleet.core.spaces import join, leaves_of, row_getter, split
from envfleet.core.validation import check_actions

if TYPE_CHECKING:
    from envfleet.apis.torch import TorchPool
    from envfleet.sampling.torch_rollout import TorchRollout

# --- results -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Episodes:
    """The episodes that ended in a rollout, in the order in which they ended, including their earlier parts.

    Attributes:
        env_id: The env of each episode.
        step: The step of the rollout at which it ended.
        returns: Its return.
        lengths: Its length in steps.
    """

    env_id: NDArray[np.int32]
    step: NDArray[np.int64]
    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.returns)

    @property
    def return_mean(self) -> float:
        """The mean return; NaN if no episode ended."""
        return float(self.returns.mean()) if len(self) else float("nan")

    @property
    def length_mean(self) -> float:
        """The mean length; NaN if no episode ended."""
        return float(self.lengths.mean()) if len(self) else float("nan")


@dataclass(frozen=True)
class Rollout:
    """Transitions of all envs, time first: the arrays have the shape (steps, num_envs, ...).

    Observations and actions of Dict and Tuple spaces are dicts and tuples of arrays. next_obs() joins obs, final_obs
    and last_obs.

    Attributes:
        obs: What the policy saw.
        actions: The actions that it chose.
        rewards: The rewards of these actions.
        terminated: Where an episode terminated.
        truncated: Where an episode was truncated.
        mask: False where there was no transition: at the step that a next_step pool ignores, and where an env failed
            and was restarted.
        final_obs: The last observation of each episode that ended, one row per episode.
        final_at: The positions of these episodes, as (steps, env_ids).
        last_obs: What the next rollout starts from.
        extras: What the policy returned beside the actions.
        episodes: The episodes that ended.
        space: The observation space of one env.
    """

    obs: Any
    actions: Any
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    mask: NDArray[np.bool_]
    final_obs: Any
    final_at: tuple[NDArray[np.int64], NDArray[np.int64]]
    last_obs: Any
    extras: dict[str, NDArray[Any]]
    episodes: Episodes
    space: gymnasium.Space[Any] = field(repr=False)

    @property
    def ended(self) -> NDArray[np.bool_]:
        """Where an episode ended, by termination or truncation."""
        return self.terminated | self.truncated

    def next_obs(self) -> Any:
        """Return the observation after each action, of the same episode even at its end: (steps, num_envs, ...).

        Computed on demand, since most of it is a copy of obs. To bootstrap, use 0 where terminated and else the value
        of this observation.
        """
        split_obs, join_obs = split(self.space), join(self.space)
        columns = []
        parts = zip(split_obs(self.obs), split_obs(self.last_obs), split_obs(self.final_obs), strict=True)
        for obs, last, final in parts:
            following = np.empty_like(obs)
            following[:-1] = obs[1:]
            if following.dtype == object:
                for env_id, value in enumerate(last):
                    following[-1, env_id] = value
            else:
                following[-1] = last
            following[self.final_at] = final
            columns.append(following)
        return join_obs(columns)


# --- rollout() -----------------------------------------------------------------------------------


@dataclass
class _EnvState:
    """The state of the envs between two rollouts.

    ended: the envs whose next step is ignored (next_step), or which must be reset first (disabled).
    starts: the observations that are the first of an episode. policy: the last one, if it has a state.
    pool_obs and num_resets: of the pool inside the wrappers, to tell whether others have used it since.
    """

    obs: Any
    ended: NDArray[np.bool_]
    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    pool_obs: Any = None
    num_resets: int = 0
    starts: NDArray[np.bool_] | None = None
    policy: BatchPolicy | None = None


# By vector env, for as long as it lives.
_states: weakref.WeakKeyDictionary[VectorEnv[Any, Any, Any], _EnvState] = weakref.WeakKeyDictionary()


@overload
def rollout(
    envs: TorchPool, policy: Policy | None, steps: int, *, seed: Any = None, reset: bool = False
) -> TorchRollout: ...


@overload
def rollout(
    envs: VectorEnv[Any, Any, Any],
    policy: Policy | None,
    steps: int,
    *,
    seed: Any = None,
    reset: bool = False,
    autoreset_mode: AutoresetMode | str | None = None,
) -> Rollout: ...


def rollout(
    envs: Any,
    policy: Policy | None,
    steps: int,
    *,
    seed: Any = None,
    reset: bool = False,
    autoreset_mode: AutoresetMode | str | None = None,
) -> Rollout | TorchRollout:
    """Step all envs `steps` times and return their transitions.

    The first call resets the envs, later ones continue where the last one ended; seed or reset=True starts over.
    After set_state() of a pool without wrappers, the rollout continues from the restored state.

    Args:
        envs: A synchronous pool of envfleet.make(), any Gymnasium VectorEnv, or a TorchPool. The rollout of a TorchPool
            is a TorchRollout of tensors on its device.
        policy: Maps the observations of all envs to actions, or to (actions, extras), where extras is a dict of arrays
            with one row per env (log-probabilities, values), or to (actions, state). None samples random actions. Also
            a model of Stable-Baselines3, or its predict: what takes state and episode_start gets its own state back, in
            this rollout and in those that continue it.
        steps: The number of steps per env.
        seed: Reset the envs with this seed first.
        reset: Reset the envs first.
        autoreset_mode: What the vector env does at the end of an episode, if its metadata does not say.

    Raises:
        CallOrderError: The envs of a pool were stepped or reset since the last rollout, or restored inside wrappers.
    """
    torch_api = sys.modules.get("envfleet.apis.torch")  # not imported: there is no TorchPool then
    if torch_api is not None and isinstance(envs, torch_api.TorchPool):
        from envfleet.sampling.torch_rollout import rollout_on_device

        return rollout_on_device(envs, policy, steps, seed=seed, reset=reset)
    mode = _mode_of(envs, autoreset_mode)
    num_steps = integer_option("steps", steps, 1, 1 << 40)
    chosen = BatchPolicy(policy, envs.single_action_space)
    state = None if reset or seed is not None else _current_state(envs)
    # Until the end: if anything fails on the way, the state of the envs is unknown and the next call resets them.
    _states.pop(envs, None)
    if state is None:
        obs, _ = envs.reset(seed=seed)
        state = _first_state(obs, np.zeros(envs.num_envs, np.bool_))
    chosen.continue_from(state.policy)
    state.policy = chosen if chosen.has_state else None  # any other one need not be kept alive
    collector = _Collector(envs, chosen, mode, num_steps, state)
    for step in range(num_steps):
        collector.step(step)
    _remember(envs, state)
    return collector.result()


class _Collector:
    def __init__(
        self,
        envs: VectorEnv[Any, Any, Any],
        policy: BatchPolicy,
        mode: AutoresetMode,
        num_steps: int,
        state: _EnvState,
    ) -> None:
        self._envs, self._policy, self._mode, self._state = envs, policy, mode, state
        shape = (num_steps, envs.num_envs)
        self._obs = _Columns(envs.single_observation_space, shape, "obs")
        self._actions = _Columns(envs.single_action_space, shape, "actions")
        self._extras: dict[str, NDArray[Any]] = {}
        self._rewards = np.zeros(shape)
        self._terminated, self._truncated = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
        self._mask = np.ones(shape, np.bool_)
        self._finals = _Columns(envs.single_observation_space, (0,), "final_obs")
        self._final_at: list[tuple[int, int]] = []
        self._episodes: list[tuple[int, int, float, int]] = []

    def step(self, step: int) -> None:
        state = self._state
        if self._mode is AutoresetMode.DISABLED and state.ended.any():
            state.obs, _ = self._envs.reset(options={"reset_mask": state.ended.copy()})
        # Before the step: a pool with copy=False overwrites the observations that it returned.
        self._obs.write(step, state.obs)
        actions, extras = self._act(state.obs)
        columns = self._batched(actions)
        obs, reward, terminated, truncated, info = self._envs.step(actions)
        self._actions.write(step, columns)
        self._write_extras(step, extras)
        self._rewards[step], self._terminated[step], self._truncated[step] = reward, terminated, truncated
        ended = np.asarray(terminated) | np.asarray(truncated)
        failed = restarted_rows(info)
        is_next_step = self._mode is AutoresetMode.NEXT_STEP
        valid, state.starts = judge_rows(is_next_step, state.ended, ended, failed)
        self._mask[step] = valid
        state.returns += np.where(valid, reward, 0.0)
        state.lengths += valid
        if ended.any():
            self._end_episodes(step, ended, obs, info, failed)
        state.obs, state.ended = obs, ended

    def _act(self, obs: Any) -> tuple[Any, Mapping[str, Any]]:
        if self._policy.is_random:
            return self._envs.action_space.sample(), {}
        actions, extras = self._policy.act(obs, self._starts)
        return as_arrays(actions), as_arrays(extras)

    def _starts(self) -> NDArray[np.bool_]:
        starts = self._state.starts
        return np.ones(self._envs.num_envs, np.bool_) if starts is None else starts

    def _batched(self, actions: Any) -> Any:
        """Return nested actions as dicts and tuples of columns; step() of a pool accepts one action per env too."""
        space = self._envs.single_action_space
        if self._policy.is_random or not isinstance(space, (gymnasium.spaces.Dict, gymnasium.spaces.Tuple)):
            return actions
        try:
            columns = check_actions("rollout()", actions, space, self._envs.num_envs, None)
        except ActionError:
            return actions  # a pool will refuse them; other vector envs decide for themselves
        return join(space)(list(columns))

    def _write_extras(self, step: int, extras: Mapping[str, Any]) -> None:
        rows = {key: np.asarray(value) for key, value in extras.items()}
        check_extras(rows, self._extras if step else None, self._envs.num_envs, step)
        for key, row in rows.items():
            if key not in self._extras:
                self._extras[key] = np.zeros((len(self._rewards), *row.shape), row.dtype)
            self._extras[key] = _write_row(self._extras[key], step, row)

    def _end_episodes(
        self, step: int, ended: NDArray[np.bool_], obs: Any, info: Mapping[str, Any], failed: NDArray[np.bool_] | None
    ) -> None:
        state = self._state
        for env_id in np.flatnonzero(ended).tolist():
            self._final_at.append((step, env_id))
            if self._mode is AutoresetMode.SAME_STEP:
                self._finals.append(info["final_obs"][env_id])
            else:
                self._finals.append_row(obs, env_id)
            if failed is None or not failed[env_id]:
                self._episodes.append((env_id, step, float(state.returns[env_id]), int(state.lengths[env_id])))
        state.returns[ended], state.lengths[ended] = 0.0, 0

    def result(self) -> Rollout:
        rows = np.array(self._episodes, dtype=np.float64).reshape(-1, 4)
        episodes = Episodes(
            rows[:, 0].astype(np.int32), rows[:, 1].astype(np.int64), rows[:, 2], rows[:, 3].astype(np.int64)
        )
        final_at = np.array(self._final_at, dtype=np.int64).reshape(-1, 2)
        return Rollout(
            obs=self._obs.joined(),
            actions=self._actions.joined(),
            rewards=self._rewards,
            terminated=self._terminated,
            truncated=self._truncated,
            mask=self._mask,
            final_obs=self._finals.stacked(),
            final_at=(final_at[:, 0], final_at[:, 1]),
            last_obs=self._obs.copy_batch(self._state.obs),
            extras=self._extras,
            episodes=episodes,
            space=self._envs.single_observation_space,
        )


def _mode_of(envs: Any, mode: AutoresetMode | str | None) -> AutoresetMode:
    if not isinstance(envs, VectorEnv):
        raise ConfigError(
            f"rollout() expected a Gymnasium VectorEnv, such as envfleet.make() returns, got {type(envs).__name__}; "
            "make the pool with the gymnasium api"
        )
    inner = envs.unwrapped
    if isinstance(inner, GymnasiumPool) and inner.is_async:
        raise ConfigError(
            f"rollout() expected a synchronous pool, got batch_size={inner.pool.config.batch_size} of "
            f"{inner.num_envs} envs: its envs take different numbers of steps, which fit no (steps, num_envs) array; "
            "leave batch_size out, or use send() and recv()"
        )
    given = None if mode is None else parse_mode(mode)
    known = (envs.metadata or {}).get("autoreset_mode")
    if known is not None:
        own = parse_mode(known)
        if given is not None and given is not own:
            raise ConfigError(
                f"rollout() expected autoreset_mode={own.name.lower()!r}, which these envs were made with, got "
                f"{given.name.lower()!r}; leave it out, or make the envs with that mode"
            )
        return own
    if given is None:
        raise ConfigError(
            f"rollout() expected {type(envs).__name__}.metadata['autoreset_mode'], got none; "
            "pass autoreset_mode='next_step', 'same_step' or 'disabled'"
        )
    return given


def _pool_of(envs: VectorEnv[Any, Any, Any]) -> Pool | None:
    """Return the pool inside these envs; None for vector envs of other libraries."""
    inner = envs.unwrapped
    return inner.pool if isinstance(inner, GymnasiumPool) else None


def _remember(envs: VectorEnv[Any, Any, Any], state: _EnvState) -> None:
    """Let the next rollout continue from this state."""
    pool = _pool_of(envs)
    if pool is not None:
        try:
            state.pool_obs, state.num_resets = pool.observe(), pool.num_resets
        except EnvError:
            return  # a worker has died since the last step: the rollout is complete, and the next one resets the envs
    _states[envs] = state


def _first_state(obs: Any, ended: NDArray[np.bool_]) -> _EnvState:
    return _EnvState(obs, ended, np.zeros(len(ended)), np.zeros(len(ended), np.int64))


def _current_state(envs: VectorEnv[Any, Any, Any]) -> _EnvState | None:
    """Return the state to continue from; None to reset the envs. Raises if others have used them since."""
    state, pool = _states.get(envs), _pool_of(envs)
    if pool is None:
        return state
    if pool.is_restored and (state is None or state.num_resets != pool.num_resets):
        return _restored_state(envs, pool)
    # A reset is known from the count. Steps are not counted, but they change observations.
    if state is not None and (
        state.num_resets != pool.num_resets or not _have_same_values(pool.observe(), state.pool_obs)
    ):
        raise used_since()
    return state


def _restored_state(envs: VectorEnv[Any, Any, Any], pool: Pool) -> _EnvState | None:
    """Return the state of envs that set_state() restored; None if an env must be reset before it can be stepped."""
    phases = pool.phases()
    if not np.isin(phases, (Phase.RUNNING, Phase.ENDED)).all():
        return None
    if envs is not envs.unwrapped:
        raise CallOrderError(
            f"rollout() expected a pool without wrappers to continue from set_state(), got {type(envs).__name__}, "
            "which has no current observations before its next step(); pass reset=True or a seed to start over"
        )
    return _first_state(pool.observe(), phases == Phase.ENDED)


# --- shared with the rollouts of a TorchPool -----------------------------------------------------


def used_since() -> CallOrderError:
    """Return the error for envs that others have used since the last rollout."""
    return CallOrderError(
        "rollout() expected the envs as the last rollout left them, got envs that were stepped or reset since; "
        "pass reset=True or a seed to start over"
    )


def check_extras(extras: Mapping[str, Any], columns: Mapping[str, Any] | None, num_envs: int, step: int) -> None:
    """Raise ConfigError if a policy's extras (arrays or tensors) are not a row per env, the same ones at each step.

    columns: what was written before, of shape (steps, num_envs, ...); None at first.
    """
    for key, rows in extras.items():
        if rows.shape[:1] != (num_envs,):
            raise ConfigError(
                f"policy expected to return extras with a row for each of {num_envs} envs, got {key!r} of shape "
                f"{tuple(rows.shape)}"
            )
        if columns is None:
            continue
        if key not in columns:
            raise ConfigError(f"policy expected to return the same extras each step, got {key!r} first at step {step}")
        if rows.shape[1:] != columns[key].shape[2:]:
            raise ConfigError(
                f"policy expected to return extras of the same shape each step, got {key!r} with rows of shape "
                f"{tuple(rows.shape[1:])} at step {step}, {tuple(columns[key].shape[2:])} before"
            )
    if columns is not None and len(extras) != len(columns):
        missing = sorted(set(columns) - {str(key) for key in extras})
        raise ConfigError(f"policy expected to return the same extras each step, got none of {missing} at step {step}")


def judge_rows(is_next_step: bool, ended_before: Any, ended: Any, failed: Any) -> tuple[Any, Any]:
    """Return which rows of a step are transitions, and which of its observations start an episode; arrays or tensors.

    failed: the envs that raised and were restarted, if any did. Nothing in their rows means anything except that the
    episode ended.
    """
    valid = ~ended_before if is_next_step else ended_before | True
    return valid if failed is None else valid & ~failed, ended_before if is_next_step else ended


# --- columns -------------------------------------------------------------------------------------


class _Columns:
    """Values of a space, row after row, as one array per leaf.

    write() takes batches, for arrays of shape (steps, num_envs, ...); append() takes single values.
    """

    def __init__(self, space: gymnasium.Space[Any], shape: tuple[int, ...], name: str) -> None:
        self._shape = shape
        self._leaves = leaves_of(space)
        self._split, self._join, self._row_of = split(space, name), join(space), row_getter(space)
        self._columns: list[NDArray[Any]] = []
        self._values: list[list[Any]] = []

    def write(self, step: int, batch: Any) -> None:
        """Write a batch of all envs."""
        parts = self._split(batch)
        if not self._columns:
            self._columns = [
                # Leaves without an array of their own (text, graphs) are kept as objects.
                np.empty(self._shape, object)
                if leaf.kind != "array"
                else np.zeros((self._shape[0], *np.shape(part)), np.asarray(part).dtype)
                for leaf, part in zip(self._leaves, parts, strict=True)
            ]
        for position, (leaf, part) in enumerate(zip(self._leaves, parts, strict=True)):
            if leaf.kind == "array":
                self._columns[position] = _write_row(self._columns[position], step, np.asarray(part))
            else:
                for env_id, value in enumerate(part):
                    self._columns[position][step, env_id] = value

    def joined(self) -> Any:
        """Return everything that was written, in the structure of the space."""
        return self._join(self._columns)

    def copy_batch(self, batch: Any) -> Any:
        """Return a copy of a batch."""
        return self._join([copy.copy(part) for part in self._split(batch)])

    def append(self, value: Any) -> None:
        """Append a copy of a single value."""
        self._values.append([copy.copy(part) for part in self._split(value)])

    def append_row(self, batch: Any, row: int) -> None:
        """Append a copy of one row of a batch."""
        self.append(self._row_of(batch, row))

    def stacked(self) -> Any:
        """Return everything that was appended, in the structure of the space, one row per value."""
        columns: list[NDArray[Any]] = []
        for position, leaf in enumerate(self._leaves):
            parts = [values[position] for values in self._values]
            if leaf.kind == "array":
                columns.append(np.array(parts, leaf.dtype).reshape(len(parts), *leaf.shape))
            else:
                columns.append(np.empty(len(parts), object))
                for row, value in enumerate(parts):
                    columns[-1][row] = value
        return self._join(columns)


def _write_row(column: NDArray[Any], step: int, row: NDArray[Any]) -> NDArray[Any]:
    """Write a row and return the column: a new one if the old dtype cannot hold the row (0 at first, then 0.5)."""
    dtype = np.result_type(column.dtype, row.dtype)
    if dtype != column.dtype:
        column = column.astype(dtype)
    column[step] = row
    return column


def _have_same_values(one: Any, other: Any) -> bool:
    """Return whether two structured batches hold the same numbers; objects of other types are taken to be equal."""
    if type(one) is not type(other):  # None stands for the observation of an env that raised
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_have_same_values(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_have_same_values, one, other))
    if not isinstance(one, np.ndarray) or one.dtype.kind not in "biufc":
        return True
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"))
