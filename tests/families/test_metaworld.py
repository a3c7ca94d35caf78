"""Meta-World by its ids: the goals, observations and rewards are those of the package's benchmarks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.package_rollouts import assert_package_rollout

import envfleet
from envfleet.cli.list_envs import brief
from envfleet.core.errors import ConfigError
from envfleet.envs.catalogue import EnvSummary, summaries
from envfleet.families import metaworld as family

metaworld = pytest.importorskip("metaworld", reason="needs metaworld: run make test-families")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
TASK_SEED = 11


class PackageEnv:
    """The package's env of a benchmark, seeded as its constructor does: its reset() ignores the seed."""

    def __init__(self, benchmark: str, env_name: str, limit: int) -> None:
        if benchmark == "MT1":
            self.env = metaworld.make_mt_envs(env_name, seed=TASK_SEED, max_episode_steps=limit)
        else:
            make = metaworld.make_ml_envs_train if benchmark == "ML1-train" else metaworld.make_ml_envs_test
            self.env = make(env_name, seed=TASK_SEED, meta_batch_size=1, max_episode_steps=limit).envs[0]
            self.env.get_wrapper_attr("toggle_sample_tasks_on_reset")(True)
        self.selection = self.env
        while not hasattr(self.selection, "sample_tasks_on_reset"):
            self.selection = self.selection.env
        self.tasks = tuple(self.selection.tasks)
        self.observation_space, self.action_space = self.env.observation_space, self.env.action_space

    def reset(self, seed: int | None = None) -> Any:
        if seed is not None:
            self.env.unwrapped.seed(seed)
            self.selection.tasks = list(self.tasks)
            self.selection.current_task_idx = -1
        return self.env.reset()

    def step(self, action: Any) -> Any:
        return self.env.step(action)

    def close(self) -> None:
        self.env.close()


@pytest.mark.parametrize(
    ("benchmark", "env_name"), [("MT1", "push-v3"), ("ML1-train", "reach-v3"), ("ML1-test", "drawer-open-v3")]
)
def test_rollout(benchmark: str, env_name: str) -> None:
    assert_package_rollout(
        f"Meta-World/{benchmark}-{env_name}",
        lambda: PackageEnv(benchmark, env_name, 6),
        steps=20,
        limit=6,
        same_starts=benchmark != "MT1",  # the goal is hidden
        task_seed=TASK_SEED,
    )


def test_several_tasks_in_one_pool() -> None:
    tasks = [{"env_name": "reach-v3"}, {"env_name": "window-open-v3"}]
    with envfleet.make("Meta-World/MT1", num_envs=2, env_kwargs=tasks) as envs:
        obs, _ = envs.reset(seed=0)
        obs, _, _, _, info = envs.step(np.zeros((2, 4), dtype=np.float32))
        assert obs.shape == (2, 39)
        assert info["success"].shape == (2,)
    with pytest.raises(ConfigError, match="env_name"):
        envfleet.make("Meta-World/MT1", num_envs=2)


def test_task_seeds_and_goals() -> None:
    def goals(seed: int, task_seed: int, **options: Any) -> list[bytes]:
        with envfleet.make("Meta-World/MT1-reach-v3", num_envs=1, task_seed=task_seed, **options) as envs:
            first, second = envs.reset(seed=seed)[0], envs.reset()[0]
            return [first[0, -3:].tobytes(), second[0, -3:].tobytes()]

    assert goals(0, 0) == goals(0, 0)
    assert set(goals(0, 0)).isdisjoint(goals(0, 1))
    assert goals(0, 0) != goals(1, 0)
    first, second = goals(0, 0, sample_tasks_on_reset=False)
    assert first == second


def test_ids() -> None:
    with envfleet.make("Meta-World/MT1-reach-v3", num_envs=1) as envs:
        summary = EnvSummary(500, brief(envs.single_observation_space), brief(envs.single_action_space))
        assert summaries()["Meta-World/MT1-reach-v3"] == summary
    tasks = {env_id.removeprefix("Meta-World/MT1-") for env_id in family.all_ids() if "/MT1-" in env_id}
    assert tasks == set(metaworld.ALL_V3_ENVIRONMENTS)
