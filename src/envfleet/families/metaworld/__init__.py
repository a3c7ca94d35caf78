"""Meta-World: the benchmarks MT1 and ML1 for each of the 50 tasks, as single envs."""

from __future__ import annotations

from functools import cache

from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from envfleet.core.family import Family

_BENCHMARKS = ("MT1", "ML1-train", "ML1-test")
_TASKS = """
assembly basketball bin-picking box-close button-press-topdown button-press-topdown-wall button-press button-press-wall
coffee-button coffee-pull coffee-push dial-turn disassemble door-close door-lock door-open door-unlock hand-insert
drawer-close drawer-open faucet-open faucet-close hammer handle-press-side handle-press handle-pull-side handle-pull
lever-pull pick-place-wall pick-out-of-hole pick-place plate-slide plate-slide-side plate-slide-back
plate-slide-back-side peg-insert-side peg-unplug-side soccer stick-push stick-pull push push-wall push-back reach
reach-wall shelf-place sweep-into sweep window-open window-close
"""


@cache
def _benchmarks() -> dict[str, tuple[str, str | None]]:
    """Return the benchmark and the task of every id. The package's own ids take the task as the option env_name."""
    named = {
        f"Meta-World/{benchmark}-{task}-v3": (benchmark, f"{task}-v3")
        for benchmark in _BENCHMARKS
        for task in _TASKS.split()
    }
    return {**named, **{f"Meta-World/{benchmark}": (benchmark, None) for benchmark in _BENCHMARKS}}


@cache
def all_ids() -> frozenset[str]:
    """Return every id."""
    return frozenset(_benchmarks())


def spec_of(env_id: str) -> GymnasiumSpec:
    """Return the Gymnasium spec of an id."""
    benchmark, task = _benchmarks()[env_id]
    kwargs = {"benchmark": benchmark} if task is None else {"benchmark": benchmark, "env_name": task}
    return GymnasiumSpec(
        env_id, entry_point="envfleet.families.metaworld.env:make_env", max_episode_steps=500, kwargs=kwargs
    )


FAMILY = Family(
    "metaworld",
    package="metaworld",
    extra="metaworld",
    python_ids=all_ids,
    spec_of=spec_of,
    python_opens_windows=True,
)
