"""Gymnasium-Robotics by its ids: the rollout is that of the plain env."""

from __future__ import annotations

import re

import gymnasium
import pytest
from support.package_rollouts import assert_package_rollout

import envfleet
from envfleet.families import robotics

pytest.importorskip("gymnasium_robotics", reason="needs gymnasium-robotics: run make test-families")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

IDS = [
    "FetchPickAndPlace-v4",
    "AntMaze_UMaze-v5",
    "PointMaze_Large_Diverse_GR-v3",
    "FrankaKitchen-v1",
]


@pytest.mark.parametrize("env_id", IDS)
def test_rollout(env_id: str) -> None:
    def make_plain() -> gymnasium.Env:
        return gymnasium.make(env_id, disable_env_checker=True, max_episode_steps=8)

    assert_package_rollout(env_id, make_plain, steps=25, limit=8)


def test_ids() -> None:
    # mujoco-py is no longer maintained; the package's v2 and v3 of Gymnasium's MuJoCo envs need it too.
    registered = {
        env_id
        for env_id, spec in gymnasium.registry.items()
        if str(spec.entry_point).startswith("gymnasium_robotics.")
        and not re.search(r"mujoco_py|MujocoPy|envs\.mujoco[.:]", str(spec.entry_point))
    }
    assert robotics.all_ids() == registered


def test_goals_are_columns() -> None:
    with envfleet.make("FetchReach-v4", num_envs=2, render_mode="rgb_array") as envs:
        obs, _ = envs.reset(seed=0)
        assert {key: value.shape for key, value in obs.items()} == {
            "achieved_goal": (2, 3),
            "desired_goal": (2, 3),
            "observation": (2, 10),
        }
        assert envs.render()[0].shape == (480, 480, 3)
