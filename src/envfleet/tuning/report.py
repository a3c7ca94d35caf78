"""Case and Tuning: the settings that tune() measured, the best of them, and a table to print."""

from __future__ import annotations

import itertools
import statistics
from dataclasses import dataclass, field
from typing import Any

from envfleet.core.backends import find_backend

_MAX_ERROR = 100  # characters of an error in the table


@dataclass
class Case:
    """One setting of a pool and its throughput.

    Attributes:
        backend: What runs the envs.
        num_envs: The number of envs.
        batch_size: The rows per batch.
        num_workers: The number of workers.
        steps_per_s: The throughput of each round.
        error: Why there are no rounds, or no more of them.
    """

    backend: str
    num_envs: int
    batch_size: int
    num_workers: int
    steps_per_s: list[float] = field(default_factory=list)
    error: str | None = None

    @property
    def mode(self) -> str:
        """Either "sync" or "async"."""
        return "async" if self.batch_size < self.num_envs else "sync"

    @property
    def median(self) -> float:
        """The median of the rounds, in steps per second; NaN if there was none."""
        return statistics.median(self.steps_per_s) if self.steps_per_s else float("nan")

    @property
    def spread(self) -> tuple[float, float]:
        """The slowest and the fastest round relative to the median: (-0.04, 0.02)."""
        if not self.steps_per_s:
            return float("nan"), float("nan")
        return min(self.steps_per_s) / self.median - 1, max(self.steps_per_s) / self.median - 1

    @property
    def was_measured(self) -> bool:
        """Whether it was measured without an error."""
        return bool(self.steps_per_s) and self.error is None

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments of make() for this setting."""
        chosen: dict[str, Any] = {"backend": self.backend, "num_envs": self.num_envs}
        if find_backend(self.backend).is_parallel:
            chosen["num_workers"] = self.num_workers
        if self.mode == "async":
            chosen["batch_size"] = self.batch_size
        return chosen

    def __str__(self) -> str:
        workers = f", {counted(self.num_workers, self.worker_noun)}" if find_backend(self.backend).is_parallel else ""
        batch = f", batch size {self.batch_size}" if self.mode == "async" else ""
        return f"{self.backend}{workers}{batch}"

    @property
    def worker_noun(self) -> str:
        """What a worker of the backend is: a thread or a worker."""
        return "thread" if find_backend(self.backend).has_threads else "worker"


@dataclass(frozen=True)
class Tuning:
    """The result of tune().

    Attributes:
        env: The env, as written in a call of make().
        best: Keyword arguments for envfleet.make(): the fastest setting, and the options that were passed to tune().
        cases: Every setting that was considered, the fastest first; those that were not measured have an error.
        notes: Observations about the env and the results.
    """

    env: str
    best: dict[str, Any]
    cases: tuple[Case, ...]
    notes: tuple[str, ...]

    @property
    def make_line(self) -> str:
        """The call that makes the best pool."""
        options = "".join(f", {name}={value!r}" for name, value in self.best.items())
        return f"envfleet.make({self.env}{options})"

    def __str__(self) -> str:
        header = ("backend", "mode", "num_envs", "batch_size", "workers", "steps/s", "slowest", "fastest", "rounds")
        rows = [header, *(_cells(case) for case in self.cases)]
        widths = [max(map(len, cells)) for cells in itertools.zip_longest(*rows, fillvalue="")]
        lines = [f"{self.env}: steps/s, median of the rounds, with the slowest and fastest relative to it", ""]
        for row, error in zip(rows, ["", *(case.error or "" for case in self.cases)], strict=True):
            cells = [
                cell.ljust(width) if column < 2 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=False))
            ]
            lines.append("  ".join([*cells, error]).rstrip())
        lines += ["", *(f"- {note}" for note in self.notes), "", f"best: {self.make_line}"]
        return "\n".join(lines)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: 1 worker, 2 workers."""
    return f"{number:,} {noun}{'s' if number != 1 else ''}"


def duration(seconds: float) -> str:
    """Format a duration: 1.5 s, 20 ms, 3.25 µs, 80 ns."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.0f} ns"


def one_line(error: BaseException) -> str:
    """Return an exception as one short line, for the table."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= _MAX_ERROR else text[: _MAX_ERROR - 1] + "…"


def _cells(case: Case) -> tuple[str, ...]:
    sizes = (case.backend, case.mode, f"{case.num_envs:,}", f"{case.batch_size:,}", str(case.num_workers))
    if case.error is not None:
        return sizes  # the error takes the place of the other columns
    slowest, fastest = ("-", "-") if len(case.steps_per_s) == 1 else (f"{part:+.0%}" for part in case.spread)
    return (*sizes, f"{case.median:,.0f}", slowest, fastest, str(len(case.steps_per_s)))
