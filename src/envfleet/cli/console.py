"""Output of the commands with rich: tables on stdout, a progress bar on stderr."""

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

_FILE_WIDTH = 10_000  # columns if stdout is not a terminal: one line per row, for grep and logs
_MIN_TEXT_WIDTH = 11  # of a column that may be wrapped: "Discrete(2)"


def print_fields(title: str, fields: Mapping[str, str]) -> None:
    """Print a table of names and values."""
    table = Table(title=title, title_justify="left", box=box.ROUNDED, show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, value in fields.items():
        table.add_row(name, Text(value))
    _stdout().print(table)


def print_rows(title: str, columns: Mapping[str, str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table with a header. columns maps each name to "number", "name" or "text", which may be wrapped."""
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False
    )
    for name, kind in columns.items():
        # On a terminal of 80 columns, a wrapped number or id is unreadable; wrapped text is not.
        if kind == "text":
            table.add_column(name, min_width=_MIN_TEXT_WIDTH, overflow="fold")
        else:
            table.add_column(name, justify="right" if kind == "number" else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    _stdout().print(table)


def say(text: str) -> None:
    """Print one line on stdout, without wrapping it."""
    _stdout().print(Text(text), soft_wrap=True)


class ProgressBar:
    """A progress bar with text beside it; silent if stderr is not a terminal.

    Only update() draws it, so that no other thread runs while something is timed.
    """

    def __init__(self, title: str) -> None:
        console = Console(stderr=True, highlight=False)
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            console=console,
            auto_refresh=False,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(title, total=1.0, text="")

    def update(self, fraction: float, text: str) -> None:
        """Redraw the bar. fraction: how much of the work is done, from 0 to 1."""
        self._progress.update(self._task, completed=min(fraction, 1.0), text=text, refresh=True)

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to main(), as rich did before 13.9; since then it exits with code 1."""
        raise BrokenPipeError


def _stdout() -> Console:
    console = _Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _FILE_WIDTH
    return console
