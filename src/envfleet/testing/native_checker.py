"""The part of check_env() for native envs: rollouts in pools, compared with each other bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar

import numpy as np

from envfleet.building.pools import make_pool
from envfleet.core.batch import Batch
from envfleet.core.errors import EnvError, EnvfleetError, MissingExtraError
from envfleet.core.pool import Pool
from envfleet.core.spaces import join, split
from envfleet.testing.report import Findings, describe_error, short
from envfleet.testing.results import check_observation, check_reward
from envfleet.testing.rollouts import RolloutStopped, Row, first_difference

T = TypeVar("T")

_CHEAP_STEP_NS = 200
_MANY_ENVS = 257  # fills groups of step_lanes(), and leaves an env over
_FEW_ENVS = 3
_POSITION = 1  # of the env that is compared, in a pool of several
_SEED_REMEDY = "draw every random number from the Rng that reset() and step() receive, not from std::rand() or a clock"
_STATE_REMEDY = "declare every member that reset() or step() changes in fields(), or write it in save() and load()"


class NativeCheck:
    """Checks the native env of an id."""

    def __init__(self, env_id: str, kwargs: Mapping[str, Any], num_steps: int, seed: int, findings: Findings) -> None:
        self._env_id = env_id
        self._kwargs = dict(kwargs)
        self._num_steps = num_steps
        self._seed = seed
        self._findings = findings

    def run(self) -> None:
        """Run the checks; a step that raises ends them."""
        with ExitStack() as pools:
            try:
                self._run(pools)
            except RolloutStopped:
                return

    def _run(self, pools: ExitStack) -> None:
        pool = self._make(pools)
        space = pool.spec.action_space
        space.seed(self._seed)
        actions = [space.sample() for _ in range(self._num_steps)]
        first = self._rollout(pool, actions, is_first=True)
        again = self._rollout(pool, actions)
        other = self._make(pools)
        fresh = self._rollout(other, actions)
        self._note_ends(pool, first)
        self._warn_of_unwritten_observations(pool, first)
        if (difference := first_difference(first, fresh)) is not None:
            self._findings.error(
                "unseeded randomness",
                f"expected the same rollout of two new envs with seed {self._seed}, got a difference in {difference}",
                f"{_SEED_REMEDY}; keep no state in static or global variables",
            )
            return
        if (difference := first_difference(first, again)) is not None:
            self._findings.error(
                "reset(seed) does not start over",
                f"expected the same rollout after a second reset(seed={self._seed}), got a difference in {difference}",
                f"set everything that step() changes in reset(); {_SEED_REMEDY}",
            )
            return
        self._check_beside_others(pools, pool, actions, first)
        if not pool.spec.has_state:
            self._findings.notes.append("it cannot be saved: it declares neither fields() nor save() and load()")
            return
        # In the middle of an episode, and between the end of one and the next.
        ends = [index for index, row in enumerate(first) if _is_end(row)]
        for middle in (len(actions) // 2, *ends[:1]):
            self._check_state(pool, other, actions, middle)

    def _make(self, pools: ExitStack, num_envs: int = 1) -> Pool:
        try:
            pool = make_pool(self._env_id, num_envs=num_envs, backend="native", env_kwargs=self._kwargs)
        except Exception as error:
            remedy = "correct the parameters, or the env's params(), spec() and constructor"
            if isinstance(error, MissingExtraError):
                remedy = "install what is missing"
            self._findings.error(
                "env cannot be made",
                f"expected a pool of {num_envs} env{'s' if num_envs > 1 else ''}, got {describe_error(error)}",
                remedy,
            )
            raise RolloutStopped from error
        return pools.enter_context(pool)

    # --- rollouts ------------------------------------------------------------------------

    def _rollout(self, pool: Pool, actions: Sequence[Any], *, is_first: bool = False) -> list[Row]:
        """Reset a pool of one env with the seed, step it with these actions and return its rows."""
        rows = [self._row(pool, self._call("reset()", lambda: pool.reset(seed=self._seed)), 0)]
        if is_first:
            self._check_row(pool, rows[0], "reset()")
        return rows + self._steps(pool, actions, is_first=is_first)

    def _steps(self, pool: Pool, actions: Sequence[Any], *, is_first: bool = False) -> list[Row]:
        rows: list[Row] = []
        elapsed_step = 0
        for action in actions:
            batch = self._call("step()", partial(pool.step, _batched([action])), action)
            rows.append(self._row(pool, batch, 0))
            if is_first:
                elapsed_step = 0 if len(rows) > 1 and _is_end(rows[-2]) else elapsed_step + 1
                self._check_row(pool, rows[-1], "step()" if elapsed_step > 0 else "reset()")
                self._check_end(pool, rows[-1], elapsed_step, int(batch.elapsed_step[0]))
        return rows

    def _check_end(self, pool: Pool, row: Row, expected: int, elapsed_step: int) -> None:
        limit = pool.spec.max_episode_steps
        is_late = limit is not None and elapsed_step >= limit and not row[3]
        if elapsed_step != expected or is_late:
            self._findings.error(
                "episode ends are wrong",
                f"expected elapsed_step {expected}, and an end at the time limit of {limit} steps, got elapsed_step "
                f"{elapsed_step}{' and no end' if is_late else ''}",
                "report this as a bug of envfleet, with the env's source",
            )

    def _row(self, pool: Pool, batch: Batch, row: int) -> Row:
        """Return a row as rollouts.py records it: of a reset, the observation alone."""
        space = pool.spec.observation_space
        obs = join(space)([column[row] for column in split(space)(batch.obs)])
        if batch.elapsed_step[row] == 0:
            return (obs,)
        return obs, batch.reward[row], batch.terminated[row], batch.truncated[row]

    def _check_row(self, pool: Pool, row: Row, method: str) -> None:
        check_observation(pool.spec.observation_space, row[0], method, self._findings)
        if len(row) > 1:
            check_reward(row[1], method, self._findings)

    def _call(self, method: str, call: Callable[[], T], action: Any = None) -> T:
        try:
            return call()
        except EnvError as error:
            fault = error.faults[0]
            detail = "" if action is None else f"; the action was {short(action)}"
            self._findings.error(
                f"{fault.method}() raises",
                f"expected a result of {method}, got an exception: {fault.message}{detail}",
                "correct what throws; to end an episode, set out.terminated or out.truncated instead",
            )
            raise RolloutStopped from error

    # --- what is compared ----------------------------------------------------------------

    def _check_beside_others(self, pools: ExitStack, alone: Pool, actions: Sequence[Any], expected: list[Row]) -> None:
        """Check that an env behaves alike whatever its position and its neighbours."""
        # Envs that take step_lanes() are stepped in groups: enough of them, if that costs nothing.
        is_cheap = 0 < getattr(alone.executor, "ns_per_step", 0) < _CHEAP_STEP_NS
        num_envs = _MANY_ENVS if is_cheap else _FEW_ENVS
        pool = self._make(pools, num_envs)
        seeds = [self._seed + 1 + env_id for env_id in range(num_envs)]
        seeds[_POSITION] = self._seed
        rows = [self._row(pool, self._call("reset()", lambda: pool.reset(seed=seeds)), _POSITION)]
        for index, action in enumerate(actions):
            # The others take another action of the rollout.
            given = [actions[index - 1]] * num_envs
            given[_POSITION] = action
            batch = self._call("step()", partial(pool.step, _batched(given)), action)
            rows.append(self._row(pool, batch, _POSITION))
        difference = first_difference(expected, rows)
        if difference is not None:
            self._findings.error(
                "envs share state",
                f"expected envs that do not affect each other, but an env alone and as env {_POSITION} of {num_envs} "
                f"differ in {difference}",
                "keep no state in static or global variables, and write every element of the observation if the env "
                "declares writes_every_element; step_lanes() must do what step() does",
            )

    def _check_state(self, pool: Pool, other: Pool, actions: Sequence[Any], middle: int) -> None:
        """Check that a state saved after so many steps continues bit for bit, in the same pool and in another one."""
        self._rollout(pool, actions[:middle])
        self._call("reset()", lambda: other.reset(seed=self._seed + 1))
        self._steps(other, actions[: middle // 2])
        try:
            saved = pool.get_state()
            expected = self._steps(pool, actions[middle:])
            pool.set_state(saved)
            restored = self._steps(pool, actions[middle:])
            other.set_state(saved)
            elsewhere = self._steps(other, actions[middle:])
        except EnvfleetError as error:
            self._findings.error(
                "state cannot be restored",
                f"expected a state that get_state() saves and set_state() loads, got {describe_error(error)}",
                "fix fields(), or save() and load()",
            )
            return
        for rows, where in ((restored, "the same pool"), (elsewhere, "another pool")):
            difference = first_difference([("state",), *expected], [("state",), *rows])
            if difference is not None:
                self._findings.error(
                    "state is incomplete",
                    f"expected steps that repeat bit for bit after set_state() in {where}, got a difference in "
                    f"{difference}, counted from there",
                    _STATE_REMEDY,
                )
                return

    def _note_ends(self, pool: Pool, rows: Sequence[Row]) -> None:
        steps = [row for row in rows if len(row) > 1]
        terminated = sum(bool(row[2]) for row in steps)
        truncated = sum(bool(row[3]) and not row[2] for row in steps)
        limit = pool.spec.max_episode_steps
        limit_text = "without a time limit" if limit is None else f"with a time limit of {limit} steps"
        self._findings.notes.append(
            f"it is a native env {limit_text}; in {len(steps)} random steps, {terminated} of its episodes terminated "
            f"and {truncated} were truncated"
        )

    def _warn_of_unwritten_observations(self, pool: Pool, rows: Sequence[Row]) -> None:
        columns = [own for row in rows for own in split(pool.spec.observation_space)(row[0]) if np.ndim(own) > 0]
        if columns and not any(np.any(own) for own in columns):
            self._findings.warning(
                "observation is always 0",
                f"all elements of all observations are 0 after reset() and {len(rows) - 1} steps",
                "write them to out.obs<T>(0) in reset() and step(), or in observe()",
            )


def _is_end(row: Row) -> bool:
    return len(row) > 1 and bool(row[2] or row[3])


def _batched(actions: Sequence[Any]) -> Any:
    return np.stack([np.asarray(action) for action in actions])
