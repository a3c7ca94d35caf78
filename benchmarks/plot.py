"""Draw the pictures of the documentation from reports.

python benchmarks/plot.py [benchmarks/results/latest.json] [docs/throughput.png]
    CartPole steps per second by num_envs, from a report of compare.py
python benchmarks/plot.py benchmarks/results/threads-16-cores.json docs/scaling.png
    steps per second by thread count, from a report of many_cores.py --scaling
python benchmarks/plot.py training
    learning curves over time, from the results of training.py: docs/training_pong.png and so on

Each picture is drawn twice: for light pages, and with _dark in its name for dark ones.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # before pyplot, which would look for a display
import matplotlib.pyplot as plt
import matplotlib.ticker
import training

ROOT = Path(__file__).resolve().parent.parent
# What differs between the themes; the backgrounds are those of the documentation site.
_THEMES: dict[str, dict[str, str]] = {
    "light": {"background": "#ffffff", "text": "#222222", "small print": "#666666", "grid": "#e6e6e6"},
    "dark": {"background": "#1e2129", "text": "#dddddd", "small print": "#a0a0a0", "grid": "#3a3f4b"},
}
Line = dict[int, Mapping[str, Any]]  # num_envs -> a contender's result

# The contenders to draw and their colours, which are legible on both backgrounds. One measured at a single size is
# drawn as a point.
_COLOURS = {
    "envfleet": "#d1495b",
    "Gymnasium numpy CartPole": "#3d85ae",
    "EnvPool": "#3b8b5a",
    "Gymnasium SyncVectorEnv": "#9b79ae",
    "SB3 DummyVecEnv": "#8a8a8a",
    "Gymnasium AsyncVectorEnv": "#b08d57",
    "SB3 SubprocVecEnv": "#74839a",
}
_LABEL_HEIGHT = 10.0  # of the names beside the lines, in typographic points
_BELOW_A_LINE = {"SB3 DummyVecEnv": -7.0}  # offsets of labels that a line would cross


def lines_of(report: Mapping[str, Any]) -> dict[str, Line]:
    """Return the synchronous results by contender, with the better thread count of EnvPool."""
    lines: dict[str, Line] = defaultdict(dict)
    for case in report["suites"].get("cartpole", []):
        if case["facts"]["mode"] != "sync":
            continue
        for result in case["contenders"]:
            if result["status"] != "ok" or result["name"].endswith(", fast_math"):  # the default, as users get it
                continue
            line, num_envs = lines[result["name"].split(",")[0]], case["facts"]["num_envs"]
            if num_envs not in line or result["median"] > line[num_envs]["median"]:
                line[num_envs] = result
    return lines


def draw_themes(draw: Callable[[Mapping[str, str], Path], None], path: Path) -> None:
    """Draw a picture in each theme."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for name, theme in _THEMES.items():
        names = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
        colors = dict.fromkeys(names, theme["text"])
        colors |= dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), theme["background"])
        own = path if name == "light" else path.with_stem(f"{path.stem}_{name}")
        with mpl.rc_context(colors):
            draw(theme, own)
            plt.close()
        print(f"wrote {own}")


def draw(report: Mapping[str, Any], theme: Mapping[str, str], path: Path) -> None:
    lines = {name: line for name, line in lines_of(report).items() if name in _COLOURS}
    if not lines:
        raise SystemExit("expected a report of the suite cartpole, got one without it; run compare.py cartpole first")
    figure, axes = plt.subplots(figsize=(8.4, 5.0), dpi=160)
    for name, line in lines.items():
        _draw_line(axes, name, line)
    sizes = sorted({num_envs for line in lines.values() for num_envs in line})
    axes.set(xscale="log", yscale="log", xlabel="environments in the pool", ylabel="environment steps per second")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.set_xlim(sizes[0] / 1.8, sizes[-1] * 30)  # room for the labels on the right
    decades = [10**k for k in range(4, 9)]
    axes.set_yticks(decades, ["10 k", "100 k", "1 M", "10 M", "100 M"])
    axes.set_ylim(top=5e8)
    axes.grid(axis="y", color=theme["grid"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"CartPole-v1, synchronous, on {report['machine']['usable_cores']} cores", loc="left", weight="bold")
    figure.text(0.01, 0.012, _small_print(report), fontsize=6.2, color=theme["small print"], linespacing=1.4)
    figure.tight_layout(rect=(0, 0.055, 1, 1))
    _name_lines(figure, axes, lines)
    figure.savefig(path)


def _name_lines(figure: Any, axes: Any, lines: Mapping[str, Line]) -> None:
    """Write the name of each line at its end; names at the same place are moved apart, in the order of the lines."""
    ends = {name: (max(line), line[max(line)]["median"]) for name, line in lines.items()}
    highest: dict[int, float] = {}
    for name, (num_envs, median) in sorted(ends.items(), key=lambda item: item[1]):
        y = axes.transData.transform((num_envs, median))[1] * 72 / figure.dpi
        # A pair is centred on its points.
        close = [
            other
            for other, (size, value) in ends.items()
            if other != name and size == num_envs and max(value, median) < 1.3 * min(value, median)
        ]
        wanted = y + _BELOW_A_LINE.get(name, -_LABEL_HEIGHT / 2 if close else 0.0)
        middle = max(wanted, highest.get(num_envs, wanted))
        highest[num_envs] = middle + _LABEL_HEIGHT
        is_ours = name == "envfleet"
        axes.annotate(
            name,
            (num_envs, median),
            xytext=(8, middle - y),
            textcoords="offset points",
            va="center",
            fontsize=9 if len(lines[name]) > 1 else 7.5,
            color=_COLOURS[name],
            weight="bold" if is_ours else "normal",
        )


def _draw_line(axes: Any, name: str, line: Line) -> None:
    sizes = sorted(line)
    medians = [line[size]["median"] for size in sizes]
    spread = [
        [median - line[size]["min"] for size, median in zip(sizes, medians, strict=True)],
        [line[size]["max"] - median for size, median in zip(sizes, medians, strict=True)],
    ]
    is_ours = name == "envfleet"
    style = {"color": _COLOURS[name], "linewidth": 2.6 if is_ours else 1.6, "markersize": 6 if is_ours else 4.5}
    axes.errorbar(
        sizes, medians, yerr=spread, marker="o", capsize=2, elinewidth=0.8, zorder=3 if is_ours else 2, **style
    )
    if is_ours:
        for size, median in zip(sizes, medians, strict=True):
            label = f"{median / 1e6:.0f} M" if median >= 1e7 else f"{median / 1e6:.2g} M"
            axes.annotate(label, (size, median), xytext=(0, 8), textcoords="offset points", ha="center", fontsize=8)


def _small_print(report: Mapping[str, Any]) -> str:
    machine, versions, options = report["machine"], report["versions"], report["options"]
    names = ("envfleet", "envpool", "gymnasium", "stable-baselines3", "numpy")
    return (
        f"Median of {options['rounds']} alternating rounds in one run; bars span the slowest to the fastest round; "
        f"EnvPool with the better of 1 and {options['num_threads']} threads. {report['date'][:10]}\n"
        f"{machine['cpu']}, {machine['usable_cores']} cores, {machine['kernel']}, Python {machine['python']}, "
        + ", ".join(f"{name} {versions[name]}" for name in names)
    )


def draw_scaling(report: Mapping[str, Any], theme: Mapping[str, str], path: Path) -> None:
    """Draw one panel per env: throughput by thread count, with one thread of envfleet times the count as a guide."""
    cases = report["suites"]["threads"]
    figure, panels = plt.subplots(1, len(cases), figsize=(3.1 * len(cases), 4.0), dpi=160, squeeze=False)
    for axes, case in zip(panels[0], cases, strict=True):
        _draw_threads(axes, case, theme)
    panels[0][0].set_ylabel("environment steps per second")
    figure.suptitle(
        f"Throughput by threads, on {report['machine']['usable_cores']} cores", x=0.01, ha="left", weight="bold"
    )
    figure.text(0.01, 0.012, _scaling_small_print(report), fontsize=6.2, color=theme["small print"], linespacing=1.4)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.savefig(path)


def threads_of(case: Mapping[str, Any]) -> dict[str, Line]:
    """Return the results of a case by package and thread count."""
    lines: dict[str, Line] = defaultdict(dict)
    for result in case["contenders"]:
        if result["status"] == "ok":
            package, threads = result["name"].split(", ")
            lines[package][int(threads.split()[0])] = result
    return lines


def _draw_threads(axes: Any, case: Mapping[str, Any], theme: Mapping[str, str]) -> None:
    counts = case["facts"]["threads"]
    lines = threads_of(case)
    for package, line in lines.items():
        shown = sorted(line)
        medians = [line[count]["median"] for count in shown]
        spread = [
            [median - line[count]["min"] for count, median in zip(shown, medians, strict=True)],
            [line[count]["max"] - median for count, median in zip(shown, medians, strict=True)],
        ]
        style = {"color": _COLOURS[package], "linewidth": 2.4 if package == "envfleet" else 1.6}
        axes.errorbar(shown, medians, yerr=spread, marker="o", markersize=4, capsize=2, label=package, **style)
    if 1 in lines.get("envfleet", {}):
        alone = lines["envfleet"][1]["median"]
        ideal = [count * alone for count in counts]
        axes.plot(counts, ideal, color="#bbbbbb", linestyle="--", linewidth=1, label="1 thread, times threads")
    axes.set(xscale="log", yscale="log", xlabel="threads")
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()
    # Not only powers of ten: a panel may span less than a decade.
    axes.yaxis.set_major_locator(mpl.ticker.LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(mpl.ticker.EngFormatter())
    axes.grid(axis="y", color=theme["grid"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"{case['facts']['env_id']}, {case['facts']['num_envs']:,} envs", loc="left", fontsize=9)
    axes.legend(fontsize=6.5, frameon=False)


def _scaling_small_print(report: Mapping[str, Any]) -> str:
    machine, versions, options = report["machine"], report["versions"], report["options"]
    busiest = max(case["others_cores"] for case in report["suites"]["threads"])
    return (
        f"Median of {options['rounds']} alternating rounds of {options['seconds']} s in one run; bars span the slowest "
        f"to the fastest round. Other processes used up to {busiest:.2f} cores. {report['date'][:10]}\n"
        f"{machine['cpu']}, {machine['usable_cores']} cores, {machine['kernel']}, Python {machine['python']}, "
        + ", ".join(f"{name} {versions[name]}" for name in ("envfleet", "envpool", "mujoco", "numpy"))
    )


def draw_training(task: str, runs: Mapping[str, list[dict[str, Any]]], theme: Mapping[str, str], path: Path) -> None:
    """Draw the mean return over time, one line per run."""
    figure, axes = plt.subplots(figsize=(8.4, 4.2), dpi=160)
    for executor, own in runs.items():
        for index, run in enumerate(own):
            seconds, _, returns = zip(*run["curve"], strict=True)
            name = training.NAMES[executor]
            axes.plot(seconds, returns, color=_COLOURS[name], linewidth=1.4, label=name if index == 0 else None)
    target = training.TASKS[task].target
    axes.axhline(target, color=theme["small print"], linestyle="--", linewidth=1)
    axes.annotate(f"target: {target:g}", (0, target), xytext=(4, 4), textcoords="offset points", fontsize=8)
    axes.set(xlabel="seconds", ylabel="mean return of the latest 100 episodes", xlim=(0, None))
    axes.grid(axis="y", color=theme["grid"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    machine = next(iter(runs.values()))[0]["machine"]
    axes.set_title(f"PPO on {training.TASKS[task].env_id}: the same script and settings", loc="left", weight="bold")
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
    small = (
        f"One line per seed. {machine['device']}, {machine['usable_cores']} cores, {machine['date'][:10]}, {versions}"
    )
    figure.text(0.01, 0.012, small, fontsize=6.2, color=theme["small print"])
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    figure.savefig(path)


def draw_all_training(folder: Path) -> None:
    """Draw a picture of each task that has results."""
    found = training.results(folder)
    for task in training.TASKS:
        runs = {executor: own for (name, executor), own in found.items() if name == task}
        if runs:
            draw_themes(partial(draw_training, task, runs), ROOT / "docs" / f"training_{task}.png")


def main() -> None:
    if sys.argv[1:2] == ["training"]:
        draw_all_training(Path(sys.argv[2]) if len(sys.argv) > 2 else training.RESULTS)
        return
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "benchmarks/results/latest.json"
    report = json.loads(source.read_text())
    is_scaling = "threads" in report["suites"]
    target = (
        Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / ("docs/scaling.png" if is_scaling else "docs/throughput.png")
    )
    draw_themes(partial(draw_scaling if is_scaling else draw, report), target)


if __name__ == "__main__":
    main()
