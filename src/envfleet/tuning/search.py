"""tune(): looks at the env, measures every setting once, then the fastest again and again.

Rounds alternate between the cases, so that a slow moment of the machine hits all of them alike.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

from gymnasium.vector import AutoresetMode

from envfleet import _native
from envfleet.driving import ActionDraws, Driver, measure
from envfleet.errors import ConfigError, EnvfleetError
from envfleet.factories import recipe_for
from envfleet.native_envs import find_entry
from envfleet.options import PYTHON_BACKENDS, Options, parse_options
from envfleet.python_envs import check_known
from envfleet.registry import Env, make_pool
from envfleet.tuning.candidates import (
    DEFAULT_NATIVE_ENVS,
    backends_for,
    batch_sizes_for,
    counts_of,
    default_num_envs,
    expected_s,
    first_cases,
    smaller_batches,
)
from envfleet.tuning.probe import Probe, probe_native, probe_python
from envfleet.tuning.report import Case, Tuning, counted, one_line

_FIRST_PART = 0.6  # of the time, at most, until every case was measured once
_MIN_SLICE_S, _MAX_SLICE_S = 0.02, 0.5
_PATIENCE_S = 2.0
_NUM_FINALISTS, _NUM_ROUNDS = 4, 5
_HOPELESS = 0.5  # of the fastest: below this, more rounds change nothing
_TIE = 0.95  # of the fastest: from here on, the simpler setting is the better one
_THREADS_HELP = 1.3  # two threads over one
_MAX_OPEN = 6  # pools at a time: each holds num_envs envs

Progress = Callable[[float, str], None]  # the part of the time that is used, and what is measured now


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
    return _Search(env, float(seconds), options, progress).run(
        backends,
        counts_of("num_envs", num_envs),
        counts_of("num_workers", num_workers, 1024),
        counts_of("batch_sizes", batch_sizes),
    )


class _Search:
    def __init__(self, env: Env, seconds: float, options: dict[str, Any], progress: Progress | None) -> None:
        self._env = env
        self._seconds = seconds
        self._started = time.perf_counter()
        self._options = options
        self._progress = progress
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
        backends = self._look(backends, num_envs)
        python = next((probe for name, probe in self._probes.items() if name != "native"), None)
        sizes = num_envs or [self._own_num_envs() or default_num_envs(python, self._cores, self._seconds)]
        with ExitStack() as at_end:
            at_end.callback(self._close_all)
            for size in sizes:
                self._screen(backends, size, batch_sizes_for(size, batch_sizes), num_workers, len(sizes))
            measured = [case for case in self._cases if case.was_measured]
            if measured:
                self._play_finals(_finalists(measured, sizes))
        return self._conclusion(sizes)

    # --- a first look ------------------------------------------------------------------------

    def _look(self, given: Any, num_envs: list[int] | None) -> tuple[str, ...]:
        """Probes the env; the backends that remain."""
        entry = find_entry(self._env)
        own = self._own_num_envs()
        sizes = {"num_envs": num_envs[0]} if num_envs else {"num_envs": own} if own else {}
        parsed = parse_options({**sizes, **self._options})
        if parsed.config.autoreset_mode is AutoresetMode.DISABLED:
            raise ConfigError("tune() steps through ends of episodes; autoreset_mode expected another than 'disabled'")
        needs_processes = parsed.config.step_timeout is not None or parsed.config.start_method != "forkserver"
        is_native = entry is not None and not parsed.wrappers
        backends = backends_for(given, is_native=is_native, needs_processes=needs_processes)
        if "native" in backends:
            self._look_at_native(parsed)
            if given is None:
                self._notes.append("it runs in C++; backends=['serial', 'processes'] measures its twin in Python")
        python = [name for name in backends if name in PYTHON_BACKENDS]
        if python:
            backends = self._look_at_python(python, parsed, backends)
        return backends

    def _look_at_native(self, parsed: Options) -> None:
        # One env would show what a call takes, not what the env does.
        num_envs = parsed.config.num_envs if "num_envs" in parsed.given else DEFAULT_NATIVE_ENVS
        given = {"seed": 0, **self._options, "num_envs": num_envs, "num_threads": 1, "backend": "native"}
        with make_pool(self._env, **given) as pool:
            probe = probe_native(Driver(pool, seed=0))
        self._probes["native"] = probe
        self._say_probe(probe)

    def _look_at_python(self, python: list[str], parsed: Options, backends: tuple[str, ...]) -> tuple[str, ...]:
        check_known(self._env)
        config = parsed.config
        recipe = recipe_for(
            self._env, config.num_envs, parsed.params, parsed.wrappers, config.render_mode, config.max_episode_steps
        )
        self._show("a first look")
        probe = probe_python(recipe, config, in_worker="processes" in python, limit_s=self._left_s() * 0.75)
        self._probes.update(dict.fromkeys(python, probe))
        if probe.kills_its_process:
            self._notes.append(
                "it ended its process at once: serial and threads were left out, they would end this one"
            )
            return tuple(name for name in backends if name not in ("serial", "threads"))
        self._say_probe(probe)
        return backends

    def _say_probe(self, probe: Probe) -> None:
        figure = f"a step takes {_duration(probe.step_s)} in one env"
        if probe.waits:
            self._notes.append(
                f"{figure}, {1 - probe.cpu_share:.0%} of it waiting: more workers than the "
                f"{counted(self._cores, 'usable core')} can pay"
            )
        else:
            self._notes.append(f"{figure}; {counted(self._cores, 'usable core')}")

    def _own_num_envs(self) -> int | None:
        """How many envs the arguments themselves stand for."""
        lists = (self._env, self._options.get("env_kwargs"))
        return next((len(own) for own in lists if isinstance(own, (list, tuple)) and own), None)

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
        slice_s = _clamped(_FIRST_PART * self._seconds / expected_cases / 2)
        cases = self._try_threads(cases, slice_s)
        for case in cases:
            self._measure_first(case, slice_s)
        for backend in backends:
            if backend in self._in_vain:
                continue
            own = [c for c in self._cases if (c.backend, c.num_envs) == (backend, num_envs) and c.was_measured]
            for case in smaller_batches(_fastest(own)[:2], batch_sizes):
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
                elif case.was_measured and self._left_s() > self._seconds / 2:
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
        if has_figures and self._used_s() > _FIRST_PART * self._seconds:
            case.error = "skipped: the time was up"
            return
        needed_s = expected_s(case, self._probes[case.backend], self._cores)
        if needed_s > self._left_s():
            case.error = f"skipped: its first batch would take about {_duration(needed_s)}"
            return
        self._show(str(case))
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
        driver.timeout_s = max(self._left_s(), _PATIENCE_S)
        self._show(str(case))
        try:
            case.steps_per_s.append(measure(driver, slice_s))
        except Exception as error:  # likewise
            self._fail(case, error)

    def _fail(self, case: Case, error: Exception) -> None:
        self._first_error = self._first_error or error
        case.error = one_line(error)
        self._close(case)

    # --- the fastest again --------------------------------------------------------------------

    def _play_finals(self, finalists: list[Case]) -> None:
        for case in self._cases:
            if case not in finalists:
                self._close(case)
        slice_s = _clamped(self._left_s() / len(finalists) / _NUM_ROUNDS)
        for turn in range(_NUM_ROUNDS):
            for case in finalists if turn % 2 else finalists[::-1]:
                # A round that cannot end in time would break the promise of `seconds`.
                usual_s = slice_s + 2 * case.num_envs / case.median
                if case.was_measured and id(case) in self._drivers and self._left_s() > usual_s:
                    self._measure_again(case, slice_s)

    def _conclusion(self, sizes: list[int]) -> Tuning:
        measured = _fastest(case for case in self._cases if case.was_measured)
        if not measured:
            if self._first_error is not None:
                raise self._first_error
            reason = self._cases[0].error if self._cases else "no backend is left"
            raise EnvfleetError(
                f"tune() could measure nothing within {self._seconds:g} s ({reason}); "
                "give it more seconds or a smaller num_envs"
            )
        best = _simplest(measured)
        if best is not measured[0]:
            self._notes.append(
                f"{best} is within {1 - _TIE:.0%} of the fastest ({measured[0]}), and simpler: it was chosen"
            )
        for size in sizes if len(sizes) > 1 else []:
            own = [case for case in measured if case.num_envs == size]
            if own:
                chosen = _simplest(own)
                self._notes.append(f"best of {counted(size, 'env')}: {chosen}, {chosen.median:,.0f} steps/s")
        if best.mode == "async":
            self._notes.append("the best is asynchronous: rows come as they are ready, env_id says whose they are")
        name = repr(self._env) if isinstance(self._env, str) else getattr(self._env, "__name__", "env")
        failed = [case for case in self._cases if not case.was_measured]
        chosen_options = {**best.options, **self._options}
        return Tuning(
            name if name.isidentifier() or isinstance(self._env, str) else "env",
            chosen_options,
            (*measured, *failed),
            tuple(self._notes),
        )

    # --- time and pools -----------------------------------------------------------------------

    def _used_s(self) -> float:
        return time.perf_counter() - self._started

    def _left_s(self) -> float:
        return self._seconds - self._used_s()

    def _show(self, what: str) -> None:
        if self._progress is not None:
            self._progress(min(1.0, self._used_s() / self._seconds), what)

    def _close_losers(self) -> None:
        open_cases = _fastest(case for case in self._cases if id(case) in self._drivers)
        wanted = _finalists(open_cases, sorted({case.num_envs for case in open_cases}))
        for case in [case for case in open_cases if case not in wanted][max(0, _MAX_OPEN - len(wanted)) :]:
            self._close(case)

    def _close(self, case: Case) -> None:
        driver = self._drivers.pop(id(case), None)
        if driver is not None:
            driver.pool.close()

    def _close_all(self) -> None:
        for case in self._cases:
            self._close(case)


def _fastest(cases: Iterable[Case]) -> list[Case]:
    return sorted(cases, key=lambda case: case.median, reverse=True)


def _finalists(measured: list[Case], sizes: Sequence[int]) -> list[Case]:
    chosen = []
    for size in sizes:
        own = _fastest(case for case in measured if case.num_envs == size)
        best = own[0].median if own else 0.0
        chosen += [case for case in own if case.median >= _HOPELESS * best][: max(2, _NUM_FINALISTS // len(sizes))]
        # What is chosen among settings that are as good is synchronous: the best of those must have its rounds.
        chosen += [case for case in own if case.mode == "sync" and case not in chosen][:1]
    return chosen


def _simplest(fastest_first: list[Case]) -> Case:
    """The fastest, or what is as good within the noise and asks less of the caller and of the machine."""
    floor = _TIE * fastest_first[0].median
    near = [case for case in fastest_first if case.median >= floor and case.num_envs == fastest_first[0].num_envs]
    return min(near, key=lambda case: (case.mode != "sync", case.num_workers, case.backend != "serial", -case.median))


def _clamped(slice_s: float) -> float:
    return min(max(slice_s, _MIN_SLICE_S), _MAX_SLICE_S)


def _has_gil() -> bool:
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


def _duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.0f} ns"
