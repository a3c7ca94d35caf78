"""Pools made by a task or actor that runs in a placement group, as the trials of Ray Tune do."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from ray_probes import PlacedEnv
from support.ray_session import ray_session

import envfleet
from envfleet.core.errors import PlacementError

ray = pytest.importorskip("ray")
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy  # noqa: E402 (needs the line above)


class Trial:
    """Makes pools where it runs."""

    def groups(self, actor_options: Any = None, **options: Any) -> tuple[int, set[str | None]]:
        """The number of workers of a pool made here, and the placement groups that their actors are in."""
        # Actors in a runtime env are new processes, which take long to start on a busy machine.
        ray_config = envfleet.RayConfig(actor_options=actor_options, placement_timeout_s=600)
        pool = envfleet.make_pool(PlacedEnv, backend="ray", ray=ray_config, **options)
        try:
            return pool.config.num_workers, set(pool.call("placement_group"))
        finally:
            pool.close()

    def refusal(self, actor_options: Any = None, **options: Any) -> str:
        """The text of the PlacementError of a pool that finds no room."""
        try:
            ray_config = envfleet.RayConfig(actor_options=actor_options, placement_timeout_s=1)
            envfleet.make_pool(PlacedEnv, backend="ray", ray=ray_config, **options)
        except PlacementError as error:
            return str(error)
        return ""


@pytest.fixture
def group() -> Iterator[Any]:
    """A placement group that reserves every CPU of the cluster."""
    ray_session()
    group = ray.util.placement_group([{"CPU": 1}, {"CPU": 1}])
    ray.get(group.ready())
    yield group
    ray.util.remove_placement_group(group)


@pytest.fixture
def start_trial(group):
    """An actor in that placement group."""
    trials = []

    def start(captures_children: bool) -> Any:
        strategy = PlacementGroupSchedulingStrategy(group, 0, captures_children)
        runtime_env = {"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path)}}  # where this module is found
        trial = ray.remote(num_cpus=0)(Trial)
        trials.append(trial.options(scheduling_strategy=strategy, runtime_env=runtime_env).remote())
        return trials[-1]

    yield start
    for trial in trials:
        ray.kill(trial)


ONE_CPU_EACH = {"num_envs": 2, "num_workers": 2, "actor_options": {"num_cpus": 1}}


def test_a_pool_belongs_in_the_placement_group_that_captures_child_tasks(group, start_trial):
    trial = start_trial(captures_children=True)
    assert ray.get(trial.groups.remote(**ONE_CPU_EACH)) == (2, {group.id.hex()})
    # As many workers as the group has CPUs, not as the cluster has.
    assert ray.get(trial.groups.remote(num_envs=8)) == (2, {group.id.hex()})


def test_a_full_placement_group_is_named_in_the_error(start_trial):
    trial = start_trial(captures_children=True)
    said = ray.get(trial.refusal.remote(num_envs=3, num_workers=3, actor_options={"num_cpus": 1}))
    assert "of 3 Ray actors found no machine" in said
    assert "placement group has bundles of [{'CPU': 1.0}, {'CPU': 1.0}]" in said


def test_without_capture_a_pool_stays_outside_as_rays_own_actors_do(group, start_trial):
    trial = start_trial(captures_children=False)
    assert ray.get(trial.groups.remote(num_envs=2, num_workers=2)) == (2, {None})
    assert "does not capture child tasks" in ray.get(trial.refusal.remote(**ONE_CPU_EACH))
    inside = {"num_cpus": 1, "scheduling_strategy": PlacementGroupSchedulingStrategy(group)}
    asked = {**ONE_CPU_EACH, "actor_options": inside}
    assert ray.get(trial.groups.remote(**asked)) == (2, {group.id.hex()})


def test_the_driver_is_in_no_placement_group(group):
    pool = envfleet.make_pool(PlacedEnv, backend="ray", num_envs=2, num_workers=2)
    assert pool.call("placement_group") == (None, None)
    pool.close()
