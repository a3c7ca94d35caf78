"""probe(): how long one Python env takes, and whether it computes or waits."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import gymnasium

from envfleet.building.builders import EnvBuilder, EnvBuilders
from envfleet.building.pools import make_pool
from envfleet.core.errors import EnvError, EnvfleetError, RecvTimeout, WorkerDied
from envfleet.core.options import PoolConfig
from envfleet.envs.adapters import AdaptedEnv
from envfleet.tuning.throughput import RandomStepper

_PROBE_S = 0.25
_SLOW_BUILD_S = 1.0
# An env whose steps spend less than this share of their time on the CPU waits: for a sleep, a device, a server or a
# process of its own.
_MIN_CPU_SHARE = 0.5


@dataclass(frozen=True)
class Probe:
    """How long one env takes. Zeros if it failed before that was known.

    cpu_share: the share of a step that its process spends on the CPU, or 1 if the machine was too busy to tell.
    """

    build_s: float = 0.0
    reset_s: float = 0.0
    step_s: float = 0.0
    cpu_share: float = 1.0

    @property
    def waits(self) -> bool:
        """Whether more workers than cores may help."""
        return self.cpu_share < _MIN_CPU_SHARE


def probe(builders: EnvBuilders, config: PoolConfig, *, in_worker: bool, limit_s: float) -> Probe:
    """Probe an env, in a worker process if possible: an env that hangs or crashes does not affect this one.

    Raises WorkerDied if the env ended its worker, and RecvTimeout if it hangs there.
    """
    factory = _TimedFactory(builders.builders[0])
    common: dict[str, Any] = {
        "max_episode_steps": builders.max_episode_steps,
        "autoreset_mode": config.autoreset_mode,
        "seed": 0,
    }
    if in_worker:
        # Not a timeout of recv(): the worker of an env that hangs must be killed, at once.
        common |= {"step_timeout": limit_s, "start_method": config.start_method}
    try:
        with make_pool(factory, backend="processes" if in_worker else "serial", **common) as pool:
            stepper = RandomStepper(pool, seed=0)
            started = time.perf_counter()
            stepper.start()
            stepper.step()
            while time.perf_counter() - started < _PROBE_S:
                stepper.step()
            timed: Probe = pool.get_attr("envfleet_probe")[0]
            return timed
    except WorkerDied as error:
        if "step_timeout" not in str(error):
            raise
        raise RecvTimeout(
            f"tune() expected a step of {builders.name} within {limit_s:.3g} s, got none; pass more seconds"
        ) from error
    except EnvError:
        return Probe()  # the cases report it, or restart the env, as on_error says
    except EnvfleetError:
        if in_worker:  # such as a factory that cannot be pickled: the cases on processes report it
            return probe(builders, config, in_worker=False, limit_s=limit_s)
        raise


@dataclass(frozen=True)
class _TimedFactory:
    builder: EnvBuilder

    def __call__(self) -> gymnasium.Env[Any, Any]:
        started = time.perf_counter()
        env = self.builder.build(0)
        build_s = time.perf_counter() - started
        if build_s < _SLOW_BUILD_S:
            # The first build may include the import of modules, which later ones do not need.
            env.close()
            started = time.perf_counter()
            env = self.builder.build(0)
            build_s = time.perf_counter() - started
        return _TimedEnv(env if isinstance(env, gymnasium.Env) else AdaptedEnv(env), build_s)


class _TimedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: gymnasium.Env[Any, Any], build_s: float) -> None:
        super().__init__(env)
        self._build_s = build_s
        self._resets_s: list[float] = []
        self._steps_s: list[float] = []
        self._undisturbed_s = self._undisturbed_cpu_s = 0.0

    @property
    def envfleet_probe(self) -> Probe:
        cpu_share = self._undisturbed_cpu_s / self._undisturbed_s if self._undisturbed_s else 1.0
        return Probe(self._build_s, fmean(self._resets_s), fmean(self._steps_s), min(1.0, cpu_share))

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        started = time.perf_counter()
        result = self.env.reset(**kwargs)
        self._resets_s.append(time.perf_counter() - started)
        return result

    def step(self, action: Any) -> Any:
        preemptions_before = _num_preemptions()
        cpu_started, started = time.process_time(), time.perf_counter()
        result = self.env.step(action)
        wall_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu_started
        self.add_step(wall_s, cpu_s, _num_preemptions() - preemptions_before)
        return result

    def add_step(self, wall_s: float, cpu_s: float, num_preemptions: int) -> None:
        self._steps_s.append(wall_s)
        if not num_preemptions:  # otherwise the time off the CPU is not spent waiting
            self._undisturbed_s += wall_s
            self._undisturbed_cpu_s += cpu_s


def _num_preemptions() -> int:
    """Return how often the threads of this process lost their core before they were done with it."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
