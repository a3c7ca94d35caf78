"""Which of the measured cases are worth more rounds, which is the best, and what is to be said of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from envfleet.errors import EnvfleetError
from envfleet.making.registry import Env
from envfleet.tuning.report import Case, Tuning, counted

_NUM_FINALISTS = 4
_HOPELESS = 0.5  # of the fastest: below this, more rounds change nothing
_TIE = 0.95  # of the fastest: from here on, the simpler setting is the better one


def fastest(cases: Iterable[Case]) -> list[Case]:
    """The fastest first."""
    return sorted(cases, key=lambda case: case.median, reverse=True)


def finalists(measured: list[Case], sizes: Sequence[int]) -> list[Case]:
    """Those that may be the best for their number of envs."""
    chosen = []
    for size in sizes:
        own = fastest(case for case in measured if case.num_envs == size)
        best = own[0].median if own else 0.0
        chosen += [case for case in own if case.median >= _HOPELESS * best][: max(2, _NUM_FINALISTS // len(sizes))]
        # What is chosen among settings that are as good is synchronous: the best of those must have its rounds.
        chosen += [case for case in own if case.mode == "sync" and case not in chosen][:1]
    return chosen


def simplest(fastest_first: list[Case]) -> Case:
    """The fastest, or what is as good within the noise and asks less of the caller and of the machine."""
    floor = _TIE * fastest_first[0].median
    near = [case for case in fastest_first if case.median >= floor and case.num_envs == fastest_first[0].num_envs]
    return min(near, key=lambda case: (case.mode != "sync", case.num_workers, case.backend != "serial", -case.median))


def conclusion(
    env: Env, options: dict[str, Any], cases: Sequence[Case], sizes: Sequence[int], notes: Sequence[str]
) -> Tuning:
    """The report. options: those of make() that tune() was given; notes: what was seen on the way."""
    measured = fastest(case for case in cases if case.was_measured)
    failed = [case for case in cases if not case.was_measured]
    best = simplest(measured)
    return Tuning(
        _name_of(env),
        {**best.options, **options},
        (*measured, *failed),
        (*notes, *_notes_on(best, measured, sizes)),
    )


def nothing_measured(cases: Sequence[Case], seconds: float) -> EnvfleetError:
    """The error where there is no figure to conclude from, and no case has failed by an exception."""
    reason = cases[0].error if cases else "no backend is left"
    return EnvfleetError(
        f"tune() could measure nothing within {seconds:g} s ({reason}); give it more seconds or a smaller num_envs"
    )


def _notes_on(best: Case, measured: list[Case], sizes: Sequence[int]) -> list[str]:
    notes = []
    if best is not measured[0]:
        notes.append(f"{best} is within {1 - _TIE:.0%} of the fastest ({measured[0]}), and simpler: it was chosen")
    for size in sizes if len(sizes) > 1 else []:
        own = [case for case in measured if case.num_envs == size]
        if own:
            chosen = simplest(own)
            notes.append(f"best of {counted(size, 'env')}: {chosen}, {chosen.median:,.0f} steps/s")
    if best.mode == "async":
        notes.append("the best is asynchronous: rows come as they are ready, env_id says whose they are")
    return notes


def _name_of(env: Env) -> str:
    """As it is written in a call of make()."""
    if isinstance(env, str):
        return repr(env)
    name: str = getattr(env, "__name__", "env")
    return name if name.isidentifier() else "env"
