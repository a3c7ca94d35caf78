"""highway-env by its ids: the rollout is that of the plain env."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
import pytest
from support.package_rollouts import assert_package_rollout

import envfleet
from envfleet.families import highway

pytest.importorskip("highway_env", reason="needs highway-env: run make test-families")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


@pytest.mark.parametrize(
    ("env_id", "options"),
    [
        ("highway-fast-v0", {}),
        ("parking-v0", {}),
        ("parking-parked-v0", {}),  # its class takes no config
        ("highway-fast-v0", {"config": {"observation": {"type": "OccupancyGrid"}, "lanes_count": 2}}),
        # Last: it changes attributes of the package's vehicle classes, which the envs of this process share.
        ("intersection-multi-agent-v0", {}),
    ],
)
def test_rollout(env_id: str, options: dict[str, Any]) -> None:
    def make_plain() -> gymnasium.Env:
        return gymnasium.make(env_id, disable_env_checker=True, max_episode_steps=5, **deepcopy(options))

    assert_package_rollout(env_id, make_plain, steps=16, limit=5, **options)


def test_ids() -> None:
    registered = {
        env_id for env_id, spec in gymnasium.registry.items() if str(spec.entry_point).startswith("highway_env.")
    }
    assert highway.all_ids() == registered - {"intersection-multi-agent-v1", "intersection-multi-agent-v2"}


def test_rendering() -> None:
    with envfleet.make("highway-fast-v0", num_envs=2, render_mode="rgb_array") as envs:
        envs.reset(seed=0)
        first, second = envs.render()
        assert first.shape[2] == 3
        assert not np.array_equal(first, second)
