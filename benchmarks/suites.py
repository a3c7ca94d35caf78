"""The table of all suites. A suite is a function that returns Cases; to add one, add it to the SUITES of its file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import api_suites
import atari_suites
import families_suites
import mujoco_suites
import native_suites
import native_table
import procgen_suites
import python_suites
import ray_suites
import sampling_suites
import vizdoom_suites
import xla_suites
from harness import Case, Contender, Options, Target
from isolated import Isolated, isolated_contender

SUITES: dict[str, Callable[[Options], list[Case]]] = {
    **native_suites.SUITES,
    **native_table.SUITES,
    **python_suites.SUITES,
    **ray_suites.SUITES,
    **api_suites.SUITES,
    **atari_suites.SUITES,
    **mujoco_suites.SUITES,
    **sampling_suites.SUITES,
    **vizdoom_suites.SUITES,
    **families_suites.SUITES,
    **procgen_suites.SUITES,
    **xla_suites.SUITES,
}

# Run only if they are named: they take long, or need the environment of `make test-families`.
ON_REQUEST = frozenset({"native_table", "worker_families"})
_AFTER, _BEFORE = "this build", "the other build"


def build(suite: str, options: Options) -> list[Case]:
    """Return the cases of a suite, with the selected peers only, or of this build and another."""
    cases = SUITES[suite](options)
    if options.baseline is not None:
        return [pair for case in cases for pair in _two_builds(case, options.baseline)]
    if options.peers is None:
        return cases
    return [replace(case, contenders=_selected(case, options.peers)) for case in cases]


def _selected(case: Case, peer_names: tuple[str, ...]) -> Sequence[Contender]:
    always = (case.reference, "envfleet")
    return [c for c in case.contenders if c.name.startswith(always) or c.name.lower().startswith(peer_names)]


def _two_builds(case: Case, python: str) -> list[Case]:
    """Return a case for each contender that is envfleet: as it is here, and in another interpreter's environment."""
    cases = []
    for contender in case.contenders:
        make = contender.make
        if not (contender.name.startswith("envfleet") and isinstance(make, partial)):
            continue
        function = make.args[0] if make.func is Isolated else make.func
        builds = [
            isolated_contender(_AFTER, function, **make.keywords),
            isolated_contender(_BEFORE, function, python=python, **make.keywords),
        ]
        name = f"{case.name}: {contender.name}"
        target = Target("ratio", _AFTER, 0.95, _BEFORE)
        cases.append(replace(case, name=name, contenders=builds, reference=_AFTER, targets=[target]))
    return cases
