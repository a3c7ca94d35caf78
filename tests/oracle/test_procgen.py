"""The Procgen envs against the package's own gym3 env, bit for bit: levels, frames, rewards, ends, infos.

The reference for env i of a pool with seed s is ProcgenGym3Env(num=1, rand_seed=s+i). ENVFLEET_PROCGEN_STEPS is the
number of steps per game of the long form.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.procgen_package import NEEDS_GYM3, NEEDS_PROCGEN, gym3_env

import envfleet
from envfleet.cli import main
from envfleet.core.errors import ConfigError, EnvError, StateError
from envfleet.families.procgen import GAMES

pytestmark = NEEDS_PROCGEN

NUM_STEPS = int(os.environ.get("ENVFLEET_PROCGEN_STEPS", "2500"))
NOTHING = 4  # the action
INFOS = ("prev_level_seed", "prev_level_complete", "level_seed")


class Package:
    """The package's envs, one per env of a pool. Each shows its last step."""

    def __init__(self, names: Sequence[str], seed: int, options: Mapping[str, Any]) -> None:
        self._envs = [
            gym3_env(num=1, env_name=name, rand_seed=seed + position, **options) for position, name in enumerate(names)
        ]
        self._observe()

    def step(self, actions: NDArray[np.int64]) -> None:
        for env, action in zip(self._envs, actions, strict=True):
            env.act(np.array([action]))
        self._observe()

    def _observe(self) -> None:
        rows = [env.observe() for env in self._envs]
        self.reward = np.concatenate([reward for reward, _, _ in rows])
        self.obs = np.concatenate([obs["rgb"] for _, obs, _ in rows])
        self.first = np.concatenate([first for _, _, first in rows])
        infos = [env.get_info()[0] for env in self._envs]
        self.info = {name: np.array([info[name] for info in infos]) for name in INFOS}

    def close(self) -> None:
        for env in self._envs:
            env.close()


def compare(names: Sequence[str], seed: int, num_steps: int, num_threads: int = 1, **options: Any) -> tuple[int, int]:
    """Step both with the same actions; return how many episodes were terminated, and how many truncated."""
    package = Package(names, seed, options)
    draw = np.random.default_rng(seed)
    num_terminated = num_truncated = 0
    pool_options = {"num_threads": num_threads, "autoreset_mode": "same_step", "env_name": list(names)}
    with envfleet.make("procgen-coinrun", num_envs=len(names), **pool_options, **options) as envs:
        assert envs.spec.backend == "native"
        obs, info = envs.reset(seed=seed)
        for name in INFOS:
            assert np.array_equal(info[name], package.info[name]), name
        for _ in range(num_steps):
            assert np.array_equal(obs, package.obs)
            actions = draw.integers(15, size=len(names))
            previous = obs
            obs, reward, terminated, truncated, info = envs.step(actions)
            package.step(actions)
            assert np.array_equal(reward, package.reward)
            assert np.array_equal(terminated | truncated, package.first)
            for name in INFOS:
                # A reset after the time limit steps the game once more, which may complete the level.
                is_same = (info[name] == package.info[name]) | (truncated if name == "prev_level_complete" else False)
                assert is_same.all(), name
            for position in terminated.nonzero()[0]:
                assert np.array_equal(info["final_obs"][position], previous[position])
                assert info["final_info"]["level_seed"][position] == package.info["level_seed"][position]
            num_terminated += int(terminated.sum())
            num_truncated += int(truncated.sum())
    package.close()
    return num_terminated, num_truncated


@NEEDS_GYM3
def test_every_game() -> None:
    # On several threads, each env on any of them.
    num_terminated, _ = compare([*GAMES] * 2, seed=1, num_steps=120, num_threads=4)
    assert num_terminated >= 8


@NEEDS_GYM3
@pytest.mark.parametrize(
    ("names", "options"),
    [
        (["coinrun", "maze"], {"distribution_mode": "easy", "num_levels": 2, "start_level": 2**31 - 3}),
        (["fruitbot", "jumper"], {"use_sequential_levels": True, "use_backgrounds": False, "num_levels": 3}),
        (["heist", "ninja"], {"use_monochrome_assets": True, "restrict_themes": True, "center_agent": False}),
        (["starpilot", "coinrun"], {"use_generated_assets": True, "paint_vel_info": True}),
        (["dodgeball"], {"distribution_mode": "memory", "debug_mode": 1}),
        (["leaper"], {"distribution_mode": "extreme"}),
        (["climber"], {"distribution_mode": "exploration"}),
    ],
    ids=str,
)
def test_options(names: list[str], options: dict[str, Any]) -> None:
    compare(names, seed=3, num_steps=80, **options)


# Random actions hardly ever solve these within the time limit.
@NEEDS_GYM3
@pytest.mark.parametrize(
    ("name", "num_steps", "options"),
    [
        ("maze", 510, {}),
        ("maze", 510, {"use_generated_assets": True}),
        ("jumper", 2010, {"distribution_mode": "memory"}),
    ],
    ids=str,
)
def test_time_limit(name: str, num_steps: int, options: dict[str, Any]) -> None:
    assert compare([name], seed=7, num_steps=num_steps, **options)[1] == 1


@NEEDS_GYM3
@pytest.mark.soak
@pytest.mark.parametrize("name", GAMES)
def test_whole_episodes(name: str) -> None:
    for mode in ("easy", "hard", *GAMES[name]):
        num_terminated, num_truncated = compare([name] * 3, 11, NUM_STEPS, 2, distribution_mode=mode)
        assert num_terminated + num_truncated > 0 or NUM_STEPS < 2100
    for options in (
        {"use_sequential_levels": True, "num_levels": 5},
        {"use_monochrome_assets": True, "use_backgrounds": False},
        {"use_generated_assets": True, "restrict_themes": True, "paint_vel_info": True, "center_agent": False},
    ):
        compare([name], 12, NUM_STEPS, **options)


@pytest.mark.soak
def test_many_threads() -> None:
    """256 envs on 8 threads, made and reset in parallel, do what they do on one thread."""
    options = {"num_envs": 256, "env_name": [*GAMES] * 16}
    with (
        envfleet.make_pool("procgen-coinrun", num_threads=8, **options) as parallel,
        envfleet.make_pool("procgen-coinrun", num_threads=1, **options) as serial,
    ):
        draw = np.random.default_rng(0)
        for seed in (0, 1):
            assert np.array_equal(parallel.reset(seed=seed).obs, serial.reset(seed=seed).obs)
            for _ in range(200):
                actions = draw.integers(15, size=256)
                one, other = parallel.step(actions), serial.step(actions)
                for column in ("obs", "reward", "terminated", "truncated"):
                    assert np.array_equal(getattr(one, column), getattr(other, column))


# --- seeds and resets -----------------------------------------------------------------------------------


def levels(pool: envfleet.Pool, count: int, **options: Any) -> list[tuple[int, ...]]:
    """Return the level seeds of the next `count` episodes of each env, each reset after a few steps."""
    found = []
    for number in range(count):
        batch = pool.reset(**options) if number == 0 else pool.reset()
        found.append(batch.info["level_seed"])
        for _ in range(3):
            pool.step(np.full(pool.num_envs, NOTHING))
    return list(zip(*(own.tolist() for own in found), strict=True))


def test_seeds() -> None:
    with envfleet.make_pool("procgen-bigfish", num_envs=4) as pool:
        of_seed_1 = levels(pool, 4, seed=1)
        assert len(set(of_seed_1)) == len({level for own in of_seed_1 for level in own}) // 4 == 4  # all differ
        assert levels(pool, 4, seed=2)[:3] == of_seed_1[1:]  # env i has seed + i
        assert levels(pool, 4, seed=1) == of_seed_1
        assert levels(pool, 4) != of_seed_1
        large = levels(pool, 2, seed=[2**31, 2**31 + 1, 2**64, 2**127])
        assert len(set(large)) == 4
        assert not set(large) & {own[:2] for own in of_seed_1}
        assert levels(pool, 2, seed=[2**31, 2**31 + 1, 2**64, 2**127]) == large


@NEEDS_GYM3
def test_reset_in_the_middle_of_an_episode_draws_the_next_level() -> None:
    package = gym3_env(num=1, env_name="bigfish", rand_seed=6)
    expected = []
    for _ in range(4):
        expected.append(int(package.get_info()[0]["level_seed"]))
        package.act(np.array([-1]))  # the library's reset
    package.close()
    with envfleet.make_pool("procgen-bigfish", num_envs=1) as pool:
        assert levels(pool, 4, seed=6) == [tuple(expected)]


def test_levels_are_those_of_the_options() -> None:
    with envfleet.make_pool("procgen-maze", num_envs=8, num_levels=3, start_level=40, seed=0) as pool:
        assert {level for own in levels(pool, 6) for level in own} == {40, 41, 42}


def first_end(envs: Any, seed: int) -> tuple[NDArray[np.uint8], tuple[Any, ...]]:
    """Step until the first end of an episode; return the observation before it and the last step."""
    obs, _ = envs.reset(seed=seed)
    while True:
        previous, step = obs, envs.step(np.zeros(1, np.int64))
        obs = step[0]
        if step[2][0]:
            return previous, step


def test_ends_in_every_mode() -> None:
    options = {"num_envs": 1, "distribution_mode": "easy"}
    with envfleet.make("procgen-fruitbot", autoreset_mode="same_step", **options) as envs:
        last, (first, reward, _, _, info) = first_end(envs, 7)
        assert np.array_equal(info["final_obs"][0], last[0])
        assert info["level_seed"][0] == info["final_info"]["level_seed"][0]
        level = int(info["level_seed"][0])
    with envfleet.make("procgen-fruitbot", **options) as envs:  # next_step
        before, (obs, same_reward, _, _, info) = first_end(envs, 7)
        assert np.array_equal(obs, before)
        assert np.array_equal(obs, last)
        assert same_reward == reward
        assert info["prev_level_seed"][0] != level
        obs, reward_of_reset, terminated, _, info = envs.step(np.zeros(1, np.int64))
        assert np.array_equal(obs, first)
        assert (reward_of_reset[0], terminated[0], info["level_seed"][0]) == (0, False, level)
        assert not np.array_equal(first, last)
    with envfleet.make("procgen-fruitbot", autoreset_mode="disabled", **options) as envs:
        _, (obs, *_) = first_end(envs, 7)
        assert np.array_equal(obs, last)
        obs, info = envs.reset()
        assert np.array_equal(obs, first)
        assert info["level_seed"][0] == level
        obs, info = envs.reset()
        assert info["level_seed"][0] != level


def test_a_limit_of_the_pool_shows_the_real_last_frame() -> None:
    with (
        envfleet.make("procgen-bigfish", num_envs=2, seed=4, autoreset_mode="same_step", max_episode_steps=5) as short,
        envfleet.make("procgen-bigfish", num_envs=2, seed=4) as long,
    ):
        short.reset(), long.reset()
        for _ in range(5):
            _, _, terminated, truncated, info = short.step(np.full(2, NOTHING))
            expected = long.step(np.full(2, NOTHING))[0]
        assert truncated.all()
        assert not terminated.any()
        assert np.array_equal(np.stack(info["final_obs"]), expected)


def rollout(**options: Any) -> list[Any]:
    with envfleet.make_pool("procgen-fruitbot", num_envs=2, distribution_mode="easy", **options) as pool:
        pool.reset(seed=5)
        return trace(pool, 90, seed=0)


@pytest.mark.parametrize(
    "options",
    [{"backend": "serial"}, pytest.param({"backend": "processes", "num_workers": 2}, marks=pytest.mark.soak)],
    ids=str,
)
def test_python_backends(options: dict[str, Any]) -> None:
    expected = rollout()
    assert any(row[2].any() for row in expected)  # terminated
    assert_same(rollout(**options), expected)


def test_an_asynchronous_pool() -> None:
    with (
        envfleet.make_pool("procgen-starpilot", num_envs=6, batch_size=2, num_threads=3, seed=1) as pool,
        envfleet.make_pool("procgen-starpilot", num_envs=6, seed=1) as synchronous,
    ):
        obs, count = synchronous.reset().obs.copy(), np.zeros(6, np.int64)
        pool.async_reset()
        for _ in range(60):
            batch = pool.recv()
            assert np.array_equal(batch.obs, obs[batch.env_id])
            actions = count[batch.env_id] % 15
            obs[batch.env_id] = synchronous.step(actions, env_ids=batch.env_id).obs
            count[batch.env_id] += 1
            pool.send(actions, batch.env_id)


# --- ids, spaces, options -------------------------------------------------------------------------------


def test_ids() -> None:
    assert len(GAMES) == 16
    listed = set(envfleet.list_all_envs())
    assert {"BigfishHard-v0", "CaveflyerMemory-v0", "LeaperExtreme-v0", "NinjaExploration-v0"} <= listed
    assert {f"procgen-{game}" for game in GAMES} | {f"procgen-{game}-v0" for game in GAMES} <= listed
    assert not {"Procgen", "BigfishExtreme-v0", "procgen:procgen-coinrun-v0"} & listed
    with (
        envfleet.make("CoinrunEasy-v0", num_envs=1, seed=9) as easy,
        envfleet.make("procgen:procgen-coinrun-v0", num_envs=1, seed=9, distribution_mode=0) as same,
    ):
        assert easy.single_observation_space.shape == (3, 64, 64)
        assert same.single_observation_space.shape == (64, 64, 3)
        assert easy.spec.max_episode_steps == same.spec.max_episode_steps == 1000
        assert np.array_equal(easy.reset()[0], same.reset()[0].transpose(0, 3, 1, 2))
    assert envfleet.make_spec("procgen-plunder").action_space.n == 15


def test_an_id_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    envfleet.register("ThreeMazes-v0", "MazeEasy-v0", num_levels=3, distribution_mode="hard")
    assert main(["list", "threemazes"]) == 0
    assert "ThreeMazes-v0" in capsys.readouterr().out
    with (
        envfleet.make("ThreeMazes-v0", num_envs=2, seed=1) as native,
        envfleet.make("ThreeMazes-v0", num_envs=2, seed=1, backend="serial") as serial,
        envfleet.make("MazeHard-v0", num_envs=2, seed=1, num_levels=3) as same,
    ):
        expected = same.reset()[0]
        assert np.array_equal(native.reset()[0], expected)
        assert np.array_equal(serial.reset()[0], expected)


def test_what_the_list_shows_is_what_the_envs_have() -> None:
    from envfleet.cli.list_envs import brief
    from envfleet.envs.catalogue import summaries
    from envfleet.families.procgen import FAMILY

    listed = [env_id for env_id in FAMILY.aliases if ":" not in env_id]
    assert len(listed) == 82
    for env_id in listed:
        summary, spec = summaries()[env_id], envfleet.make_spec(env_id)
        assert summary.max_episode_steps == spec.max_episode_steps
        assert summary.observation == brief(spec.observation_space)
        assert summary.action == brief(spec.action_space)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"env_name": "pong"}, "env_name expected one of bigfish, .*, got 'pong'"),
        ({"distribution_mode": "extreme"}, "coinrun expected easy, hard, exploration, got 'extreme'"),
        ({"distribution_mode": 3}, "got '3'"),
        ({"distribution_mode": None}, "expected a string"),
        ({"distribution_mode": "exploration", "num_levels": 3}, "leave num_levels and start_level out"),
        ({"num_levels": -1}, "num_levels expected an integer from 0"),
        ({"start_level": 2**31}, "start_level expected an integer from 0"),
        ({"num_levels": 2**31 - 1, "start_level": 1}, "at most 2\\*\\*31-1"),
        ({"debug_mode": -1}, "debug_mode expected"),
        ({"use_backgrounds": 1}, "expected True or False for use_backgrounds"),
        ({"rand_seed": 1}, "unknown option 'rand_seed'"),
        ({"channel_first": [True, False]}, "same spaces"),
    ],
    ids=str,
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        envfleet.make("procgen-coinrun", num_envs=2, **options)


# --- states and pictures --------------------------------------------------------------------------------


def trace(pool: envfleet.Pool, num_steps: int, seed: int) -> list[Any]:
    draw = np.random.default_rng(seed)
    batches = [pool.step(draw.integers(15, size=pool.num_envs)) for _ in range(num_steps)]
    return [(b.obs, b.reward, b.terminated, b.truncated, *(b.info[name] for name in INFOS)) for b in batches]


def assert_same(one: list[Any], other: list[Any]) -> None:
    for left, right in zip(one, other, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def test_states() -> None:
    options = {"num_envs": 16, "env_name": list(GAMES)}
    with (
        envfleet.make_pool("procgen-coinrun", **options, seed=3) as pool,
        envfleet.make_pool("procgen-coinrun", **options, seed=4) as other,
    ):
        unstarted = other.get_state()
        pool.reset()
        trace(pool, 30, seed=0)
        while not pool.step(np.zeros(16, np.int64)).terminated.any():  # an env that waits for its reset
            pass
        saved, obs = pool.get_state(), pool.observe()
        expected = trace(pool, 20, seed=1)
        other.set_state(saved)
        assert np.array_equal(other.observe(), obs)
        assert_same(trace(other, 20, seed=1), expected)
        other.set_state(saved)
        assert other.get_state() == saved
        other.set_state(unstarted)
        assert other.reset(seed=3).info["level_seed"].shape == (16,)


def test_damaged_states() -> None:
    seed = int(os.environ.get("ENVFLEET_FUZZ_SEED", "0")) or random.SystemRandom().randrange(2**31)
    print(f"ENVFLEET_FUZZ_SEED={seed}")
    draw = random.Random(seed)
    with envfleet.make_pool("procgen-maze", num_envs=2, seed=0) as pool:
        pool.reset()
        trace(pool, 3, seed=0)
        saved = pool.get_state()
        expected = trace(pool, 3, seed=1)
        pool.set_state(saved)
        with envfleet.make_pool("procgen-heist", num_envs=1, seed=0) as heist:
            heist.reset()
            foreign = heist.get_state().states[0]
        whole = saved.states[0]
        damaged = [foreign, b"", whole[:-1], whole + b"\0", whole[:60], bytes(len(whole))]
        for _ in range(100):
            own = bytearray(whole)
            for _ in range(draw.randint(1, 3)):
                # The first bytes are the engine's own: the seed, the number of steps, the phase.
                own[draw.randrange(13, len(own))] ^= draw.randrange(1, 256)
            damaged.append(bytes(own))
        for state in damaged:
            with pytest.raises(StateError):
                pool.set_state(replace(saved, states=(state, saved.states[1])))
            assert pool.get_state() == saved
        for position in range(13):
            own = bytearray(whole)
            own[position] ^= draw.randrange(1, 256)
            try:
                pool.set_state(replace(saved, states=(bytes(own), saved.states[1])))
                trace(pool, 2, seed=1)
            except (StateError, EnvError, envfleet.CallOrderError):
                pool.reset()
        pool.set_state(saved)
        assert_same(trace(pool, 3, seed=1), expected)


def test_generated_assets_have_no_state() -> None:
    with envfleet.make_pool("procgen-maze", num_envs=1, use_generated_assets=True) as pool:
        pool.reset(seed=0)
        with pytest.raises(StateError, match="use_generated_assets"):
            pool.get_state()
        pool.step(np.zeros(1, np.int64))


def test_rendering_changes_nothing() -> None:
    with (
        envfleet.make("procgen-caveflyer", num_envs=2, seed=1, render_mode="rgb_array") as shown,
        envfleet.make("procgen-caveflyer", num_envs=2, seed=1) as plain,
    ):
        shown.reset(), plain.reset()
        for _ in range(5):
            frames = shown.render()
            assert [frame.shape for frame in frames] == [(512, 512, 3)] * 2
            assert not np.array_equal(frames[0], frames[1])
            actions = np.array([1, 8])
            assert np.array_equal(shown.step(actions)[0], plain.step(actions)[0])


@NEEDS_GYM3
def test_pictures() -> None:
    package = gym3_env(num=1, env_name="jumper", rand_seed=2, render_mode="rgb_array")
    with envfleet.make("procgen-jumper", num_envs=1, seed=2, render_mode="rgb_array") as envs:
        envs.reset()
        for action in (7, 8, 1):
            assert np.array_equal(envs.render()[0], package.get_info()[0]["rgb"])
            envs.step(np.array([action]))
            package.act(np.array([action]))
    package.close()
