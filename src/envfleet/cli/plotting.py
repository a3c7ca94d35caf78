"""The chart of envfleet bench: steps/s by pool size, both logarithmic."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envfleet.cli.machine import describe_machine
from envfleet.core.errors import MissingExtraError

try:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, FixedLocator, FuncFormatter, LogFormatter, NullLocator
except ImportError as error:
    raise MissingExtraError("matplotlib", "cli", "--plot") from error

if TYPE_CHECKING:
    from envfleet.tuning.report import Case

_COLORS = ("#1f5fa8", "#d9822b", "#3a8f5c", "#a23b72", "#6b6b6b")


class _MinorLabels(LogFormatter):
    """Labels the ticks between two powers of ten that Matplotlib would label, in the form of the others: "20 k"."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return EngFormatter(sep=" ")(x) if super().__call__(x, pos) else ""


def plot(
    path: Path, env_id: str, cases: Sequence[Case], rounds: str, ratios: Sequence[tuple[Case, float]] = ()
) -> None:
    """Write the chart; see draw()."""
    draw(env_id, cases, rounds, ratios).savefig(path, bbox_inches="tight")


def draw(env_id: str, cases: Sequence[Case], rounds: str, ratios: Sequence[tuple[Case, float]] = ()) -> Figure:
    """Draw medians as one line per backend and mode, with bars from the slowest to the fastest round.

    ratios: the cases of peers, each with how many times as fast envfleet is, which are drawn below.
    """
    figure = Figure(figsize=(8.4, 7.2 if ratios else 4.5), dpi=150, layout="constrained")
    # Not pyplot, which may look for a display, depending on MPLBACKEND.
    FigureCanvasAgg(figure)
    if ratios:
        axes, below_axes = figure.subplots(2, height_ratios=(3, 2))
        _plot_ratios(below_axes, ratios)
        cases = [*cases, *(case for case, _ in ratios)]
    else:
        axes = figure.add_subplot()
    series = dict.fromkeys((case.backend, case.mode) for case in cases)
    for color, (backend, mode) in zip(_COLORS * len(series), series, strict=False):
        own = sorted((c for c in cases if (c.backend, c.mode) == (backend, mode)), key=lambda c: c.num_envs)
        medians = [case.median for case in own]
        below = [case.median - min(case.steps_per_s) for case in own]
        above = [max(case.steps_per_s) - case.median for case in own]
        axes.errorbar(
            [case.num_envs for case in own],
            medians,
            yerr=[below, above],
            color=color,
            marker="o",
            markersize=5,
            linewidth=1.8,
            linestyle="-" if mode == "sync" else "--",
            capsize=3,
            label=f"{backend}, {mode}",
        )
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(EngFormatter(sep=" "))
    axes.yaxis.set_minor_formatter(_MinorLabels())
    axes.set_ylabel("steps/s")
    axes.set_title(f"{env_id}: steps/s by pool size", loc="left", fontweight="bold")
    _style(axes, cases)
    figure.text(0.01, -0.02, _footnote(rounds), fontsize=7, color="#666666", va="top")
    return figure


def _plot_ratios(axes: Any, ratios: Sequence[tuple[Case, float]]) -> None:
    for color, name in zip(_COLORS[1:], dict.fromkeys(case.backend for case, _ in ratios), strict=False):
        own = sorted((case.num_envs, times) for case, times in ratios if case.backend == name)
        figures = ", ".join(f"{times:.1f}x" for _, times in own)
        axes.plot(
            *zip(*own, strict=True), color=color, marker="o", markersize=5, linewidth=1.8, label=f"{name}: {figures}"
        )
    axes.axhline(1.0, color="#888888", linewidth=0.8)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    axes.set_ylabel("times as fast")
    axes.set_title("envfleet's fastest pool, relative to each", loc="left", fontweight="bold")
    _style(axes, [case for case, _ in ratios])


def _style(axes: Any, cases: Sequence[Case]) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sorted({case.num_envs for case in cases})))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_xlabel("num_envs")
    axes.grid(True, which="major", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))  # beside the lines, whatever their course


def _footnote(rounds: str) -> str:
    machine = describe_machine()
    return (
        f"Median of {rounds}, bars from the slowest to the fastest. {machine['cpu']}, "
        f"{machine['usable_cores']} usable cores.\n"
        f"envfleet {machine['envfleet']}, Python {machine['python']}, numpy {machine['numpy']}, {machine['date']}."
    )
