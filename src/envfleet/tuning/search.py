"""tune(): probes the env, measures every setting once, then the fastest ones repeatedly.

Rounds alternate between the cases, so that a slow phase of the machine affects all of them.
"""

from __future__ import annotations

import math
import numbers
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

from envfleet import _native
from envfleet.errors import ConfigError, EnvfleetError
from envfleet.making.make import Env, make_pool
from envfleet.tuning.candidates import (
    batch_sizes_for,
    counts_of,
    default_num_envs,
    expected_s,
    first_cases,
    smaller_batches,
)
from envfleet.tuning.probe import EnvSurvey, Probe
from envfleet.tuning.report import Case, Tuning, counted, duration, one_line
from envfleet.tuning.throughput import RandomActions, RandomStepper, measure

_SCREENING_SHARE = 0.6  # of the time, at most, until every case has been measured once
_MIN_ROUND_S, _MAX_ROUND_S = 0.02, 0.5
_MIN_TIMEOUT_S = 2.0
_NUM_ROUNDS = 5
_MIN_THREADS_SPEEDUP = 1.3  # of two threads over one
_MAX_OPEN_POOLS = 6  # each has num_envs envs
_NUM_FINALISTS = 4
_MIN_FINALIST_SHARE = 0.5  # of the fastest: below this, more rounds would not change the result
_TIE_SHARE = 0.95  # of the fastest: from here on, the simpler setting is preferred

_TIME_IS_UP = "skipped: the time was used up"

Progress = Callable[[float, str], None]  # called with the share of the time that is used, and what is measured now


class Budget:
    """The time that tune() may take, from the construction of this object."""

    def __init__(self, seconds: float, progress: Progress | None) -> None:
        self.seconds = seconds
        self._started = time.perf_counter()
        self._progress = progress

    @property
    def used_s(self) -> float:
        """The time since the start, in seconds."""
        return time.perf_counter() - self._started

    @property
    def left_s(self) -> float:
        """The remaining time in seconds; negative if it was exceeded."""
        return self.seconds - self.used_s

    def show(self, what: str) -> None:
        """Report to the caller what is measured next."""
        if self._progress is not None:
            self._progress(min(1.0, self.used_s / self.seconds), what)


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
    return _Search(env, options, Budget(float(seconds), progress)).run(
        backends,
        counts_of("num_envs", num_envs),
        counts_of("num_workers", num_workers, 1024),
        counts_of("batch_sizes", batch_sizes),
    )


class _Search:
    def __init__(self, env: Env, options: dict[str, Any], budget: Budget) -> None:
        self._env = env
        self._options = options
        self._budget = budget
        self._cores = _native.usable_cores()
        self._cases: list[Case] = []
        self._steppers: dict[int, RandomStepper] = {}  # of the cases whose pools are open, by id()
        self._actions: RandomActions | None = None
        self._probes: dict[str, Probe] = {}
        self._notes: list[str] = []
        self._ruled_out: set[str] = set()  # backends whose other settings are not worth measuring
        self._first_error: Exception | None = None

    def run(
        self, backends: Any, num_envs: list[int] | None, num_workers: list[int] | None, batch_sizes: list[int] | None
    ) -> Tuning:
        """Run the search."""
        implied = implied_num_envs(self._env, self._options)
        first_size = num_envs[0] if num_envs else implied
        survey = EnvSurvey(self._env, self._options, backends, first_size, self._cores, self._budget)
        probing_s = self._budget.used_s
        self._probes, self._notes = survey.probes, survey.notes
        sizes = num_envs or [implied or default_num_envs(survey.python_probe, self._cores, self._budget.seconds)]
        with ExitStack() as at_end:
            at_end.callback(self._close_all)
            for size in sizes:
                self._screen(survey.backends, size, batch_sizes_for(size, batch_sizes), num_workers, len(sizes))
            measured = [case for case in self._cases if case.was_measured]
            if measured:
                self._run_finals(finalists(measured, sizes))
        if not any(case.was_measured for case in self._cases):
            if self._first_error is not None:
                raise self._first_error
            raise nothing_measured(self._cases, self._budget.seconds, probing_s)
        return conclusion(self._env, self._options, self._cases, sizes, self._notes)

    # --- every case once ----------------------------------------------------------------------

    def _screen(
        self,
        backends: Sequence[str],
        num_envs: int,
        batch_sizes: list[int],
        num_workers: list[int] | None,
        num_sizes: int,
    ) -> None:
        if not batch_sizes:
            raise ConfigError(f"batch_sizes expected a size of at most num_envs={num_envs}, got only larger ones")
        cases = first_cases(backends, num_envs, batch_sizes, num_workers, self._probes, self._cores)
        # The fastest first: for a slow env, the time is only enough for those.
        cases.sort(key=lambda case: expected_s(case, self._probes[case.backend], self._cores))
        expected_cases = num_sizes * (len(cases) + 2 * len(backends) * (len(batch_sizes) - 1))
        round_s = _clamped(_SCREENING_SHARE * self._budget.seconds / expected_cases / 2)
        if cases[0].backend != "threads":
            # The comparison may use up the time of an env that is slow to build, and threads would win unopposed.
            self._measure_first(cases.pop(0), round_s)
        cases = self._compare_threads(cases, round_s)
        for case in cases:
            self._measure_first(case, round_s)
        for backend in backends:
            if backend in self._ruled_out:
                continue
            own = [c for c in self._cases if (c.backend, c.num_envs) == (backend, num_envs) and c.was_measured]
            for case in smaller_batches(fastest(own)[:2], batch_sizes):
                self._measure_first(case, round_s)

    def _compare_threads(self, cases: list[Case], round_s: float) -> list[Case]:
        """Compare two threads with one, in alternation, to see if threads help. Return the cases left to measure."""
        pair = [c for c in cases if c.backend == "threads" and c.num_workers in (1, 2)]
        if len(pair) < 2 or (self._cores < 2 and not self._probes["threads"].waits):
            return cases
        for attempt in range(3):
            for case in pair:
                if attempt == 0:
                    self._measure_first(case, round_s)
                elif case.was_measured and self._budget.left_s > self._budget.seconds / 2:
                    self._measure_again(case, round_s)
        left = [case for case in cases if case not in pair]
        if not all(case.was_measured for case in pair):
            return left
        one, two = (case.median for case in sorted(pair, key=lambda case: case.num_workers))
        ratio = two / one
        if not _has_gil():
            self._note_once(f"the GIL is off: two threads are {ratio:.2f} times as fast as one")
        elif ratio >= _MIN_THREADS_SPEEDUP:
            self._note_once(f"threads help this env, it releases the GIL: two are {ratio:.2f} times as fast as one")
        else:
            self._note_once(f"threads do not help this env, it holds the GIL: two are {ratio:.2f} times as fast as one")
            self._ruled_out.add("threads")
            return [case for case in left if case.backend != "threads"]
        return left

    def _note_once(self, note: str) -> None:
        if not any(other.partition(":")[0] == note.partition(":")[0] for other in self._notes):
            self._notes.append(note)

    def _measure_first(self, case: Case, round_s: float) -> None:
        self._cases.append(case)
        has_figures = any(other.was_measured for other in self._cases)
        if has_figures and self._budget.used_s > _SCREENING_SHARE * self._budget.seconds:
            case.error = _TIME_IS_UP
            return
        needed_s, left_s = expected_s(case, self._probes[case.backend], self._cores), self._budget.left_s
        if left_s <= 0:
            case.error = _TIME_IS_UP
            return
        if needed_s > left_s:
            case.error = f"skipped: its first batch would take about {duration(needed_s)} of {duration(left_s)} left"
            return
        self._budget.show(str(case))
        try:
            pool = make_pool(
                self._env,
                **{"seed": 0, **self._options, **case.options, "batch_size": case.batch_size},
            )
        except Exception as error:  # it becomes the result of this case
            self._fail(case, error)
            return
        try:
            self._actions = self._actions or RandomActions(pool.spec.action_space, seed=0)
            self._steppers[id(case)] = RandomStepper(pool, actions=self._actions)
        except BaseException:
            pool.close()
            raise
        self._measure_again(case, round_s)
        self._close_slow_pools()

    def _measure_again(self, case: Case, round_s: float) -> None:
        stepper = self._steppers[id(case)]
        # On a busy machine a batch may take long; a case that was started gets some time.
        stepper.timeout_s = max(self._budget.left_s, _MIN_TIMEOUT_S)
        self._budget.show(str(case))
        try:
            case.steps_per_s.append(measure(stepper, round_s))
        except Exception as error:  # likewise
            self._fail(case, error)

    def _fail(self, case: Case, error: Exception) -> None:
        self._first_error = self._first_error or error
        case.error = one_line(error)
        self._close(case)

    # --- the fastest again --------------------------------------------------------------------

    def _run_finals(self, chosen: list[Case]) -> None:
        for case in self._cases:
            if case not in chosen:
                self._close(case)
        round_s = _clamped(self._budget.left_s / len(chosen) / _NUM_ROUNDS)
        for number in range(_NUM_ROUNDS):
            for case in chosen if number % 2 else chosen[::-1]:
                # A round that cannot end in time would exceed `seconds`.
                expected_round_s = round_s + 2 * case.num_envs / case.median
                if case.was_measured and id(case) in self._steppers and self._budget.left_s > expected_round_s:
                    self._measure_again(case, round_s)

    # --- pools --------------------------------------------------------------------------------

    def _close_slow_pools(self) -> None:
        open_cases = fastest(case for case in self._cases if id(case) in self._steppers)
        wanted = finalists(open_cases, sorted({case.num_envs for case in open_cases}))
        for case in [case for case in open_cases if case not in wanted][max(0, _MAX_OPEN_POOLS - len(wanted)) :]:
            self._close(case)

    def _close(self, case: Case) -> None:
        stepper = self._steppers.pop(id(case), None)
        if stepper is not None:
            stepper.pool.close()

    def _close_all(self) -> None:
        for case in self._cases:
            self._close(case)


def implied_num_envs(env: Env, options: dict[str, Any]) -> int | None:
    """Return the length of a list of factories or of env_kwargs among the arguments of tune(), or None."""
    lists = (env, options.get("env_kwargs"))
    return next((len(own) for own in lists if isinstance(own, (list, tuple)) and own), None)


# --- ranking ------------------------------------------------------------------------------------


def fastest(cases: Iterable[Case]) -> list[Case]:
    """Sort the cases, the fastest first."""
    return sorted(cases, key=lambda case: case.median, reverse=True)


def finalists(measured: list[Case], sizes: Sequence[int]) -> list[Case]:
    """Return the cases that may be the best for their number of envs."""
    chosen = []
    for size in sizes:
        own = fastest(case for case in measured if case.num_envs == size)
        best = own[0].median if own else 0.0
        chosen += [case for case in own if case.median >= _MIN_FINALIST_SHARE * best][
            : max(2, _NUM_FINALISTS // len(sizes))
        ]
        # Among ties a synchronous case is chosen: the best of those must be measured again.
        chosen += [case for case in own if case.mode == "sync" and case not in chosen][:1]
    return chosen


def simplest(fastest_first: list[Case]) -> Case:
    """Return the fastest case, or one that is as fast within the noise and simpler or cheaper."""
    floor = _TIE_SHARE * fastest_first[0].median
    near = [case for case in fastest_first if case.median >= floor and case.num_envs == fastest_first[0].num_envs]
    return min(near, key=lambda case: (case.mode != "sync", case.num_workers, case.backend != "serial", -case.median))


def conclusion(
    env: Env, options: dict[str, Any], cases: Sequence[Case], sizes: Sequence[int], notes: Sequence[str]
) -> Tuning:
    """Return the result. options: those of make() that were passed to tune()."""
    measured = fastest(case for case in cases if case.was_measured)
    failed = [case for case in cases if not case.was_measured]
    best = simplest(measured)
    return Tuning(
        _name_of(env),
        {**best.options, **options},
        (*measured, *failed),
        (*notes, *_notes_on(best, measured, sizes)),
    )


def nothing_measured(cases: Sequence[Case], seconds: float, probing_s: float) -> EnvfleetError:
    """Return the error for a run in which no case was measured, and none raised an exception."""
    if probing_s >= seconds:
        enough = max(math.ceil(4 * probing_s), 2)
        return EnvfleetError(
            f"tune() expected to probe and measure the env within {seconds:g} s, but probing one env took "
            f"{duration(probing_s)}; pass seconds={enough}, or --seconds {enough} on the command line"
        )
    reason = cases[0].error if cases else "no backend can run the env"
    return EnvfleetError(
        f"tune() could not measure any setting within {seconds:g} s ({reason}); pass more seconds or fewer num_envs"
    )


def _notes_on(best: Case, measured: list[Case], sizes: Sequence[int]) -> list[str]:
    notes = []
    if best is not measured[0]:
        notes.append(
            f"{best} is within {1 - _TIE_SHARE:.0%} of the fastest ({measured[0]}) and simpler, so it was chosen"
        )
    for size in sizes if len(sizes) > 1 else []:
        own = [case for case in measured if case.num_envs == size]
        if own:
            chosen = simplest(own)
            notes.append(f"best of {counted(size, 'env')}: {chosen}, {chosen.median:,.0f} steps/s")
    if best.mode == "async":
        notes.append("the best is asynchronous: rows come in order of completion, and env_id identifies them")
    return notes


def _name_of(env: Env) -> str:
    """Return the env as written in a call of make()."""
    if isinstance(env, str):
        return repr(env)
    name: str = getattr(env, "__name__", "env")
    return name if name.isidentifier() else "env"


def _clamped(round_s: float) -> float:
    return min(max(round_s, _MIN_ROUND_S), _MAX_ROUND_S)


def _has_gil() -> bool:
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())
