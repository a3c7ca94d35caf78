"""What tune() gives: the cases with their figures, the best of them, and a table to print."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

_MAX_ERROR = 100  # characters of an error that a table bears


@dataclass
class Case:
    """One setting of a pool and how fast it was. num_workers: the threads of the native backend."""

    backend: str
    num_envs: int
    batch_size: int
    num_workers: int
    steps_per_s: list[float] = field(default_factory=list)  # one a round
    error: str | None = None  # why there is no figure, or no more of them

    @property
    def mode(self) -> str:
        """sync or async."""
        return "async" if self.batch_size < self.num_envs else "sync"

    @property
    def median(self) -> float:
        """Steps a second, over the rounds; NaN when there was none."""
        return statistics.median(self.steps_per_s) if self.steps_per_s else float("nan")

    @property
    def spread(self) -> tuple[float, float]:
        """The slowest and the fastest round as parts of the median: (-0.04, 0.02)."""
        if not self.steps_per_s:
            return float("nan"), float("nan")
        return min(self.steps_per_s) / self.median - 1, max(self.steps_per_s) / self.median - 1

    @property
    def was_measured(self) -> bool:
        """Whether its figure counts."""
        return bool(self.steps_per_s) and self.error is None

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments of make() for it."""
        chosen: dict[str, Any] = {"backend": self.backend, "num_envs": self.num_envs}
        if self.backend != "serial":
            chosen["num_threads" if self.backend == "native" else "num_workers"] = self.num_workers
        if self.mode == "async":
            chosen["batch_size"] = self.batch_size
        return chosen

    def __str__(self) -> str:
        workers = "" if self.backend == "serial" else f", {counted(self.num_workers, self.worker_name)}"
        batch = f", batch size {self.batch_size}" if self.mode == "async" else ""
        return f"{self.backend}{workers}{batch}"

    @property
    def worker_name(self) -> str:
        """What a worker is called there."""
        return "thread" if self.backend in ("native", "threads") else "worker"


@dataclass(frozen=True)
class Tuning:
    """What tune() found.

    best: keyword arguments for envfleet.make(), beside the env: what was found and what tune() was given.
    cases: every setting that was considered, the fastest first; those without a figure say why.
    notes: what the figures mean.
    """

    env: str  # as it is written in a call of make()
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
        whole = [row for row in rows if len(row) == len(header)]
        widths = [max(len(row[column]) for row in whole) for column in range(len(header))]
        lines = [f"{self.env}: steps/s, median of the rounds, and how far the extremes are", ""]
        lines += [_line(row, widths) for row in rows]
        lines += ["", *(f"- {note}" for note in self.notes), "", f"best: {self.make_line}"]
        return "\n".join(lines)


def counted(number: int, noun: str) -> str:
    """1 worker, 2 workers."""
    return f"{number:,} {noun}{'s' if number != 1 else ''}"


def one_line(error: BaseException) -> str:
    """An exception for a table."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= _MAX_ERROR else text[: _MAX_ERROR - 1] + "…"


def _cells(case: Case) -> tuple[str, ...]:
    sizes = (f"{case.num_envs:,}", f"{case.batch_size:,}", str(case.num_workers))
    if case.error is not None:
        return (case.backend, case.mode, *sizes, case.error)
    slowest, fastest = ("-", "-") if len(case.steps_per_s) == 1 else (f"{part:+.0%}" for part in case.spread)
    return (case.backend, case.mode, *sizes, f"{case.median:,.0f}", slowest, fastest, str(len(case.steps_per_s)))


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    if len(row) < len(widths):  # what is said in place of figures needs no column's width
        *cells, said = row
        return "  ".join([*_aligned(tuple(cells), widths), said])
    return "  ".join(_aligned(row, widths)).rstrip()


def _aligned(cells: tuple[str, ...], widths: list[int]) -> list[str]:
    return [
        cell.ljust(widths[column]) if column < 2 else cell.rjust(widths[column]) for column, cell in enumerate(cells)
    ]
