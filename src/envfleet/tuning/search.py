"""tune(): looks at the env, measures every setting once, then the fastest again and again.

Rounds alternate between the cases, so that a slow moment of the machine hits all of them alike.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from envfleet import _native
from envfleet.driving import ActionDraws, Driver, measure
from envfleet.errors import ConfigError
from envfleet.making.registry import Env, make_pool
from envfleet.tuning.budget import Budget, Progress, duration
from envfleet.tuning.candidates import (
    batch_sizes_for,
    counts_of,
    default_num_envs,
    expected_s,
    first_cases,
    smaller_batches,
)
from envfleet.tuning.first_look import FirstLook, own_num_envs
from envfleet.tuning.probe import Probe
from envfleet.tuning.ranking import conclusion, fastest, finalists, nothing_measured
from envfleet.tuning.report import Case, Tuning, one_line

_FIRST_PART = 0.6  # of the time, at most, until every case was measured once
_MIN_SLICE_S, _MAX_SLICE_S = 0.02, 0.5
_PATIENCE_S = 2.0
_NUM_ROUNDS = 5
_THREADS_HELP = 1.3  # two threads over one
_MAX_OPEN = 6  # pools at a time: each holds num_envs envs


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
    """Measures what fits this machine and this env, with random actions, and says which setting is the fastest.

    >>> envfleet.make(env, **envfleet.tune(env, num_envs=64).best)

    env, env_kwargs and all other options are those of make(). What is left out is chosen: the backends that can run
    the env, worker counts up to the usable cores (beyond them where the env waits more than it works), batches of all
    envs, of half and of a quarter. A case that fails is listed with its error. Takes about `seconds`.

    Serial and threads are measured in this process. Name backends=["processes"] for an env that may crash.
    """
    for wrong, right in (("backend", "backends"), ("batch_size", "batch_sizes"), ("num_threads", "num_workers")):
        if wrong in options:
            raise ConfigError(f"tune() expected {right}, got {wrong}={options[wrong]!r}; {right} takes one or several")
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < float("inf"):
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
        self._drivers: dict[int, Driver] = {}  # of the cases whose pools are open, by id()
        self._draws: ActionDraws | None = None
        self._probes: dict[str, Probe] = {}
        self._notes: list[str] = []
        self._in_vain: set[str] = set()  # backends whose other settings are not worth their time
        self._first_error: Exception | None = None

    def run(
        self, backends: Any, num_envs: list[int] | None, num_workers: list[int] | None, batch_sizes: list[int] | None
    ) -> Tuning:
        """The whole search."""
        own = own_num_envs(self._env, self._options)
        looked_at = num_envs[0] if num_envs else own
        look = FirstLook(self._env, self._options, backends, looked_at, self._cores, self._budget)
        self._probes, self._notes = look.probes, look.notes
        sizes = num_envs or [own or default_num_envs(look.python_probe, self._cores, self._budget.seconds)]
        with ExitStack() as at_end:
            at_end.callback(self._close_all)
            for size in sizes:
                self._screen(look.backends, size, batch_sizes_for(size, batch_sizes), num_workers, len(sizes))
            measured = [case for case in self._cases if case.was_measured]
            if measured:
                self._play_finals(finalists(measured, sizes))
        if not any(case.was_measured for case in self._cases):
            if self._first_error is not None:
                raise self._first_error
            raise nothing_measured(self._cases, self._budget.seconds)
        return conclusion(self._env, self._options, self._cases, sizes, self._notes)

    # --- once for every case -----------------------------------------------------------------

    def _screen(
        self,
        backends: Sequence[str],
        num_envs: int,
        batch_sizes: list[int],
        num_workers: list[int] | None,
        num_sizes: int,
    ) -> None:
        if not batch_sizes:
            raise ConfigError(f"batch_sizes expected one that is at most num_envs={num_envs}, got only larger ones")
        cases = first_cases(backends, num_envs, batch_sizes, num_workers, self._probes, self._cores)
        # The quickest first: of a slow env, those are the ones that the time is enough for.
        cases.sort(key=lambda case: expected_s(case, self._probes[case.backend], self._cores))
        expected_cases = num_sizes * (len(cases) + 2 * len(backends) * (len(batch_sizes) - 1))
        slice_s = _clamped(_FIRST_PART * self._budget.seconds / expected_cases / 2)
        cases = self._try_threads(cases, slice_s)
        for case in cases:
            self._measure_first(case, slice_s)
        for backend in backends:
            if backend in self._in_vain:
                continue
            own = [c for c in self._cases if (c.backend, c.num_envs) == (backend, num_envs) and c.was_measured]
            for case in smaller_batches(fastest(own)[:2], batch_sizes):
                self._measure_first(case, slice_s)

    def _try_threads(self, cases: list[Case], slice_s: float) -> list[Case]:
        """Two threads against one, turn about, says whether threads help at all. Returns what is left to measure."""
        pair = [c for c in cases if c.backend == "threads" and c.num_workers in (1, 2)]
        if len(pair) < 2 or (self._cores < 2 and not self._probes["threads"].waits):
            return cases
        for turn in range(3):
            for case in pair:
                if turn == 0:
                    self._measure_first(case, slice_s)
                elif case.was_measured and self._budget.left_s > self._budget.seconds / 2:
                    self._measure_again(case, slice_s)
        left = [case for case in cases if case not in pair]
        if not all(case.was_measured for case in pair):
            return left
        one, two = (case.median for case in sorted(pair, key=lambda case: case.num_workers))
        ratio = two / one
        if not _has_gil():
            self._note_once(f"the GIL is off: two threads are {ratio:.2f} times as fast as one")
        elif ratio >= _THREADS_HELP:
            self._note_once(f"threads help this env, it lets go of the GIL: two are {ratio:.2f} times as fast as one")
        else:
            self._note_once(f"threads cannot help this env, it holds the GIL: two are {ratio:.2f} times as fast as one")
            self._in_vain.add("threads")
            return [case for case in left if case.backend != "threads"]
        return left

    def _note_once(self, note: str) -> None:
        if not any(other.partition(":")[0] == note.partition(":")[0] for other in self._notes):
            self._notes.append(note)

    def _measure_first(self, case: Case, slice_s: float) -> None:
        self._cases.append(case)
        has_figures = any(other.was_measured for other in self._cases)
        if has_figures and self._budget.used_s > _FIRST_PART * self._budget.seconds:
            case.error = "skipped: the time was up"
            return
        needed_s = expected_s(case, self._probes[case.backend], self._cores)
        if needed_s > self._budget.left_s:
            case.error = f"skipped: its first batch would take about {duration(needed_s)}"
            return
        self._budget.show(str(case))
        try:
            pool = make_pool(
                self._env,
                **{"seed": 0, **self._options, **case.options, "batch_size": case.batch_size},
            )
        except Exception as error:  # whatever it is, it is this case's figure
            self._fail(case, error)
            return
        try:
            self._draws = self._draws or ActionDraws(pool.spec.action_space, seed=0)
            self._drivers[id(case)] = Driver(pool, draws=self._draws)
        except BaseException:
            pool.close()
            raise
        self._measure_again(case, slice_s)
        self._close_losers()

    def _measure_again(self, case: Case, slice_s: float) -> None:
        driver = self._drivers[id(case)]
        # On a busy machine a batch may take long; a case that was begun gets its chance.
        driver.timeout_s = max(self._budget.left_s, _PATIENCE_S)
        self._budget.show(str(case))
        try:
            case.steps_per_s.append(measure(driver, slice_s))
        except Exception as error:  # likewise
            self._fail(case, error)

    def _fail(self, case: Case, error: Exception) -> None:
        self._first_error = self._first_error or error
        case.error = one_line(error)
        self._close(case)

    # --- the fastest again --------------------------------------------------------------------

    def _play_finals(self, chosen: list[Case]) -> None:
        for case in self._cases:
            if case not in chosen:
                self._close(case)
        slice_s = _clamped(self._budget.left_s / len(chosen) / _NUM_ROUNDS)
        for turn in range(_NUM_ROUNDS):
            for case in chosen if turn % 2 else chosen[::-1]:
                # A round that cannot end in time would break the promise of `seconds`.
                usual_s = slice_s + 2 * case.num_envs / case.median
                if case.was_measured and id(case) in self._drivers and self._budget.left_s > usual_s:
                    self._measure_again(case, slice_s)

    # --- pools --------------------------------------------------------------------------------

    def _close_losers(self) -> None:
        open_cases = fastest(case for case in self._cases if id(case) in self._drivers)
        wanted = finalists(open_cases, sorted({case.num_envs for case in open_cases}))
        for case in [case for case in open_cases if case not in wanted][max(0, _MAX_OPEN - len(wanted)) :]:
            self._close(case)

    def _close(self, case: Case) -> None:
        driver = self._drivers.pop(id(case), None)
        if driver is not None:
            driver.pool.close()

    def _close_all(self) -> None:
        for case in self._cases:
            self._close(case)


def _clamped(slice_s: float) -> float:
    return min(max(slice_s, _MIN_SLICE_S), _MAX_SLICE_S)


def _has_gil() -> bool:
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())
