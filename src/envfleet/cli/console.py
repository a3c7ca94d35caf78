"""What the commands print with rich: tables on stdout, the progress bar on stderr."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType

from envfleet.errors import MissingExtraError

try:
    from rich import box
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Table
    from rich.text import Text
except ImportError as error:
    raise MissingExtraError("rich", "cli", "this command's tables") from error

_WIDTH_OF_FILES = 10_000  # columns where there is no terminal to fit: one line a row, for grep and for logs
_TEXT_WIDTH = 11  # of a column that may be wrapped: "Discrete(2)"


def print_fields(title: str, fields: Mapping[str, str]) -> None:
    """A table of two columns: names and values."""
    table = Table(title=title, title_justify="left", box=box.ROUNDED, show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, value in fields.items():
        table.add_row(name, Text(value))
    _stdout().print(table)


def print_rows(title: str, columns: Mapping[str, str], rows: Iterable[Sequence[str]]) -> None:
    """A table with a header; columns maps each name to "number", "name" or, what may be wrapped, "text"."""
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False
    )
    for name, kind in columns.items():
        # On a terminal of 80 columns a wrapped figure or id cannot be read; a wrapped text can.
        if kind == "text":
            table.add_column(name, min_width=_TEXT_WIDTH, overflow="fold")
        else:
            table.add_column(name, justify="right" if kind == "number" else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    _stdout().print(table)


def say(text: str) -> None:
    """One line on stdout, never wrapped."""
    _stdout().print(Text(text), soft_wrap=True)


class ProgressBar:
    """A bar with a line of text beside it; silent where stderr is no terminal.

    Drawn by update() alone, so that no drawing thread runs while something is timed.
    """

    def __init__(self, title: str) -> None:
        console = Console(stderr=True, highlight=False)
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[beside]}", markup=False),
            console=console,
            auto_refresh=False,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(title, total=1.0, beside="")

    def update(self, share: float, beside: str) -> None:
        """share: how much of the work is done, from 0 to 1."""
        self._progress.update(self._task, completed=min(share, 1.0), beside=beside, refresh=True)

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leaves it to main(), as rich did before 13.9; since then it exits with code 1."""
        raise BrokenPipeError


def _stdout() -> Console:
    console = _Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _WIDTH_OF_FILES
    return console
