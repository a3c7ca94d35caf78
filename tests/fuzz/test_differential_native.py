"""Native envs with random options, modes and calls, against Gymnasium's env of the same options.

Everything is equal to the last bit, as docs/semantics.md says, but for LAST_BITS of those MuJoCo envs that
tests/oracle/test_mujoco.py names with the reason. get_state() and set_state() around a detour must leave no trace, and
an asynchronous pool gives every env the rows that it has in a synchronous one. See random_cases.py for the
environment variables.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import pytest
from fuzz.random_cases import NUM_CASES, run_cases
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from hypothesis import strategies as st
from support.reference import ReferenceEnv, Row

import envfleet
from envfleet.core.infos import split_rows

HAS_MUJOCO = importlib.util.find_spec("mujoco") is not None
LAST_BITS = 1e-14
_LAST_BITS_IN = ("Reacher", "InvertedDoublePendulum", "Pusher")
_LAST_BITS_OF = ("distance_from_origin",)
pytestmark = pytest.mark.filterwarnings("ignore:.*is out of date")  # what Gymnasium says of version 4

Options = dict[str, st.SearchStrategy[Any]]
_FLAG = st.booleans()
_WEIGHT = st.sampled_from([0.0, 0.05, 0.5, 1.0, 2.5])
_NOISE = st.sampled_from([0.0, 0.005, 0.1, 0.3])
_SKIP = st.integers(1, 5)


def _interval(*ends: float) -> st.SearchStrategy[tuple[float, float]]:
    return st.lists(st.sampled_from(ends), min_size=2, max_size=2, unique=True).map(lambda pair: tuple(sorted(pair)))


@st.composite
def _lakes(draw: Any) -> list[str]:
    """A map for FrozenLake, with a start and a goal anywhere."""
    num_columns = draw(st.integers(2, 5))
    row = st.text("FFFHSG", min_size=num_columns, max_size=num_columns)
    rows = draw(st.lists(row, min_size=1, max_size=4))
    return ["S" + "F" * (num_columns - 1), *rows, "F" * (num_columns - 1) + "G"]


_ENVS: dict[str, Options] = {
    "CartPole-v0": {"sutton_barto_reward": _FLAG},
    "CartPole-v1": {"sutton_barto_reward": _FLAG},
    "MountainCar-v0": {"goal_velocity": st.floats(0, 0.07)},
    "MountainCarContinuous-v0": {"goal_velocity": st.floats(0, 0.07)},
    "Pendulum-v1": {"g": st.floats(0, 20)},
    "Acrobot-v1": {},
    "FrozenLake-v1": {
        "is_slippery": _FLAG,
        "success_rate": st.floats(0.01, 1),
        "reward_schedule": st.tuples(*[st.sampled_from([1, 0, -0.1, 10])] * 3),
        "desc": st.none() | _lakes(),
        "map_name": st.sampled_from(["4x4", "8x8"]),
    },
    "FrozenLake8x8-v1": {"is_slippery": _FLAG},
    "CliffWalking-v1": {"is_slippery": _FLAG},
    "CliffWalkingSlippery-v1": {},
    "Taxi-v4": {
        "is_rainy": _FLAG,
        "fickle_passenger": _FLAG,
        "rainy_probability": st.floats(0, 1),
        "fickle_probability": st.floats(0, 1),
    },
    "Blackjack-v1": {"natural": _FLAG, "sab": _FLAG},
}
_RESET_OPTIONS: dict[str, Options] = {
    "CartPole-v0": {"low": st.floats(-0.1, 0), "high": st.floats(0, 0.1)},
    "CartPole-v1": {"low": st.floats(-0.1, 0), "high": st.floats(0, 0.1)},
    "MountainCar-v0": {"low": st.floats(-1, -0.6), "high": st.floats(-0.4, 0.3)},
    "MountainCarContinuous-v0": {"low": st.floats(-1, -0.6), "high": st.floats(-0.4, 0.3)},
    "Pendulum-v1": {"x_init": st.floats(0, 3), "y_init": st.floats(0, 5)},
    "Acrobot-v1": {"low": st.floats(-2, -0.2), "high": st.floats(0.2, 2)},
}

_POSITIONS: Options = {"exclude_current_positions_from_observation": _FLAG}
_COMMON: Options = {"frame_skip": _SKIP, "reset_noise_scale": _NOISE}
_MOVING: Options = {**_COMMON, **_POSITIONS, "forward_reward_weight": _WEIGHT, "ctrl_cost_weight": _WEIGHT}
_HEALTHY: Options = {"healthy_reward": _WEIGHT, "terminate_when_unhealthy": _FLAG}
_BODIES: Options = {f"include_{name}_in_observation": _FLAG for name in ("cinert", "cvel", "qfrc_actuator", "cfrc_ext")}
_MUJOCO: dict[str, Options] = {
    "Ant-v5": {
        **_MOVING,
        **_HEALTHY,
        "contact_cost_weight": _WEIGHT,
        "contact_force_range": _interval(-1.0, -0.3, 0.6, 1.0),
        "healthy_z_range": _interval(0.2, 0.4, 0.9, 1.0),
        "main_body": st.sampled_from([1, 4, "torso"]),
        "include_cfrc_ext_in_observation": _FLAG,
    },
    "HalfCheetah-v5": _MOVING,
    "HalfCheetah-v4": {name: own for name, own in _MOVING.items() if name != "frame_skip"},
    "Hopper-v5": {
        **_MOVING,
        **_HEALTHY,
        "healthy_state_range": _interval(-100.0, -4.0, 4.0, 100.0),
        "healthy_z_range": _interval(0.5, 0.7, 2.0, float("inf")),
        "healthy_angle_range": _interval(-1.0, -0.2, 0.2, 1.0),
    },
    "Humanoid-v5": {
        **_MOVING,
        **_HEALTHY,
        **_BODIES,
        "contact_cost_weight": _WEIGHT,
        "contact_cost_range": _interval(0.0, 0.01, 10.0),
        "healthy_z_range": _interval(0.5, 1.0, 2.0),
    },
    "HumanoidStandup-v5": {
        **_COMMON,
        **_POSITIONS,
        **_BODIES,
        "uph_cost_weight": _WEIGHT,
        "ctrl_cost_weight": _WEIGHT,
        "impact_cost_weight": _WEIGHT,
        "impact_cost_range": _interval(0.1, 0.2, 10.0),
    },
    "InvertedPendulum-v5": _COMMON,
    "InvertedDoublePendulum-v5": {**_COMMON, "healthy_reward": _WEIGHT},
    "Pusher-v5": {
        "frame_skip": _SKIP,
        "reward_near_weight": _WEIGHT,
        "reward_dist_weight": _WEIGHT,
        "reward_control_weight": _WEIGHT,
    },
    "Reacher-v5": {"frame_skip": _SKIP, "reward_dist_weight": _WEIGHT, "reward_control_weight": _WEIGHT},
    "Swimmer-v5": _MOVING,
    "Walker2d-v5": {
        **_MOVING,
        **_HEALTHY,
        "healthy_z_range": _interval(0.5, 0.8, 2.0, 3.0),
        "healthy_angle_range": _interval(-1.0, -0.1, 0.1, 1.0),
    },
}
# The state in double precision, where Gymnasium's env keeps it under the same name.
_STATES = {
    **dict.fromkeys(("CartPole", "MountainCar", "MountainCarContinuous", "Pendulum", "Acrobot"), "state"),
    **dict.fromkeys(("FrozenLake", "FrozenLake8x8", "CliffWalking", "CliffWalkingSlippery", "Taxi"), "s"),
}
_CALLS = ["steps"] * 6 + ["many_steps", "reset", "reset_some", "reset_seeds", "reset_options", "detour", "observe"]


@dataclass(frozen=True)
class Case:
    """A native env with options, and what is done with a pool of them."""

    id: str
    params: dict[str, Any]
    num_envs: int
    num_threads: int
    mode: str
    max_episode_steps: int | None
    seed: int
    reset_options: dict[str, Any] = field(default_factory=dict)
    batch_size: int | None = None
    calls: tuple[str, ...] = ()

    @property
    def options(self) -> dict[str, Any]:
        limit = {} if self.max_episode_steps is None else {"max_episode_steps": self.max_episode_steps}
        return {**self.params, **limit}


@st.composite
def _chosen(draw: Any, options: Options) -> dict[str, Any]:
    return {name: draw(values) for name, values in options.items() if draw(st.booleans())}


@st.composite
def native_cases(draw: Any, envs: dict[str, Options]) -> Case:
    env_id = draw(st.sampled_from(sorted(envs)))
    num_envs = draw(st.integers(1, 5))
    return Case(
        env_id,
        draw(_chosen(envs[env_id])),
        num_envs,
        draw(st.integers(1, 2)),
        draw(st.sampled_from(["next_step", "same_step", "disabled"])),
        draw(st.sampled_from([None, 1, 3, 10, 25])),
        draw(st.integers(0, 2**31 - 100)),
        draw(_chosen(_RESET_OPTIONS.get(env_id, {}))),
        draw(st.none() | st.integers(1, num_envs)) if draw(st.booleans()) else None,
        tuple(draw(st.lists(st.sampled_from(_CALLS), min_size=3, max_size=10))),
    )


class Comparison:
    """A pool and one reference per env, which are given the same calls."""

    def __init__(self, case: Case, pool: envfleet.Pool) -> None:
        self._case, self._pool = case, pool
        mode = AutoresetMode[case.mode.upper()]
        self._references = [
            ReferenceEnv(gymnasium.make(case.id, disable_env_checker=True, **case.options), mode)
            for _ in range(case.num_envs)
        ]
        self._random = np.random.default_rng(case.seed)
        self._ended = np.zeros(case.num_envs, np.bool_)
        self._ids = np.arange(case.num_envs, dtype=np.int32)
        self._last_obs: list[Any] = [None] * case.num_envs
        oracle = self._references[0].env
        assert pool.spec.backend == "native"
        assert pool.spec.observation_space == oracle.observation_space
        assert pool.spec.action_space == oracle.action_space
        assert oracle.spec is not None
        assert pool.spec.max_episode_steps == oracle.spec.max_episode_steps

    def run(self) -> None:
        batch = self._pool.reset(seed=self._case.seed)
        rows = [reference.reset(seed=self._case.seed + i) for i, reference in enumerate(self._references)]
        self._compare(batch, self._ids, rows, "reset(seed)")
        if self._case.batch_size is not None and self._case.batch_size < self._case.num_envs:
            self._run_async()
            return
        for call in self._case.calls:
            getattr(self, call)()

    def close(self) -> None:
        for reference in self._references:
            reference.env.close()

    # --- calls -------------------------------------------------------------------------------------

    def many_steps(self) -> None:
        for _ in range(8):
            self.steps()

    def steps(self) -> None:
        for _ in range(8):
            if self._case.mode == "disabled" and self._ended.any():
                self._reset(np.flatnonzero(self._ended).astype(np.int32))
            actions = self._balanced(self._actions(self._case.num_envs))
            batch = self._pool.step(actions)
            self._compare(batch, self._ids, self._reference_rows(self._ids, actions), "step()")

    def reset(self) -> None:
        self._reset(self._ids)

    def reset_some(self) -> None:
        self._reset(self._some())

    def reset_seeds(self) -> None:
        ids = self._some()
        self._reset(ids, seeds=self._random.integers(2**31, size=len(ids)).tolist())

    def reset_options(self) -> None:
        self._reset(self._some(), options=self._case.reset_options)

    def observe(self) -> None:
        """Read without moving anything."""
        for env_id, obs in enumerate(self._last_obs):
            self._compare_values(_row(self._pool.observe(), env_id), obs, "observe()")
        self._pool.stats()
        name = _STATES.get(self._case.id.rpartition("-")[0])
        if name is not None:
            for own, reference in zip(self._pool.get_attr(name), self._references, strict=True):
                self._compare_values(own, getattr(reference.env.unwrapped, name), name)

    def detour(self) -> None:
        """Save, go somewhere else, and come back: what follows must be as if nothing had been."""
        saved = self._pool.get_state()
        traces = []
        for _ in range(2):
            random = np.random.default_rng(self._case.seed)
            self._pool.reset(self._ids[self._ended]) if self._case.mode == "disabled" else None
            rows = [self._pool.step(self._actions(self._case.num_envs, random))]
            if self._case.mode != "disabled":
                rows += [self._pool.step(self._actions(self._case.num_envs, random)) for _ in range(5)]
            traces.append([(_leaves(own.obs), own.reward, own.terminated, own.truncated) for own in rows])
            self._pool.set_state(saved)
        for one, other in zip(*traces, strict=True):
            for column, again in zip([*one[0], *one[1:]], [*other[0], *other[1:]], strict=True):
                assert column.tobytes() == again.tobytes(), "two runs from one state differ"

    def _reset(self, ids: Any, seeds: list[int] | None = None, options: dict[str, Any] | None = None) -> None:
        batch = self._pool.reset(ids, seed=seeds, options=options)
        own_seeds = [None] * len(ids) if seeds is None else seeds
        rows = [
            self._references[env_id].reset(seed=seed, options=options)
            for env_id, seed in zip(ids, own_seeds, strict=True)
        ]
        self._compare(batch, ids, rows, f"reset({ids}, {seeds}, {options})")

    def _run_async(self) -> None:
        """Rows in order of completion: each env has those of its reference, in its own order."""
        self._pool.send(actions := self._actions(self._case.num_envs), self._ids)
        expected = dict(zip(self._ids.tolist(), self._reference_rows(self._ids, actions), strict=True))
        for _ in range(10 * len(self._case.calls)):
            batch = self._pool.recv()
            assert len(batch) == self._case.batch_size
            self._compare(batch, batch.env_id, [expected[env_id] for env_id in batch.env_id.tolist()], "recv()")
            if self._case.mode == "disabled" and self._ended[batch.env_id].any():
                return
            actions = self._actions(len(batch))
            self._pool.send(actions, batch.env_id)
            expected.update(zip(batch.env_id.tolist(), self._reference_rows(batch.env_id, actions), strict=True))

    # --- parts -------------------------------------------------------------------------------------

    def _actions(self, count: int, random: np.random.Generator | None = None) -> Any:
        random = random or self._random
        space = self._pool.spec.action_space
        if isinstance(space, spaces.Box):
            return random.uniform(space.low, space.high, (count, *space.shape)).astype(space.dtype)
        return random.integers(space.start, space.start + space.n, size=count)

    def _balanced(self, actions: Any) -> Any:
        """Actions that mostly keep CartPole's pole upright: a difference in the last bit takes long to show."""
        if not self._case.id.startswith("CartPole"):
            return actions
        balance = np.stack(self._last_obs) @ [0.3, 0.8, 10, 2] > 0
        return np.where(self._random.random(len(actions)) < 0.9, balance, actions)

    def _some(self) -> Any:
        count = int(self._random.integers(1, self._case.num_envs + 1))
        return self._random.permutation(self._ids)[:count]

    def _reference_rows(self, ids: Any, actions: Any) -> list[Row]:
        return [self._references[env_id].step(action) for env_id, action in zip(ids, actions, strict=True)]

    def _compare(self, batch: Any, ids: Any, rows: list[Row], what: str) -> None:
        assert batch.env_id.tolist() == list(ids)
        for position, (env_id, row) in enumerate(zip(ids, rows, strict=True)):
            where = f"{self._case.id}, {what}, env {env_id}"
            self._compare_values(_row(batch.obs, position), row.obs, f"{where}: observation")
            self._compare_values(batch.reward[position], row.reward, f"{where}: reward")
            assert (batch.terminated[position], batch.truncated[position]) == (row.terminated, row.truncated), where
            assert batch.elapsed_step[position] == row.elapsed_step, where
            self._compare_info(batch.info, position, row.info, where)
            self._last_obs[env_id] = row.obs
            self._ended[env_id] = row.terminated or row.truncated
            if row.final_obs is not None:
                self._compare_values(_row(batch.final.obs, position), row.final_obs, f"{where}: final observation")
                self._compare_info(batch.final.info, position, row.final_info or {}, f"{where}: final")

    def _compare_info(self, info: dict[str, Any], position: int, expected: dict[str, Any], where: str) -> None:
        own = split_rows(info, position)
        assert own.keys() == expected.keys(), f"{where}: infos"
        for key, value in expected.items():
            self._compare_values(own[key], value, f"{where}: {key}", is_rounded=key in _LAST_BITS_OF)

    def _compare_values(self, own: Any, expected: Any, where: str, is_rounded: bool = False) -> None:
        tolerance = LAST_BITS if is_rounded or self._case.id.startswith(_LAST_BITS_IN) else 0.0
        if not np.array_equal(own, expected, equal_nan=True):
            np.testing.assert_allclose(own, expected, rtol=tolerance, atol=tolerance, err_msg=where)


def _leaves(obs: Any) -> tuple[Any, ...]:
    return obs if isinstance(obs, tuple) else (obs,)


def _row(obs: Any, position: int) -> Any:
    """One env's observation; a tuple's parts as one array."""
    return [part[position] for part in obs] if isinstance(obs, tuple) else obs[position]


def compare(case: Case) -> None:
    pool = envfleet.make_pool(
        case.id,
        num_envs=case.num_envs,
        batch_size=case.batch_size,
        num_threads=case.num_threads,
        autoreset_mode=case.mode,
        **case.options,
    )
    with pool:
        comparison = Comparison(case, pool)
        try:
            comparison.run()
        finally:
            comparison.close()


needs_mujoco = pytest.mark.skipif(not HAS_MUJOCO, reason="needs mujoco: pip install envfleet[mujoco]")


def test_native_envs_with_random_options():
    run_cases(compare, native_cases(_ENVS), 30, "native envs")


@needs_mujoco
def test_mujoco_envs_with_random_options():
    run_cases(compare, native_cases(_MUJOCO), 6, "MuJoCo envs")


@pytest.mark.soak
@pytest.mark.timeout(24 * 3600)
@pytest.mark.parametrize("env_id", sorted(_ENVS))
def test_a_native_env_with_many_random_options(env_id):
    run_cases(compare, native_cases({env_id: _ENVS[env_id]}), NUM_CASES, env_id)


@needs_mujoco
@pytest.mark.soak
@pytest.mark.timeout(24 * 3600)
@pytest.mark.parametrize("env_id", sorted(_MUJOCO))
def test_a_mujoco_env_with_many_random_options(env_id):
    run_cases(compare, native_cases({env_id: _MUJOCO[env_id]}), NUM_CASES, env_id)
