"""Same seed, same rollout: Python envs on every executor, against a plain loop over the same envs.

Bit for bit, through many autoresets: observations, rewards, flags, elapsed steps, infos, and the last rows of
same_step. A rollout is one list of rows for each env, so that asynchronous ones compare by env id.
"""

from __future__ import annotations

import copy
import functools
import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import concatenate, create_empty_array
from support.ray_session import ray_session
from support.reference import ReferenceEnv, Row
from support.space_env import SPACES, SpaceEnv, encode

import envfleet
from envfleet import Pool

NUM_ENVS, SEED = 5, 21
NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
# An env that never answers must fail its own test, not the whole run.
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Case:
    """An env: what make_pool() takes, and what gives one to the reference."""

    env: Any
    factory: Callable[[], gymnasium.Env[Any, Any]]
    options: dict[str, Any] = field(default_factory=dict)
    num_steps: int = 40
    needs: str | None = None

    @staticmethod
    def of_id(env_id: str, needs: str | None = None, num_steps: int = 40, **options: Any) -> Case:
        return Case(env_id, lambda: gymnasium.make(env_id, **options), options, num_steps, needs)

    @staticmethod
    def of_kind(kind: str) -> Case:
        return Case(SpaceEnv, lambda: SpaceEnv(kind), {"env_kwargs": {"kind": kind}}, num_steps=30)


CASES = {
    "CartPole-v1": Case.of_id("CartPole-v1"),
    "Acrobot-v1": Case.of_id("Acrobot-v1", max_episode_steps=15),
    "Pendulum-v1": Case.of_id("Pendulum-v1", max_episode_steps=15),
    "FrozenLake-v1": Case.of_id("FrozenLake-v1"),
    "Taxi-v4": Case.of_id("Taxi-v4", max_episode_steps=15),
    "Blackjack-v1": Case.of_id("Blackjack-v1"),
    "LunarLander-v3": Case.of_id("LunarLander-v3", "Box2D", 30, max_episode_steps=20),
    "BipedalWalker-v3": Case.of_id("BipedalWalker-v3", "Box2D", 20, max_episode_steps=12),
    "Ant-v5": Case.of_id("Ant-v5", "mujoco", 10, max_episode_steps=6),
    "HalfCheetah-v5": Case.of_id("HalfCheetah-v5", "mujoco", 10, max_episode_steps=6),
    **{kind: Case.of_kind(kind) for kind in SPACES},
}


class Setting(NamedTuple):
    """How a pool runs its envs."""

    backend: str
    num_workers: int | None
    batch_size: int
    mode: AutoresetMode

    @property
    def name(self) -> str:
        workers = "" if self.num_workers is None else f"-{self.num_workers}"
        return f"{self.backend}{workers}-{'sync' if self.batch_size == NUM_ENVS else 'async'}-{self.mode.value}"


WORKERS = [("serial", None), *itertools.product(("threads", "processes"), (1, 2, 5))]
ALL_SETTINGS = [
    Setting(backend, num_workers, batch_size, mode)
    for (backend, num_workers), batch_size, mode in itertools.product(
        WORKERS, (NUM_ENVS, 2), (NEXT_STEP, SAME_STEP, DISABLED)
    )
]
# Each executor, worker count, way of batching and mode, and each pair of them that is likely to matter.
SOME_SETTINGS = [
    Setting("serial", None, 5, NEXT_STEP),
    Setting("serial", None, 2, SAME_STEP),
    Setting("serial", None, 5, DISABLED),
    Setting("threads", 1, 2, DISABLED),
    Setting("threads", 2, 5, SAME_STEP),
    Setting("threads", 5, 2, NEXT_STEP),
    Setting("processes", 1, 2, NEXT_STEP),
    Setting("processes", 2, 5, SAME_STEP),
    Setting("processes", 5, 2, DISABLED),
    Setting("processes", 2, 5, NEXT_STEP),
    Setting("processes", 5, 2, SAME_STEP),
]
# All settings for one env of each nature; that they work together does not depend on the env.
THOROUGH = ("CartPole-v1", "deep")

# An actor takes a second to start: a few of them here, all with the long runs.
RAY_SETTINGS = [
    Setting("ray", 2, 5, SAME_STEP),
    Setting("ray", 5, 2, NEXT_STEP),
    Setting("ray", 1, 2, DISABLED),
    Setting("ray", 2, 5, NEXT_STEP),
]
QUICK_ON_RAY = {("deep", 0), ("deep", 1), ("boxes", 2), ("CartPole-v1", 3)}

PARAMS = [
    pytest.param(name, setting, id=f"{name}-{setting.name}")
    for name in CASES
    for setting in (ALL_SETTINGS if name in THOROUGH else SOME_SETTINGS)
] + [
    pytest.param(
        name,
        setting,
        id=f"{name}-{setting.name}",
        marks=() if (name, position) in QUICK_ON_RAY else pytest.mark.soak,
    )
    for name in CASES
    for position, setting in enumerate(RAY_SETTINGS)
]


class Actions:
    """The actions of every env, drawn in its own order: the k-th of env i is the same for everybody."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        self._spaces = [copy.deepcopy(space) for _ in range(NUM_ENVS)]
        for env_id, own in enumerate(self._spaces):
            own.seed(1000 + env_id)
        self._drawn: list[list[Any]] = [[] for _ in range(NUM_ENVS)]

    def of(self, env_id: int, step: int) -> Any:
        drawn = self._drawn[env_id]
        while len(drawn) <= step:
            drawn.append(self._spaces[env_id].sample())
        return drawn[step]


@functools.cache
def actions_of(name: str) -> Actions:
    env = CASES[name].factory()
    env.close()
    return Actions(env.action_space)


@functools.cache
def expected(name: str, mode: AutoresetMode) -> list[list[Row]]:
    """What the plain loop gives: the rows of each env, a reset of an ended one among them in mode disabled."""
    case, actions = CASES[name], actions_of(name)
    rollout = []
    for env_id in range(NUM_ENVS):
        one = ReferenceEnv(case.factory(), mode)
        rows = [one.reset(seed=SEED + env_id)]
        for step in range(case.num_steps):
            rows.append(one.step(actions.of(env_id, step)))
            if mode is DISABLED and (rows[-1].terminated or rows[-1].truncated):
                rows.append(one.reset())
        one.env.close()
        rollout.append(rows)
    return rollout


def play(pool: Pool, case: Case, actions: Actions) -> list[list[Row]]:
    """The same rollout by a pool: reset, then batch by batch until every env has made its steps.

    All envs are sent again whatever they have done, or the last batches could not fill.
    """
    rollout: list[list[Row]] = [[] for _ in range(NUM_ENVS)]
    num_steps = [0] * NUM_ENVS
    space = pool.spec.action_space
    pool.async_reset(seed=SEED)
    while min(num_steps) < case.num_steps:
        batch = pool.recv(timeout=PATIENCE_S)
        env_ids = batch.env_id.tolist()
        for row, env_id in enumerate(env_ids):
            num_steps[env_id] += bool(rollout[env_id])  # the first row of an env is that of its reset
            rollout[env_id].append(row_of(pool, batch, row))
        ended = batch.env_id[batch.terminated | batch.truncated]
        if ended.size and pool.config.autoreset_mode is DISABLED:
            first = pool.reset(ended, timeout=PATIENCE_S)
            assert first.env_id.tolist() == ended.tolist()
            for row, env_id in enumerate(ended.tolist()):
                rollout[env_id].append(row_of(pool, first, row))
        chosen = [actions.of(env_id, num_steps[env_id]) for env_id in env_ids]
        pool.send(concatenate(space, chosen, create_empty_array(space, len(chosen))), batch.env_id)
    return rollout


def row_of(pool: Pool, batch: Any, row: int) -> Row:
    own = Row(
        value_of(pool.spec.observation_space, batch.obs, row),
        float(batch.reward[row]),
        bool(batch.terminated[row]),
        bool(batch.truncated[row]),
        int(batch.elapsed_step[row]),
        info_of(batch.info, row),
    )
    if batch.final is not None and (own.terminated or own.truncated):
        own.final_obs = value_of(pool.spec.observation_space, batch.final.obs, row)
        own.final_info = info_of(batch.final.info, row)
    return own


def value_of(space: spaces.Space[Any], batched: Any, row: int) -> Any:
    """One row of a batched value. Copied: a rollout must not lean on arrays staying as they are."""
    if isinstance(space, spaces.Dict):
        return {key: value_of(own, batched[key], row) for key, own in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(value_of(own, part, row) for own, part in zip(space.spaces, batched, strict=True))
    if isinstance(batched, np.ndarray):
        assert batched.dtype == space.dtype, f"{space} came as {batched.dtype}"
        return batched[row].copy()
    assert type(batched) is tuple, f"{space} came as {type(batched)}"
    return batched[row]


def info_of(info: dict[str, Any], row: int) -> dict[str, Any]:
    """The keys and values that one row has, out of columns and masks."""
    own = {}
    for key, column in info.items():
        if key.startswith("_"):
            continue
        mask = info.get(f"_{key}")
        if mask is None or mask[row]:
            own[key] = info_of(column, row) if isinstance(column, dict) else column[row]
    return own


def in_space(space: spaces.Space[Any], value: Any) -> Any:
    """An observation as the reference gave it (a Python int for Discrete, say) in the dtypes of its space."""
    if isinstance(space, spaces.Dict):
        return {key: in_space(own, value[key]) for key, own in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(in_space(own, part) for own, part in zip(space.spaces, value, strict=True))
    if isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        return np.asarray(value, dtype=space.dtype)
    return value


def assert_same_info(got: dict[str, Any] | None, want: dict[str, Any] | None, where: str) -> None:
    assert (got is None) == (want is None), where
    if got is None or want is None:
        return
    assert sorted(got) == sorted(want), where
    for key, value in want.items():
        if isinstance(value, dict):
            assert_same_info(got[key], value, f"{where}[{key!r}]")
        elif isinstance(value, str):
            assert got[key] == value, f"{where}[{key!r}]"
        else:
            assert np.shape(got[key]) == np.shape(value), f"{where}[{key!r}]"
            np.testing.assert_array_equal(got[key], value, err_msg=f"{where}[{key!r}]", strict=False)


def assert_same_rollout(space: spaces.Space[Any], got: list[list[Row]], want: list[list[Row]]) -> None:
    for env_id, (own, reference) in enumerate(zip(got, want, strict=True)):
        assert len(own) >= len(reference)
        for number, (row, other) in enumerate(zip(own, reference, strict=False)):
            where = f"env {env_id}, row {number}"
            flags = (row.reward, row.terminated, row.truncated, row.elapsed_step)
            assert flags == (other.reward, other.terminated, other.truncated, other.elapsed_step), where
            assert encode(row.obs) == encode(in_space(space, other.obs)), f"{where}: {row.obs} is not {other.obs}"
            assert_same_info(row.info, other.info, f"{where}, info")
            assert (row.final_info is None) == (other.final_info is None), where
            if other.final_info is not None:
                assert encode(row.final_obs) == encode(in_space(space, other.final_obs)), f"{where}, final_obs"
            assert_same_info(row.final_info, other.final_info, f"{where}, final_info")


def need(module: str | None) -> None:
    """Skips when it is not installed; imports it with warnings as they are to users otherwise.

    Box2D's generated code warns while it is imported, and crashes when that is made an error.
    """
    if module is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pytest.importorskip(module)


@pytest.mark.parametrize(("name", "setting"), PARAMS)
def test_a_rollout_is_that_of_a_plain_loop(name, setting, tmp_path, monkeypatch):
    case = CASES[name]
    monkeypatch.chdir(tmp_path)  # MuJoCo logs its warnings to a file where it stands
    need(case.needs)
    if setting.backend == "ray":
        ray_session()
    options: dict[str, Any] = {} if setting.num_workers is None else {"num_workers": setting.num_workers}
    with envfleet.make_pool(
        case.env,
        num_envs=NUM_ENVS,
        batch_size=setting.batch_size,
        backend=setting.backend,
        autoreset_mode=setting.mode,
        **({"ray": envfleet.RayConfig(inner_backend="serial")} if setting.backend == "ray" else {}),
        **case.options,
        **options,
    ) as pool:
        rollout = play(pool, case, actions_of(name))
        space = pool.spec.observation_space
        again = play_again(pool, case, name)
    want = expected(name, setting.mode)
    assert_same_rollout(space, rollout, want)
    if again is not None:
        assert_same_rollout(space, again, want)


def play_again(pool: Pool, case: Case, name: str) -> list[list[Row]] | None:
    """A second rollout by the same pool, with work in flight to be dropped: a seed is all that it depends on."""
    if pool.config.is_async or name not in THOROUGH:
        return None
    pool.reset(timeout=PATIENCE_S)
    return play(pool, case, actions_of(name))


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP, DISABLED])
@pytest.mark.parametrize("name", ["CartPole-v1", "FrozenLake-v1", "boxes", "deep"])
def test_the_rollouts_have_ends_of_both_kinds_and_infos(name, mode):
    """Otherwise the test above would hold little."""
    rows = [row for rows in expected(name, mode) for row in rows]
    assert sum(row.terminated for row in rows) >= 5
    if name in SPACES:
        assert sum(row.truncated for row in rows) >= 3
        assert {"checksum", "score", "rarely", "nested"} <= {key for row in rows for key in row.final_info or row.info}
    if mode is SAME_STEP:
        assert sum(row.final_obs is not None for row in rows) >= 5


@pytest.mark.parametrize(
    ("kind", "backend"),
    [*itertools.product(SPACES, ("serial", "threads", "processes")), ("deep", "ray")],
)
def test_observe_gives_the_last_rows(kind, backend):
    if backend == "ray":
        ray_session()
    with envfleet.make_pool(SpaceEnv, num_envs=3, backend=backend, env_kwargs={"kind": kind}) as pool:
        space, batch = pool.spec.observation_space, pool.reset(seed=SEED)
        actions = actions_of(kind)
        for step in range(3):
            chosen = [actions.of(env_id, step) for env_id in (2, 0)]
            pool.step(concatenate(pool.spec.action_space, chosen, create_empty_array(space, 2)), [2, 0])
        batch = pool.reset([1])
        assert encode(value_of(space, pool.observe(), 1)) == encode(value_of(space, batch.obs, 0))
