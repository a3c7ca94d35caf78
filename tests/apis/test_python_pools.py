"""The fronts over pools of Python envs: what Gymnasium's vector API offers, and the other dialects."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from support.info_env import RAISE, CountingEnv
from support.python_probes import FaultyEnv
from support.space_env import SPACES, SpaceEnv

import envfleet
from envfleet import ConfigError, EnvError

BACKENDS = ["serial", "threads", "processes"]


class Painter(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 12}  # noqa: RUF012 (as Gymnasium has it)
    observation_space = gymnasium.spaces.Box(-10, 10, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, shade: int = 7, render_mode: str | None = None) -> None:
        self.shade, self.render_mode = shade, render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(2, np.float32), {"options": options}

    def step(self, action):
        self.count += 1
        return np.full(2, self.count, np.float32), 1.0, self.count == 3, False, {"count": self.count}

    def render(self):
        return np.full((4, 6, 3), self.shade, np.uint8)

    def add(self, one: int, other: int = 0) -> int:
        return self.shade + one + other


@pytest.fixture(params=BACKENDS)
def make(request):
    pools = []

    def make(env, **options):
        pools.append(envfleet.make(env, backend=request.param, **options))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def test_pictures(make):
    envs = make(Painter, env_kwargs=[{"shade": k} for k in range(5)], num_envs=5, render_mode="rgb_array")
    envs.reset()
    frames = envs.render()
    assert isinstance(frames, tuple)
    assert [int(frame[0, 0, 0]) for frame in frames] == [0, 1, 2, 3, 4]
    tiled = envs.render_tiled()
    assert tiled.shape == (2 * 4, 3 * 6, 3)
    assert tiled[0, 6 * 2, 0] == 2
    assert tiled[4, 0, 0] == 3
    assert envs.metadata["render_fps"] == 12
    assert envs.render_mode == "rgb_array"
    assert "autoreset_mode" not in Painter.metadata


def test_calls_and_attributes(make):
    envs = make(Painter, num_envs=3)
    envs.reset(seed=5)
    assert envs.call("add", 2, other=1) == (10, 10, 10)
    assert envs.call("shade") == (7, 7, 7)
    assert envs.get_attr("shade") == (7, 7, 7)
    envs.set_attr("shade", [1, 2, 3])
    assert envs.get_attr("shade") == (1, 2, 3)
    assert envs.pool.call("add", 1, env_ids=[2]) == (4,)
    assert envs.np_random_seed == (5, 6, 7)
    assert [type(own).__name__ for own in envs.np_random] == ["Generator"] * 3
    for wrong in (lambda: envs.get_attr("colour"), lambda: envs.call("paint")):
        with pytest.raises(AttributeError, match="no attribute"):
            wrong()
    with pytest.raises(envfleet.EnvError, match=r"env 0 raised in add\(\).*TypeError"):
        envs.call("add", "x")


def test_a_masked_reset_gives_all_rows_and_the_infos_of_the_masked(make):
    envs = make(Painter, num_envs=3)
    envs.reset(options={"level": 1})
    envs.step(np.zeros(3, dtype=np.int64))
    options = {"reset_mask": np.array([True, False, True]), "level": 2}
    obs, info = envs.reset(options=options)
    assert "reset_mask" in options
    assert obs[:, 0].tolist() == [0, 1, 0]
    assert info["options"]["level"].tolist() == [2, 0, 2]
    assert info["_options"].tolist() == [True, False, True]


def test_same_step_ends_bring_final_obs_and_info(make):
    envs = make(Painter, num_envs=2, autoreset_mode=AutoresetMode.SAME_STEP)
    envs.reset()
    envs.step(np.zeros(2, dtype=np.int64), env_id=None)
    envs.step(np.zeros(2, dtype=np.int64))
    obs, _, terminated, _, info = envs.step(np.zeros(2, dtype=np.int64))
    assert terminated.all()
    assert obs.tolist() == [[0, 0], [0, 0]]
    assert info["final_obs"][1].tolist() == [3, 3]
    assert info["final_info"]["count"].tolist() == [3, 3]
    assert info["_final_info"].tolist() == [True, True]


@pytest.mark.parametrize("kind", sorted(SPACES))
def test_observations_are_in_the_batched_space(make, kind):
    envs = make(lambda: SpaceEnv(kind), num_envs=3, autoreset_mode="same_step")
    obs, _ = envs.reset(seed=0)
    assert envs.observation_space.contains(obs)
    envs.action_space.seed(0)
    for _ in range(6):
        obs, _, terminated, truncated, info = envs.step(envs.action_space.sample())
        assert envs.observation_space.contains(obs)
        for row in np.flatnonzero(terminated | truncated):
            assert envs.single_observation_space.contains(info["final_obs"][row])


def test_gymnasiums_vector_wrappers_wrap_it(make):
    envs = RecordEpisodeStatistics(make("CartPole-v1", num_envs=4))
    envs.reset(seed=0)
    seen = 0
    for _ in range(60):
        *_, info = envs.step(np.ones(4, dtype=np.int64))
        seen += int(info["_episode"].sum()) if "episode" in info else 0
    assert seen >= 8


def test_the_old_gym_and_dm_dialects(make):
    backend = make("CartPole-v1").pool.spec.backend
    old = envfleet.make_gym(FaultyEnv, num_envs=2, backend=backend, length=3)
    old.reset()
    for _ in range(3):
        _, reward, done, info = old.step(np.zeros(2, dtype=np.int64))
    assert done.all()
    assert reward.dtype == np.float32
    assert not info["TimeLimit.truncated"].any()
    old.close()
    dm = envfleet.make_dm(FaultyEnv, num_envs=2, backend=backend, length=3)
    step = dm.reset()
    assert step.first().all()
    for _ in range(3):
        step = dm.step(np.zeros(2, dtype=np.int64))
    assert step.last().all()
    assert step.discount.tolist() == [0, 0]
    dm.close()


def test_copy_false_gives_views_that_the_next_batch_overwrites(make):
    envs = make(Painter, num_envs=2, copy=False)
    first, _ = envs.reset()
    envs.step(np.zeros(2, dtype=np.int64))
    assert first[:, 0].tolist() == [1, 1]


def test_state_of_a_picklable_env_goes_back(make):
    envs = make("CartPole-v1", num_envs=2)
    envs.reset(seed=0)
    envs.step(np.ones(2, dtype=np.int64))
    saved = envs.get_state()
    once = [envs.step(np.ones(2, dtype=np.int64)) for _ in range(30)]
    envs.set_state(saved)
    for before in once:
        again = envs.step(np.ones(2, dtype=np.int64))
        np.testing.assert_array_equal(again[0], before[0])
        np.testing.assert_array_equal(again[4]["elapsed_step"], before[4]["elapsed_step"])


@pytest.mark.parametrize("backend", ["serial", "threads", "processes"])
def test_infos_of_a_restarted_env(backend):
    """The infos of its first row have the same dtype as those of a reset: bool stays bool."""
    options = {"num_envs": 3, "backend": backend, "autoreset_mode": "same_step", "on_error": "restart", "seed": 0}
    with envfleet.make(CountingEnv, **options) as envs:
        envs.reset()
        *_, info = envs.step(np.array([0, RAISE, 0]))
        assert info["is_first"].tolist() == [False, True, False]
        assert info["is_first"].dtype == bool
        assert info["error"].tolist() == [0.5, "step(): told to raise", 0.5]


@pytest.mark.parametrize("backend", ["native", "serial", "processes"])
def test_reset_mask_is_for_vector_envs(backend):
    env = "CartPole-v1" if backend == "native" else CountingEnv
    with (
        envfleet.make_pool(env, num_envs=3, backend=backend) as pool,
        pytest.raises(ConfigError, match=r"got 'reset_mask', which only reset\(\) of a VectorEnv takes"),
    ):
        pool.reset(options={"reset_mask": np.array([True, False, False])})


class WideIntegers(CountingEnv):
    observation_space = spaces.Box(-100, 100, (1,), np.int8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.array([100]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.array([300]), 1.0, False, False, {}


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_integers_that_the_observation_space_cannot_hold(backend):
    with envfleet.make_pool(WideIntegers, num_envs=1, backend=backend) as pool:
        assert pool.reset().obs.tolist() == [[100]]
        with pytest.raises(EnvError, match=r"observation of dtype int8, got .*300.*, which it cannot hold"):
            pool.step(np.zeros(1, np.int64))
