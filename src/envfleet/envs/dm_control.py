"""dm_control's suite: "cheetah-run" and its like, and EnvPool's names for them ("CheetahRun-v1")."""

from __future__ import annotations

from functools import cache

from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from envfleet.envs.simulators import Simulator

_TASKS = {
    "acrobot": "swingup swingup_sparse",
    "ball_in_cup": "catch",
    "cartpole": "balance balance_sparse swingup swingup_sparse two_poles three_poles",
    "cheetah": "run",
    "dog": "stand walk trot run fetch",
    "finger": "spin turn_easy turn_hard",
    "fish": "upright swim",
    "hopper": "stand hop",
    "humanoid": "stand walk run run_pure_state",
    "humanoid_CMU": "stand walk run",
    "lqr": "lqr_2_1 lqr_6_2",
    "manipulator": "bring_ball bring_peg insert_ball insert_peg",
    "pendulum": "swingup",
    "point_mass": "easy hard",
    "quadruped": "walk run escape fetch",
    "reacher": "easy hard",
    "stacker": "stack_2 stack_4",
    "swimmer": "swimmer6 swimmer15",
    "walker": "stand walk run",
}


def envpool_name(domain: str, task: str) -> str:
    """The name that EnvPool gives a task: "ball_in_cup", "catch" -> "BallInCupCatch-v1"."""
    words = [*domain.split("_"), *task.split("_")]
    return "".join(word[:1].upper() + word[1:] for word in words) + "-v1"


@cache
def tasks() -> dict[str, tuple[str, str]]:
    """The domain and task of every id."""
    pairs = [(domain, task) for domain, names in _TASKS.items() for task in names.split()]
    return {
        **{f"{domain}-{task}": (domain, task) for domain, task in pairs},
        **{envpool_name(domain, task): (domain, task) for domain, task in pairs},
    }


@cache
def all_ids() -> frozenset[str]:
    """Every id of dm_control 1.0's suite."""
    return frozenset(tasks())


def spec_of(env_id: str) -> GymnasiumSpec:
    """What builds an env of this id. The task keeps its own time limit."""
    domain, task = tasks()[env_id]
    return GymnasiumSpec(
        env_id,
        entry_point="envfleet.envs.dm_control_env:DmControlEnv",
        kwargs={"domain_name": domain, "task_name": task},
    )


SIMULATOR = Simulator("dm_control", "dm_control", "dm_control", "processes", all_ids, spec_of)
