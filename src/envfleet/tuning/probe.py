"""What tune() finds out before it measures: the backends that can run the env, and how long one env takes."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import gymnasium
from gymnasium.vector import AutoresetMode

from envfleet.envs.adapters import AdaptedEnv
from envfleet.errors import ConfigError, EnvError, EnvfleetError, RecvTimeout, WorkerDied
from envfleet.making.builders import EnvBuilder, EnvBuilders, builders_for
from envfleet.making.make import Env, make_pool
from envfleet.making.native_envs import find_entry, plugin_files, supports_params
from envfleet.making.options import PYTHON_BACKENDS, Options, parse_options
from envfleet.making.python_envs import check_known
from envfleet.spec import PoolConfig
from envfleet.tuning.candidates import DEFAULT_NATIVE_ENVS, backends_for
from envfleet.tuning.report import counted, duration
from envfleet.tuning.throughput import RandomStepper

if TYPE_CHECKING:
    from envfleet.tuning.search import Budget

_PROBE_S = 0.25
_SLOW_BUILD_S = 1.0
# An env whose steps spend less than this share of their time on the CPU waits: for a sleep, a device, a server or a
# process of its own.
_MIN_CPU_SHARE = 0.5


@dataclass(frozen=True)
class Probe:
    """How long one env takes.

    cpu_share: the share of a step that its process spends on the CPU, or 1 if the machine was too busy to tell.
    """

    build_s: float
    reset_s: float
    step_s: float
    cpu_share: float
    kills_its_process: bool = False

    @property
    def waits(self) -> bool:
        """Whether more workers than cores may help."""
        return self.cpu_share < _MIN_CPU_SHARE


class EnvSurvey:
    """The backends to measure, a probe of the env on each, and notes for the report."""

    def __init__(
        self, env: Env, options: dict[str, Any], backends: Any, num_envs: int | None, cores: int, budget: Budget
    ) -> None:
        self._env = env
        self._options = options
        self._cores = cores
        self._budget = budget
        self.probes: dict[str, Probe] = {}
        self.notes: list[str] = []
        self.backends = self._survey(backends, num_envs)

    @property
    def python_probe(self) -> Probe | None:
        """The probe of the Python env; None if only the native backend is measured."""
        return next((probe for name, probe in self.probes.items() if name != "native"), None)

    def _survey(self, requested: Any, num_envs: int | None) -> tuple[str, ...]:
        entry = find_entry(self._env)
        sizes = {"num_envs": num_envs} if num_envs else {}
        parsed = parse_options({**sizes, **self._options})
        if parsed.config.autoreset_mode is AutoresetMode.DISABLED:
            raise ConfigError(
                "autoreset_mode expected 'next_step' or 'same_step' in tune(), got 'disabled'; leave it out"
            )
        needs_processes = parsed.config.step_timeout is not None or parsed.config.start_method != "forkserver"
        is_native = entry is not None and not parsed.wrappers and supports_params(entry, parsed.params)
        backends = backends_for(requested, is_native=is_native, needs_processes=needs_processes)
        if "native" in backends:
            self._probe_native(parsed)
            if requested is None:
                is_plugin = entry is not None and entry.native_id in plugin_files  # these have no Python env
                others = "" if is_plugin else "; backends=['serial', 'processes'] measures the Python env of this id"
                self.notes.append(f"it runs in C++{others}")
        python = [name for name in backends if name in PYTHON_BACKENDS]
        if python:
            backends = self._probe_python(python, parsed, backends)
        return backends

    def _probe_native(self, parsed: Options) -> None:
        # Several: with a single env, most of the time would be the overhead of a call.
        num_envs = parsed.config.num_envs if "num_envs" in parsed.explicit else DEFAULT_NATIVE_ENVS
        options = {"seed": 0, **self._options, "num_envs": num_envs, "num_workers": 1, "backend": "native"}
        with make_pool(self._env, **options) as pool:
            probe = probe_native(RandomStepper(pool, seed=0))
        self.probes["native"] = probe
        self._note(probe)

    def _probe_python(self, python: list[str], parsed: Options, backends: tuple[str, ...]) -> tuple[str, ...]:
        """Probe the env and return the backends to measure."""
        check_known(self._env)
        config = parsed.config
        builders = builders_for(
            self._env, config.num_envs, parsed.params, parsed.wrappers, config.render_mode, config.max_episode_steps
        )
        self._budget.show("probing one env")
        probe = probe_python(builders, config, in_worker="processes" in python, limit_s=self._budget.left_s * 0.75)
        self.probes.update(dict.fromkeys(python, probe))
        if probe.kills_its_process:
            self.notes.append(
                "it ended its process at once: serial and threads were skipped, since they would end this process"
            )
            return tuple(name for name in backends if name not in ("serial", "threads"))
        self._note(probe)
        return backends

    def _note(self, probe: Probe) -> None:
        figure = f"a step takes {duration(probe.step_s)} in one env"
        cores = counted(self._cores, "usable core")
        if probe.waits:
            self.notes.append(
                f"{figure}, {1 - probe.cpu_share:.0%} of it waiting: more workers than the {cores} may help"
            )
        else:
            self.notes.append(f"{figure}; {cores}")


def probe_python(builders: EnvBuilders, config: PoolConfig, *, in_worker: bool, limit_s: float) -> Probe:
    """Probe a Python env, in a worker process if possible: an env that hangs or crashes does not affect this one."""
    factory = _TimedFactory(builders.builders[0])
    if in_worker:
        # Not a timeout of recv(): the worker of an env that hangs must be killed, at once.
        options = {"step_timeout": limit_s, "start_method": config.start_method}
        try:
            return _probe(factory, "processes", builders, config, options)
        except WorkerDied as error:
            if "step_timeout" not in str(error):
                return Probe(0.0, 0.0, 0.0, 1.0, kills_its_process=True)
            raise RecvTimeout(
                f"tune() expected a step of {builders.name} within {limit_s:.3g} s, got none; pass more seconds"
            ) from error
        except EnvfleetError:
            pass  # such as a factory that cannot be pickled: the cases on processes will report it
    return _probe(factory, "serial", builders, config, {})


def probe_native(stepper: RandomStepper) -> Probe:
    """Probe a native env, on a pool with one thread; building it takes next to no time.

    Native envs compute: a thread that is not on the CPU waits for a core, not for its env.
    """
    stepper.start()
    started, num_batches = time.perf_counter(), 0
    while (wall_s := time.perf_counter() - started) < _PROBE_S / 2 or num_batches == 0:
        stepper.step()
        num_batches += 1
    return Probe(0.0, 0.0, wall_s / (num_batches * stepper.batch_size), cpu_share=1.0)


def _probe(
    factory: _TimedFactory,
    backend: Literal["serial", "processes"],
    builders: EnvBuilders,
    config: PoolConfig,
    options: dict[str, Any],
) -> Probe:
    limit = builders.max_episode_steps
    with make_pool(
        factory, backend=backend, max_episode_steps=limit, autoreset_mode=config.autoreset_mode, seed=0, **options
    ) as pool:
        wall_s = _step_for_a_while(RandomStepper(pool, seed=0), config)
        timed: _Times = pool.get_attr("envfleet_times")[0]
    if not timed.num_steps:  # it was rebuilt just now, and its times with it
        return Probe(timed.build_s, 0.0, wall_s, cpu_share=1.0)
    return Probe(
        timed.build_s, timed.reset_s / timed.num_resets, timed.step_s / timed.num_steps, cpu_share=timed.cpu_share
    )


def _step_for_a_while(stepper: RandomStepper, config: PoolConfig) -> float:
    """Step an env, from its reset on, and return the seconds per step. Restarts it as on_error says.

    Not by a pool with on_error="restart": that would also restart a worker that its env has killed, and such an env
    must not be measured in this process.
    """
    must_reset, num_restarts, num_steps = True, 0, 0
    started = time.perf_counter()
    while (wall_s := time.perf_counter() - started) < _PROBE_S or not num_steps:
        try:
            if must_reset:
                stepper.start()
                must_reset = False
            num_steps += 1
            stepper.step()
        except WorkerDied:
            raise
        except EnvError:
            if config.on_error == "raise" or num_restarts >= config.max_restarts:
                raise
            must_reset, num_restarts = True, num_restarts + 1
    return wall_s / num_steps


@dataclass
class _Times:
    build_s: float
    reset_s: float = 0.0
    num_resets: int = 0
    step_s: float = 0.0
    num_steps: int = 0
    # Of the steps during which no other process took the core: in others, the time off the CPU is not spent waiting.
    undisturbed_s: float = 0.0
    undisturbed_cpu_s: float = 0.0

    def add_step(self, wall_s: float, cpu_s: float, num_preemptions: int) -> None:
        self.step_s += wall_s
        self.num_steps += 1
        if not num_preemptions:
            self.undisturbed_s += wall_s
            self.undisturbed_cpu_s += cpu_s

    @property
    def cpu_share(self) -> float:
        return min(1.0, self.undisturbed_cpu_s / self.undisturbed_s) if self.undisturbed_s else 1.0


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
        self.envfleet_times = _Times(build_s)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        started = time.perf_counter()
        result = self.env.reset(**kwargs)
        self.envfleet_times.reset_s += time.perf_counter() - started
        self.envfleet_times.num_resets += 1
        return result

    def step(self, action: Any) -> Any:
        preemptions_before = _num_preemptions()
        cpu_started, started = time.process_time(), time.perf_counter()
        result = self.env.step(action)
        wall_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu_started
        self.envfleet_times.add_step(wall_s, cpu_s, _num_preemptions() - preemptions_before)
        return result


def _num_preemptions() -> int:
    """Return how often the threads of this process lost their core before they were done with it."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
