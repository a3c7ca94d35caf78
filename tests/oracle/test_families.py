"""Box2D and MiniGrid by their Gymnasium ids, on processes: the rollout is that of the plain env."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest

import envfleet
from envfleet.core.errors import MissingExtraError, UnknownEnvError
from envfleet.families import minigrid

BOX2D = ["LunarLander-v3", "LunarLanderContinuous-v3", "BipedalWalker-v3", "BipedalWalkerHardcore-v3", "CarRacing-v3"]
MINIGRID = [
    "MiniGrid-Empty-5x5-v0",
    "MiniGrid-DoorKey-6x6-v0",
    "MiniGrid-Dynamic-Obstacles-5x5-v0",
    "BabyAI-GoToObj-v0",
]


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    return bool(np.array_equal(one, other))


def assert_equal_to_gymnasium(env_id: str, steps: int, backend: str = "auto") -> None:
    """Two envs of a pool on processes beside two plain ones, through ends and time limits."""
    with envfleet.make(env_id, num_envs=2, num_workers=2, backend=backend, autoreset_mode="same_step") as envs:
        assert envs.spec.backend == "processes"
        plain = [gymnasium.make(env_id, disable_env_checker=True) for _ in range(2)]
        try:
            assert envs.single_observation_space == plain[0].observation_space
            actions = plain[0].action_space
            actions.seed(0)
            obs, _ = envs.reset(seed=3)
            wanted = [env.reset(seed=3 + k)[0] for k, env in enumerate(plain)]
            ends = 0
            for _ in range(steps):
                for k in range(2):
                    row = {key: obs[key][k] for key in obs} if isinstance(obs, dict) else obs[k]
                    assert equal(wanted[k], row)
                chosen = [actions.sample() for _ in plain]
                obs, reward, terminated, truncated, _ = envs.step(np.stack(chosen))
                for k, env in enumerate(plain):
                    seen, own_reward, own_terminated, own_truncated, _ = env.step(chosen[k])
                    assert (reward[k], terminated[k], truncated[k]) == (own_reward, own_terminated, own_truncated)
                    if own_terminated or own_truncated:
                        ends += 1
                        seen, _ = env.reset()
                    wanted[k] = seen
        finally:
            for env in plain:
                env.close()
    assert ends > 0 or env_id.startswith(("CarRacing", "BipedalWalker"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning:pygame")
@pytest.mark.parametrize("env_id", BOX2D)
def test_box2d(env_id: str) -> None:
    pytest.importorskip("Box2D")
    assert_equal_to_gymnasium(env_id, 15 if env_id.startswith("CarRacing") else 250)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:pygame")
@pytest.mark.parametrize("name", ["LunarLander", "LunarLanderContinuous", "CarRacing"])
def test_box2d_ids_that_gymnasium_dropped_run_as_their_successors(name: str) -> None:
    pytest.importorskip("Box2D")
    with envfleet.make(f"{name}-v2", num_envs=2) as envs, envfleet.make(f"{name}-v3", num_envs=2) as newer:
        assert envs.spec.id == f"{name}-v2"
        assert envs.spec.backend == "processes"
        assert (envs.spec.max_episode_steps, envs.spec.reward_threshold) == (
            newer.spec.max_episode_steps,
            newer.spec.reward_threshold,
        )
        assert envs.single_action_space == newer.single_action_space
        assert equal(envs.reset(seed=3)[0], newer.reset(seed=3)[0])
        newer.action_space.seed(0)
        for _ in range(3):
            actions = newer.action_space.sample()
            for one, other in zip(envs.step(actions)[:4], newer.step(actions)[:4], strict=True):
                assert equal(one, other)


@pytest.mark.parametrize("env_id", MINIGRID)
def test_minigrid(env_id: str) -> None:
    pytest.importorskip("minigrid")
    assert_equal_to_gymnasium(env_id, 400, "auto" if env_id.startswith("BabyAI") else "processes")


def test_minigrid_ids() -> None:
    pytest.importorskip("minigrid")
    registered = {env_id for env_id in gymnasium.registry if env_id.startswith(("MiniGrid-", "BabyAI-"))}
    assert minigrid.all_ids() == registered
    with pytest.raises(UnknownEnvError, match="MiniGrid-Empty-5x5-v0"):
        envfleet.make("MiniGrid-Emty-5x5-v0")


def test_minigrid_needs_no_import() -> None:
    pytest.importorskip("minigrid")
    code = "import envfleet; envs = envfleet.make('MiniGrid-Empty-5x5-v0', num_envs=2); envs.reset(); envs.close()"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("env_id", "extra"),
    [
        ("Basic-v1", "vizdoom"),
        ("cheetah-run", "dm_control"),
        ("MiniGrid-Empty-5x5-v0", "minigrid"),
        ("FetchReach-v4", "robotics"),
        ("Meta-World/MT1-reach-v3", "metaworld"),
        ("highway-v0", "highway"),
        ("NetHackScore-v0", "nle"),
        ("MiniHack-Room-5x5-v0", "minihack"),
        ("Craftax-Symbolic-v1", "craftax"),
    ],
)
def test_missing_extra(env_id: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envfleet.core.family.find_spec", lambda package: None)  # nothing is installed
    with pytest.raises(MissingExtraError, match=rf'pip install "envfleet\[{extra}\]"'):
        envfleet.make(env_id)


def test_missing_extra_of_players(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envfleet.core.family.find_spec", lambda package: None)
    with pytest.raises(MissingExtraError, match=r'pip install "envfleet\[vizdoom\]"'):
        envfleet.make_pettingzoo("VizdoomDuel-v1")


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_box2d_where_warnings_are_exceptions(backend):
    """A deprecation warning of SWIG that is raised while Box2D is imported crashes the process."""
    code = f"import envfleet; envfleet.make('LunarLander-v3', num_envs=2, backend='{backend}').close()"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
