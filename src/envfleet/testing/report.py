"""The report of check_env(): findings, each with what was observed and a remedy."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from envfleet.core.errors import EnvfleetError

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """One problem. An error breaks the env in a pool; a warning is about speed or surprising behavior.

    Attributes:
        severity: "error" or "warning".
        name: The kind of problem.
        seen: What was observed the first time.
        remedy: What to do about it.
        times: How often it was observed.
    """

    severity: Severity
    name: str
    seen: str
    remedy: str
    times: int = 1

    def __str__(self) -> str:
        again = f" ({self.times} times; this was the first)" if self.times > 1 else ""
        return f"{self.severity}: {self.name}: {self.seen}{again}\n    remedy: {self.remedy}"


@dataclass(frozen=True)
class EnvReport:
    """The result of check_env().

    Attributes:
        env: The name of the env.
        findings: The problems that were found.
        notes: For information.
    """

    env: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there are no errors; there may be warnings."""
        return not self.errors

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that break the env in a pool."""
        return tuple(finding for finding in self.findings if finding.severity == "error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings that do not break the env in a pool."""
        return tuple(finding for finding in self.findings if finding.severity == "warning")

    def raise_on_error(self) -> None:
        """Raise EnvCheckError, which lists all findings, unless ok."""
        if not self.ok:
            raise EnvCheckError(self)

    def __str__(self) -> str:
        counts = f"{_count(len(self.errors), 'error')}, {_count(len(self.warnings), 'warning')}"
        lines = [f"check_env({self.env}): {counts}", *map(str, (*self.errors, *self.warnings))]
        return "\n  ".join([*lines, *(f"note: {note}" for note in self.notes)])


class EnvCheckError(EnvfleetError, AssertionError):
    """check_env(strict=True) found errors; they are in `report`."""

    def __init__(self, report: EnvReport) -> None:
        super().__init__(str(report))
        self.report = report

    def __reduce__(self) -> tuple[Any, ...]:
        return EnvCheckError, (self.report,)


@dataclass
class Findings:
    """Collects findings: those of the same name and place are counted, not repeated."""

    notes: list[str] = field(default_factory=list)
    _by_place: dict[tuple[str, str], Finding] = field(default_factory=dict)

    def error(self, name: str, seen: str, remedy: str, place: str = "") -> None:
        """Add a finding that breaks the env in a pool."""
        self._add(Finding("error", name, seen, remedy), place)

    def warning(self, name: str, seen: str, remedy: str, place: str = "") -> None:
        """Add a finding about speed or surprising behavior."""
        self._add(Finding("warning", name, seen, remedy), place)

    def has(self, name: str) -> bool:
        """Return whether there is a finding of that name."""
        return any(name == known for known, _ in self._by_place)

    def report(self, env: str) -> EnvReport:
        """Return the report."""
        return EnvReport(env, tuple(self._by_place.values()), tuple(self.notes))

    def _add(self, finding: Finding, place: str) -> None:
        key = (finding.name, place)
        known = self._by_place.get(key)
        self._by_place[key] = finding if known is None else replace(known, times=known.times + 1)


def describe_error(error: BaseException) -> str:
    """Return an exception as one line."""
    return f"{type(error).__name__}: {_text_of(error)}".splitlines()[0]


def describe_error_of_env(error: BaseException) -> str:
    """Return an exception as one line, with the innermost place where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" (in {frames[-1].name}(), {frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return describe_error(error) + place


def short(value: object) -> str:
    """Return a value's repr, truncated to one line."""
    try:
        text = " ".join(repr(value).split())
    except Exception as error:
        text = f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    return text if len(text) <= 80 else text[:77] + "..."


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "<its str() raises>"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
