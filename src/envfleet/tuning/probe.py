"""A first look at one env: how long it takes to build, reset and step, and whether it works or waits."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import gymnasium

from envfleet.driving import Driver
from envfleet.envs.adapters import AdaptedEnv
from envfleet.errors import EnvfleetError, RecvTimeout, WorkerDied
from envfleet.making.builders import EnvBuilder, Recipe
from envfleet.making.registry import make_pool
from envfleet.spec import PoolConfig

_LOOK_S = 0.25
_SLOW_BUILD_S = 1.0
# Below this part of a step's time on the CPU an env waits: for a sleep, a device, a server, a process of its own.
_WORKING_SHARE = 0.5


@dataclass(frozen=True)
class Probe:
    """Seconds of one env; cpu_share: the part of a step in which this process was on the CPU."""

    build_s: float
    reset_s: float
    step_s: float
    cpu_share: float
    kills_its_process: bool = False

    @property
    def waits(self) -> bool:
        """Whether more workers than cores may pay."""
        return self.cpu_share < _WORKING_SHARE


def probe_python(recipe: Recipe, config: PoolConfig, *, in_worker: bool, limit_s: float) -> Probe:
    """In a worker process first: there a wedged env can be given up, and one that crashes takes only that along."""
    factory = _TimedFactory(recipe.builders[0])
    if in_worker:
        # Not a timeout of recv(): the worker of an env that hangs must be ended, and at once.
        given_up = {"step_timeout": limit_s, "start_method": config.start_method}
        try:
            return _look(factory, "processes", recipe, config, given_up)
        except WorkerDied as error:
            if "step_timeout" not in str(error):
                return Probe(0.0, 0.0, 0.0, 1.0, kills_its_process=True)
            raise RecvTimeout(
                f"tune() got no step of {recipe.name} within {limit_s:.3g} s; give it more seconds"
            ) from error
        except EnvfleetError:
            pass  # a factory that cannot travel, say: the cases on processes will tell
    return _look(factory, "serial", recipe, config, {})


def probe_native(driver: Driver) -> Probe:
    """From a pool with one thread; what it takes to build is next to nothing."""
    driver.start()
    started, cpu_started, num_batches = time.perf_counter(), time.process_time(), 0
    while (wall_s := time.perf_counter() - started) < _LOOK_S / 2 or num_batches == 0:
        driver.advance()
        num_batches += 1
    cpu_s = time.process_time() - cpu_started
    return Probe(0.0, 0.0, wall_s / (num_batches * driver.batch_size), min(1.0, cpu_s / wall_s))


def _look(factory: _TimedFactory, backend: str, recipe: Recipe, config: PoolConfig, options: dict[str, Any]) -> Probe:
    limit = recipe.max_episode_steps
    with make_pool(
        factory, backend=backend, max_episode_steps=limit, autoreset_mode=config.autoreset_mode, seed=0, **options
    ) as pool:
        driver = Driver(pool, seed=0)
        driver.start()
        started = time.perf_counter()
        while time.perf_counter() - started < _LOOK_S:
            driver.advance()
        timed: _Times = pool.get_attr("envfleet_times")[0]
    return Probe(
        timed.build_s,
        timed.reset_s / timed.num_resets,
        timed.step_s / timed.num_steps,
        min(1.0, timed.step_cpu_s / timed.step_s),
    )


@dataclass
class _Times:
    build_s: float
    reset_s: float = 0.0
    num_resets: int = 0
    step_s: float = 0.0
    step_cpu_s: float = 0.0
    num_steps: int = 0


@dataclass(frozen=True)
class _TimedFactory:
    builder: EnvBuilder

    def __call__(self) -> gymnasium.Env[Any, Any]:
        started = time.perf_counter()
        env = self.builder.build(0)
        build_s = time.perf_counter() - started
        if build_s < _SLOW_BUILD_S:
            # The first one may have loaded its modules besides, which the others do not.
            env.close()
            started = time.perf_counter()
            env = self.builder.build(0)
            build_s = time.perf_counter() - started
        return _TimedEnv(env if isinstance(env, gymnasium.Env) else AdaptedEnv(env), build_s)


class _TimedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: gymnasium.Env[Any, Any], build_s: float) -> None:
        super().__init__(env)
        self.envfleet_times = _Times(build_s)

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        started = time.perf_counter()
        result = self.env.reset(**given)
        self.envfleet_times.reset_s += time.perf_counter() - started
        self.envfleet_times.num_resets += 1
        return result

    def step(self, action: Any) -> Any:
        times = self.envfleet_times
        cpu_started, started = time.process_time(), time.perf_counter()
        result = self.env.step(action)
        times.step_s += time.perf_counter() - started
        times.step_cpu_s += time.process_time() - cpu_started
        times.num_steps += 1
        return result
