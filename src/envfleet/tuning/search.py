"""tune(): probes the env, measures every setting once, then the fastest ones repeatedly.

Rounds alternate between the cases, so that a slow phase of the machine affects all of them.
"""

from __future__ import annotations

import math
import numbers
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

from gymnasium.vector import AutoresetMode

from envfleet import _native
from envfleet.building.builders import builders_for
from envfleet.building.native_envs import find_entry, plugin_files, supports_params
from envfleet.building.pools import Env, make_pool
from envfleet.building.python_envs import check_known
from envfleet.core.backends import find_backend
from envfleet.core.errors import ConfigError, EnvfleetError, WorkerDied
from envfleet.core.options import POOL_OPTIONS, Options, pool_options
from envfleet.core.pool import Pool
from envfleet.tuning.candidates import (
    backends_for,
    batch_sizes_for,
    cases_of,
    counts_of,
    default_num_envs,
    expected_s,
)
from envfleet.tuning.probe import Probe, probe
from envfleet.tuning.report import Case, Tuning, counted, duration, one_line
from envfleet.tuning.throughput import RandomStepper, measure

_SCREENING_SHARE = 0.6  # of the time, at most, until every case has been measured once
_MIN_ROUND_S, _MAX_ROUND_S = 0.02, 0.5
_MIN_TIMEOUT_S = 2.0
_NUM_ROUNDS = 5
_NUM_FINALISTS = 4
_MIN_FINALIST_SHARE = 0.5  # of the fastest: below this, more rounds would not change the result
_TIE_SHARE = 0.95  # of the fastest: from here on, the simpler setting is preferred

Progress = Callable[[float, str], None]  # called with the share of the time that is used, and what is measured now


def tune(
    env: Env,
    *,
    num_envs: int | Sequence[int] | None = None,
    seconds: float = 20.0,
    backends: str | Sequence[str] | None = None,
    num_workers: int | Sequence[int] | None = None,
    batch_sizes: int | Sequence[int] | None = None,
    env_kwargs: Any = None,
    progress: Progress | None = None,
    **options: Any,
) -> Tuning:
    """Measure the settings that fit this machine and env, with random actions, and return the fastest.

    >>> envfleet.make(env, **envfleet.tune(env, num_envs=64).best)

    A case that fails is listed with its error. Serial and threads are measured in this process: pass
    backends=["processes"] for an env that may crash.

    Args:
        env: Anything that make() accepts.
        num_envs: One or several numbers of envs; None for a number that fits the env.
        seconds: About how long it takes.
        backends: One or several backends; None for those that can run the env.
        num_workers: One or several numbers of workers; None for counts up to the usable cores, and more if the env
            waits more than it computes.
        batch_sizes: One or several batch sizes; None for all envs, half and a quarter of them.
        env_kwargs: Parameters of the env.
        progress: Called with the share of the time that has passed and a description of what is measured next.
        **options: Options of make().
    """
    for wrong, right in (("backend", "backends"), ("batch_size", "batch_sizes"), ("num_threads", "num_workers")):
        if wrong in options:
            raise ConfigError(f"tune() expected {right}, got {wrong}={options[wrong]!r}; {right} takes one or several")
    if isinstance(seconds, bool) or not isinstance(seconds, numbers.Real) or not 0 < seconds < float("inf"):
        raise ConfigError(f"seconds expected a number above 0, got {seconds!r}")
    if env_kwargs is not None:
        options["env_kwargs"] = env_kwargs
    sizes, workers = counts_of("num_envs", num_envs), counts_of("num_workers", num_workers, 1024)
    return _Search(env, options, float(seconds), progress).run(
        backends, sizes, workers, counts_of("batch_sizes", batch_sizes)
    )


class _Search:
    def __init__(self, env: Env, options: dict[str, Any], seconds: float, progress: Progress | None) -> None:
        self._env = env
        self._options = options
        self._seconds = seconds
        self._progress = progress
        self._started = time.perf_counter()
        self._cores = _native.usable_cores()
        self._cases: list[Case] = []
        self._probe = Probe()  # of the Python env
        self._notes: list[str] = []
        self._first_error: Exception | None = None

    def run(
        self, requested: Any, num_envs: list[int] | None, num_workers: list[int] | None, batch_sizes: list[int] | None
    ) -> Tuning:
        """Run the search."""
        # A list of factories or of env_kwargs has one entry per env.
        lists = (self._env, self._options.get("env_kwargs"))
        implied = next((len(own) for own in lists if isinstance(own, (list, tuple)) and own), None)
        first_size = num_envs[0] if num_envs else implied
        backends = self._survey(requested, {"num_envs": first_size} if first_size else {})
        probing_s = self._used_s()
        python_probe = self._probe if any(find_backend(name).runs_python_envs for name in backends) else None
        sizes = num_envs or [implied or default_num_envs(python_probe, self._cores, self._seconds)]
        for size in sizes:
            self._screen(backends, size, batch_sizes_for(size, batch_sizes), num_workers, len(sizes))
        measured = [case for case in self._cases if case.was_measured]
        self._run_finals([case for size in sizes for case in finalists(measured, size, _NUM_FINALISTS // len(sizes))])
        if not any(case.was_measured for case in self._cases):
            raise self._first_error or self._nothing_measured(probing_s)
        return conclusion(self._env, self._options, self._cases, sizes, self._notes)

    # --- the time -------------------------------------------------------------------------------

    def _used_s(self) -> float:
        return time.perf_counter() - self._started

    def _left_s(self) -> float:
        return self._seconds - self._used_s()

    def _show(self, what: str) -> None:
        if self._progress is not None:
            self._progress(min(1.0, self._used_s() / self._seconds), what)

    # --- the env --------------------------------------------------------------------------------

    def _survey(self, requested: Any, sizes: dict[str, int]) -> tuple[str, ...]:
        """Probe the env and return the backends to measure."""
        entry = find_entry(self._env)
        parsed = pool_options(**{**sizes, **self._options})
        config = parsed.config
        if config.autoreset_mode is AutoresetMode.DISABLED:
            raise ConfigError(
                "autoreset_mode expected 'next_step' or 'same_step' in tune(), got 'disabled'; leave it out"
            )
        needs_processes = config.step_timeout is not None or config.start_method != POOL_OPTIONS["start_method"]
        is_native = entry is not None and not parsed.wrappers and supports_params(entry, parsed.params)
        backends = backends_for(requested, is_native=is_native, needs_processes=needs_processes)
        python = [name for name in backends if find_backend(name).runs_python_envs]
        if len(python) < len(backends) and requested is None:
            is_plugin = entry is not None and entry.native_id in plugin_files  # these have no Python env
            others = "" if is_plugin else "; backends=['serial', 'processes'] measures the Python env of this id"
            self._notes.append(f"it runs in C++{others}")
        if not python:
            return backends
        return self._survey_python(backends, parsed)

    def _survey_python(self, backends: tuple[str, ...], parsed: Options) -> tuple[str, ...]:
        check_known(self._env)
        self._show("probing one env")
        config = parsed.config
        builders = builders_for(
            self._env, config.num_envs, parsed.params, parsed.wrappers, config.render_mode, config.max_episode_steps
        )
        try:
            in_worker = any(find_backend(name).has_processes for name in backends)
            own = probe(builders, config, in_worker=in_worker, limit_s=self._left_s() * 0.75)
        except WorkerDied:
            self._notes.append(
                "it ended its process at once: serial and threads were skipped, since they would end this process"
            )
            able = (find_backend(name) for name in backends)
            return tuple(own.name for own in able if own.has_processes or not own.runs_python_envs)
        self._probe = own
        cores = counted(self._cores, "usable core")
        waiting = f", {1 - own.cpu_share:.0%} of it waiting: more workers than the {cores} may help"
        self._notes.append(f"a step takes {duration(own.step_s)} in one env{waiting if own.waits else f'; {cores}'}")
        return backends

    # --- every case once ------------------------------------------------------------------------

    def _screen(
        self,
        backends: Sequence[str],
        num_envs: int,
        batch_sizes: list[int],
        num_workers: list[int] | None,
        num_sizes: int,
    ) -> None:
        cases = [
            case
            for backend in backends
            for case in cases_of(backend, num_envs, batch_sizes[0], num_workers, self._probe_of(backend), self._cores)
        ]
        expected_cases = num_sizes * (len(cases) + 2 * len(backends) * (len(batch_sizes) - 1))
        round_s = _clamped(_SCREENING_SHARE * self._seconds / expected_cases / 2)
        # The fastest first: for a slow env, the time is only enough for those.
        for case in sorted(cases, key=self._expected_s):
            self._measure_first(case, round_s)
        for backend in backends:
            own = [case for case in cases if case.backend == backend and case.was_measured]
            # Smaller batches do not help serial.
            for case in fastest(own)[:2] if find_backend(backend).is_parallel else []:
                for size in batch_sizes[1:]:
                    self._measure_first(Case(backend, num_envs, size, case.num_workers), round_s)

    def _probe_of(self, backend: str) -> Probe:
        return self._probe if find_backend(backend).runs_python_envs else Probe()

    def _expected_s(self, case: Case) -> float:
        return expected_s(case, self._probe_of(case.backend), self._cores)

    def _measure_first(self, case: Case, round_s: float) -> None:
        self._cases.append(case)
        left_s, needed_s = self._left_s(), self._expected_s(case)
        has_figures = any(other.was_measured for other in self._cases)
        if left_s <= 0 or (has_figures and self._used_s() > _SCREENING_SHARE * self._seconds):
            case.error = "skipped: the time was used up"
        elif needed_s > left_s:
            case.error = f"skipped: its first batch would take about {duration(needed_s)} of {duration(left_s)} left"
        else:
            with ExitStack() as stack:
                stepper = self._open(case, stack)
                if stepper is not None:
                    self._measure(case, stepper, round_s)

    def _open(self, case: Case, stack: ExitStack) -> RandomStepper | None:
        """Make the pool of a case, to be closed with the stack; None if that fails."""
        self._show(str(case))
        options = {"seed": 0, **self._options, **case.options, "batch_size": case.batch_size}
        try:
            pool: Pool = stack.enter_context(make_pool(self._env, **options))
        except Exception as error:  # it becomes the result of this case
            self._fail(case, error)
            return None
        return RandomStepper(pool, seed=0)

    def _measure(self, case: Case, stepper: RandomStepper, round_s: float) -> None:
        # On a busy machine a batch may take long; a case that was started gets some time.
        stepper.timeout_s = max(self._left_s(), _MIN_TIMEOUT_S)
        self._show(str(case))
        try:
            case.steps_per_s.append(measure(stepper, round_s))
        except Exception as error:  # likewise
            self._fail(case, error)

    def _fail(self, case: Case, error: Exception) -> None:
        self._first_error = self._first_error or error
        case.error = one_line(error)

    # --- the fastest again ----------------------------------------------------------------------

    def _run_finals(self, chosen: list[Case]) -> None:
        with ExitStack() as stack:
            steppers: list[tuple[Case, RandomStepper]] = []
            for case in chosen:
                if self._expected_s(case) < self._left_s():
                    stepper = self._open(case, stack)
                    steppers += [(case, stepper)] if stepper is not None else []
            round_s = _clamped(self._left_s() / max(len(steppers), 1) / _NUM_ROUNDS)
            for number in range(_NUM_ROUNDS):
                for case, stepper in steppers if number % 2 else steppers[::-1]:
                    # A round that cannot end in time would exceed `seconds`.
                    expected_round_s = round_s + 2 * case.num_envs / case.median
                    if case.was_measured and self._left_s() > expected_round_s:
                        self._measure(case, stepper, round_s)

    def _nothing_measured(self, probing_s: float) -> EnvfleetError:
        """Return the error for a run in which no case was measured, and none raised an exception."""
        if probing_s >= self._seconds:
            enough = max(math.ceil(4 * probing_s), 2)
            return EnvfleetError(
                f"tune() expected to probe and measure the env within {self._seconds:g} s, but probing one env took "
                f"{duration(probing_s)}; pass seconds={enough}, or --seconds {enough} on the command line"
            )
        reason = self._cases[0].error if self._cases else "no backend can run the env"
        return EnvfleetError(
            f"tune() could not measure any setting within {self._seconds:g} s ({reason}); "
            "pass more seconds or fewer num_envs"
        )


def fastest(cases: Iterable[Case]) -> list[Case]:
    """Sort the cases, the fastest first."""
    return sorted(cases, key=lambda case: case.median, reverse=True)


def finalists(measured: list[Case], num_envs: int, count: int) -> list[Case]:
    """Return the cases that may be the best for a number of envs."""
    own = fastest(case for case in measured if case.num_envs == num_envs)
    chosen = [case for case in own if case.median >= _MIN_FINALIST_SHARE * own[0].median][: max(2, count)]
    # Among ties a synchronous case is chosen: the best of those must be measured again.
    return chosen + [case for case in own if case.mode == "sync" and case not in chosen][:1]


def simplest(fastest_first: list[Case]) -> Case:
    """Return the fastest case, or one that is as fast within the noise and simpler or cheaper."""
    floor = _TIE_SHARE * fastest_first[0].median
    near = [case for case in fastest_first if case.median >= floor and case.num_envs == fastest_first[0].num_envs]
    return min(
        near,
        key=lambda case: (case.mode != "sync", case.num_workers, find_backend(case.backend).is_parallel, -case.median),
    )


def conclusion(
    env: Env, options: dict[str, Any], cases: Sequence[Case], sizes: Sequence[int], notes: Sequence[str]
) -> Tuning:
    """Return the result. options: those of make() that were passed to tune()."""
    measured = fastest(case for case in cases if case.was_measured)
    best, notes = simplest(measured), list(notes)
    if best is not measured[0]:
        notes.append(
            f"{best} is within {1 - _TIE_SHARE:.0%} of the fastest ({measured[0]}) and simpler, so it was chosen"
        )
    for size in sizes if len(sizes) > 1 else []:
        if own := [case for case in measured if case.num_envs == size]:
            chosen = simplest(own)
            notes.append(f"best of {counted(size, 'env')}: {chosen}, {chosen.median:,.0f} steps/s")
    if best.mode == "async":
        notes.append("the best is asynchronous: rows come in order of completion, and env_id identifies them")
    name = repr(env) if isinstance(env, str) else getattr(env, "__name__", "env")
    failed = [case for case in cases if not case.was_measured]
    return Tuning(
        name if isinstance(env, str) or name.isidentifier() else "env",
        {**best.options, **options},
        (*measured, *failed),
        tuple(notes),
    )


def _clamped(round_s: float) -> float:
    return min(max(round_s, _MIN_ROUND_S), _MAX_ROUND_S)
