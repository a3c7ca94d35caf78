"""Output of the commands with rich: tables on stdout, a progress bar on stderr."""

from __future__ import annotations

import os
import textwrap
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType

from envfleet.core.errors import MissingExtraError

try:
    from rich import box
    from rich.cells import cell_len
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Table
    from rich.text import Text
except ImportError as error:
    raise MissingExtraError("rich", "cli", "this command's tables") from error

_FILE_WIDTH = 10_000  # columns if stdout is not a terminal: one line per row, for grep and logs
_GAP = "  "  # between columns
_INDENT = "    "  # of the lines below a row
_MIN_KNOWN_SHARE = 0.02  # of the work; before that, an estimate of what is left would be a guess


def print_fields(title: str, fields: Mapping[str, str]) -> None:
    """Print a table of names and values."""
    table = Table(title=title, title_justify="left", box=box.ROUNDED, show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, value in fields.items():
        table.add_row(name, Text(value))
    _stdout().print(table)


def print_rows(
    title: str, columns: Mapping[str, str], rows: Iterable[Sequence[str]], drop_first: Sequence[str] = ()
) -> None:
    """Print a table with a header, one line per row if the terminal is wide enough, and never cut off a cell.

    columns maps each name to "number", "name" or "text". On a narrow terminal, texts are on lines below their row, and
    the columns of drop_first are left out, in this order, until the others fit. A row may lack its last cells.
    """
    console = _stdout()
    cells_by_row = [{**dict.fromkeys(columns, ""), **dict(zip(columns, row, strict=False))} for row in rows]
    widths = {name: max(cell_len(cells[name]) for cells in ({name: name}, *cells_by_row)) for name in columns}

    def table_width(names: Sequence[str]) -> int:
        return sum(widths[name] for name in names) + len(_GAP) * (len(names) - 1)

    in_line, below = list(columns), []
    if table_width(in_line) > console.width:
        below = [name for name in columns if columns[name] == "text"]
        in_line = [name for name in columns if name not in below]
    for name in drop_first:
        if table_width(in_line) > console.width:
            in_line.remove(name)

    def line(cells: Mapping[str, str]) -> str:
        padded = (_pad(cells[name], widths[name], at_left=columns[name] == "number") for name in in_line)
        return _GAP.join(padded).rstrip()

    lines = [("-" if console.options.ascii_only else "─") * table_width(in_line)]
    name_width = max(map(len, below), default=0)
    indent = " " * (len(_INDENT) + name_width + len(_GAP))
    for cells in cells_by_row:
        lines.append(line(cells))
        for name in below:
            lines += textwrap.wrap(
                _INDENT + name.ljust(name_width) + _GAP + cells[name],
                max(console.width, 2 * len(indent)),
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            )
    header = line({name: name for name in in_line})
    text = Text.assemble((title, "italic"), "\n", (header, "bold"), "\n", "\n".join(lines))
    console.print(text, soft_wrap=True)


def is_terminal() -> bool:
    """Return whether stdout is a terminal."""
    return _stdout().is_terminal


def say(text: str) -> None:
    """Print one line on stdout, without wrapping it."""
    _stdout().print(Text(text), soft_wrap=True)


def _pad(text: str, width: int, *, at_left: bool) -> str:
    blanks = " " * (width - cell_len(text))
    return blanks + text if at_left else text + blanks


class ProgressBar:
    """A progress bar with the time that is left and a text beside it; silent if stderr is not a terminal.

    Only update() draws it, so that no other thread runs while something is timed.
    """

    def __init__(self, title: str) -> None:
        console = Console(stderr=True, highlight=False)
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.fields[text]}", markup=False),
            console=console,
            auto_refresh=False,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(title, total=1.0, text="", left="")
        self._started = time.perf_counter()

    def update(self, fraction: float, text: str, left_s: float | None = None) -> None:
        """Redraw the bar.

        fraction: how much of the work is done, from 0 to 1. left_s: how long the rest takes, if it is known.
        """
        fraction = min(fraction, 1.0)
        if left_s is None and fraction >= _MIN_KNOWN_SHARE:
            left_s = (time.perf_counter() - self._started) * (1 - fraction) / fraction
        left = "" if left_s is None else f"{time_left(left_s)} left"
        self._progress.update(self._task, completed=fraction, text=text, left=left, refresh=True)

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()


def time_left(seconds: float) -> str:
    """Format an estimate: 8 s, 2:05 min, 1:02 h."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60}:{whole % 60:02} min" if whole < 3600 else f"{whole // 3600}:{whole % 3600 // 60:02} h"


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to main(), as rich did before 13.9; since then it exits with code 1."""
        raise BrokenPipeError


def _stdout() -> Console:
    console = _Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _FILE_WIDTH
    return console
