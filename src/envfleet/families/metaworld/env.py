"""A task of Meta-World that chooses a goal of its benchmark for each episode."""

from __future__ import annotations

import sys
import warnings
from functools import cache
from typing import Any

import gymnasium
import metaworld
from gymnasium.utils import seeding

from envfleet.core.errors import ConfigError
from envfleet.core.option_checks import integer_option
from envfleet.envs.mujoco_rendering import choose_gl_backend


def make_env(
    benchmark: str,
    env_name: str | None = None,
    task_seed: int = 0,
    sample_tasks_on_reset: bool = True,
    terminate_on_success: bool | None = None,
    render_mode: str | None = None,
    **kwargs: Any,
) -> gymnasium.Env[Any, Any]:
    """Return an env of a benchmark: "MT1", "ML1-train" or "ML1-test".

    task_seed: the seed of the benchmark's 50 goals. terminate_on_success: as in the package, True for "ML1-test" alone.
    kwargs: reward_function_version, camera_name, camera_id, width and height of the package's classes.
    """
    classes = metaworld.ALL_V3_ENVIRONMENTS
    if env_name not in classes:
        raise ConfigError(
            f"Meta-World/{benchmark} expected the option env_name, one of {', '.join(classes)}, got {env_name!r}"
        )
    if render_mode not in (None, "human"):
        choose_gl_backend()
    env = classes[env_name](render_mode=render_mode, **kwargs)
    env.max_path_length = sys.maxsize  # the pool enforces the time limit, and it may be longer
    tasks = benchmark_tasks(benchmark, env_name, integer_option("task_seed", task_seed, 0, 2**32 - 2))
    if terminate_on_success is None:
        terminate_on_success = benchmark == "ML1-test"
    return TaskSelection(env, tasks, benchmark == "MT1", sample_tasks_on_reset, terminate_on_success)


@cache
def benchmark_tasks(benchmark: str, env_name: str, task_seed: int) -> tuple[Any, ...]:
    """Return the goals of a benchmark. Cached: the package resets an env 50 times to draw them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the package's own spaces
        if benchmark == "MT1":
            return tuple(metaworld.MT1(env_name, seed=task_seed).train_tasks)
        goals = metaworld.ML1(env_name, seed=task_seed)
    return tuple(goals.train_tasks if benchmark == "ML1-train" else goals.test_tasks)


class TaskSelection(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Chooses a goal for each episode, as the package's RandomTaskSelectWrapper and PseudoRandomTaskSelectWrapper do.

    The package ignores the seed of reset(); here it determines the goals.
    """

    def __init__(
        self, env: Any, tasks: tuple[Any, ...], at_random: bool, on_reset: bool, terminate_on_success: bool
    ) -> None:
        """at_random: any of the tasks each time. Otherwise all of them before the first comes again."""
        super().__init__(env)
        self._tasks = tasks
        self._at_random = at_random
        self._on_reset = on_reset
        self._terminate_on_success = terminate_on_success
        self._rng = seeding.np_random(None)[0]
        self._order: list[int] = []
        self._chosen = -1

    def sample_tasks(self) -> None:
        """Choose the goal of the next episode and the following ones, with sample_tasks_on_reset=False."""
        count = len(self._tasks)
        if self._at_random:
            self._chosen = int(self._rng.choice(count))
            return
        if not self._order:
            self._order = list(range(count))
            self._position = -1
        self._position = (self._position + 1) % count
        if self._position == 0:
            self._rng.shuffle(self._order)
        self._chosen = self._order[self._position]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        if seed is not None:
            self._rng = seeding.np_random(seed)[0]
            self._order = []
            self._chosen = -1
        if self._on_reset or self._chosen < 0:
            self.sample_tasks()
        self.unwrapped.set_task(self._tasks[self._chosen])  # type: ignore[attr-defined]
        return self.env.reset(options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the task."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        if self._terminate_on_success and info["success"]:
            terminated = True
        return obs, reward, bool(terminated), bool(truncated), info
