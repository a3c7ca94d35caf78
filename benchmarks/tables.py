"""Format a benchmark report as tables: for the terminal, and for the pages in docs/benchmarks/."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Sequence[str]
_QUIET_CORES = 0.1  # above this load by other processes, the figures are marked as noisy
_BEGIN, _END = "<!-- results: begin -->", "<!-- results: end -->"
_SUITE_MARKS = "<!-- results of {suite}: begin -->", "<!-- results of {suite}: end -->"


def text_of_case(case: Mapping[str, Any]) -> str:
    """Return one case as aligned text for a terminal."""
    rows = [_case_head(case), *_case_rows(case)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    targets = [f"target: {_target(t)}; got {_value(t, case['unit'])}: {_verdict(t)}" for t in case["targets"]]
    noise = f"  other processes used {case['others_cores']:.2f} cores{_warning(case['others_cores'])}"
    return "\n".join([case["name"], noise, *(f"  {line}" for line in lines), *(f"  {line}" for line in targets), ""])


def markdown_of(report: Mapping[str, Any]) -> str:
    """Return the whole report as Markdown."""
    parts = [_provenance(report), "### Targets", _targets_table(report)]
    for suite, cases in report["suites"].items():
        parts += [f"### Suite `{suite}`", *_suite_parts(cases)]
    return "\n\n".join(parts) + "\n"


def refreshed(document: str, report: Mapping[str, Any]) -> str:
    """Return the document with the results between its marks replaced."""
    return refreshed_pages({"document": document}, report)["document"]


def refreshed_pages(pages: Mapping[str, str], report: Mapping[str, Any]) -> dict[str, str]:
    """Return the pages (name to text) with the results between their marks replaced.

    A suite with marks of its own goes between those, with its own date and machine, so that one suite can be
    measured again, or on another interpreter, without touching the others. All other suites go between the
    general marks.
    """
    pages, rest = dict(pages), {}
    for suite, cases in report["suites"].items():
        begin, end = (mark.format(suite=suite) for mark in _SUITE_MARKS)
        name = _page_with(pages, begin, end)
        if name is None:
            rest[suite] = cases
        else:
            parts = [_provenance({**report, "suites": {suite: cases}}), *_suite_parts(cases)]
            pages[name] = _replace_between(pages[name], begin, end, "\n\n".join(parts) + "\n")
    if rest:
        name = _page_with(pages, _BEGIN, _END)
        if name is None:
            raise ValueError(
                f"expected the marks {_BEGIN} and {_END} for {', '.join(rest)}, "
                f"got none in {', '.join(pages)}; add them"
            )
        pages[name] = _replace_between(pages[name], _BEGIN, _END, markdown_of({**report, "suites": rest}))
    return pages


def _page_with(pages: Mapping[str, str], begin: str, end: str) -> str | None:
    return next((name for name, text in pages.items() if begin in text and end in text), None)


def _replace_between(document: str, begin: str, end: str, text: str) -> str:
    before, rest = document.split(begin, 1)
    return f"{before}{begin}\n{text}{end}{rest.split(end, 1)[1]}"


def _suite_parts(cases: Sequence[Mapping[str, Any]]) -> list[str]:
    if cases and all("row" in case["facts"] for case in cases):
        return _one_table(cases)
    parts = []
    for case in cases:
        head, rows = _case_head(case), _case_rows(case)
        if case["targets"]:
            head, rows = (*head, "target"), [(*row, cell) for row, cell in zip(rows, _target_cells(case), strict=True)]
        parts += [f"**{case['name']}**", _markdown(head, rows)]
        if warning := _warning(case["others_cores"]):
            parts.append(f"Other processes used {case['others_cores']:.2f} cores during this case{warning}.")
        if ceilings := case["facts"].get("ceilings"):
            listed = ", ".join(f"{bound}x over {name}" for name, bound in ceilings.items())
            parts.append(f"Upper bound (no thread or worker is ever idle; simulated): {listed}.")
    return parts


def _one_table(cases: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return cases of two contenders each as one table, placed by the row and column that their facts name."""
    columns = list(dict.fromkeys(case["facts"]["column"] for case in cases))
    rows = list(dict.fromkeys(case["facts"]["row"] for case in cases))
    placed = {(case["facts"]["row"], case["facts"]["column"]): case for case in cases}
    names = [result["name"] for result in cases[0]["contenders"]]
    head = ["", *(f"{column}: {what}" for column in columns for what in (*names, "speedup"))]
    body = []
    for row in rows:
        cells = [row]
        for column in columns:
            case = placed.get((row, column))
            cells += [""] * (len(names) + 1) if case is None else _cells(case)
        body.append(cells)
    noise = max(case["others_cores"] for case in cases)
    parts = [_markdown(head, body)]
    if warning := _warning(noise):
        parts.append(f"Other processes used up to {noise:.2f} cores during a case{warning}.")
    return parts


def _cells(case: Mapping[str, Any]) -> list[str]:
    shown = [
        quantity(result["median"], case["unit"]) if result["status"] == "ok" else result["status"]
        for result in case["contenders"]
    ]
    return [*shown, _times(case["ratios"][0]["median"]) if case["ratios"] else ""]


def _target_cells(case: Mapping[str, Any]) -> list[str]:
    """Return, for each contender, the targets set against it (or for it alone) and their outcomes."""
    cells = []
    for result in case["contenders"]:
        targets = [t for t in case["targets"] if (t["against"] or t["of"]) == result["name"]]
        cells.append("; ".join(_target_cell(target, case) for target in targets))
    return cells


def _target_cell(target: Mapping[str, Any], case: Mapping[str, Any]) -> str:
    """Return a target and its outcome, for the row of the contender it is set against.

    The name of the contender that has to meet it is left out for the reference.
    """
    of = "" if target["of"] == case["reference"] else f"{target['of']} "
    text = f"{of}>= {target['bound']:g}x" if target["kind"] == "ratio" else _target(target)
    outcome = f"{_value(target, case['unit'])}, {_verdict(target)}" if target["value"] is not None else "not measured"
    return f"{text}: {outcome}"


def quantity(value: float, unit: str) -> str:
    """Return the value with three digits: 12.3 M, 4.56 k or 0.789."""
    if unit == "steps/s":
        for size, letter in ((1e6, " M"), (1e3, " k")):
            if value >= size:
                return f"{_three_digits(value / size)}{letter}"
    return _three_digits(value)


def _warning(others_cores: float) -> str:
    return " (NOISY: do not rely on these figures)" if others_cores > _QUIET_CORES else ""


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _provenance(report: Mapping[str, Any]) -> str:
    machine, options = report["machine"], report["options"]
    noise = [case["others_cores"] for cases in report["suites"].values() for case in cases] or [0.0]
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    return "\n".join(
        [
            f"- Date: {report['date']}",
            f"- Machine: {machine['cpu']}, {machine['usable_cores']} cores, {machine['memory_gb']} GB, "
            f"{machine['kernel']}",
            f"- Other work on the machine: at most {max(noise):.2f} cores during a case" + _warning(max(noise)),
            f"- Versions: Python {machine['python']}, {versions}",
            f"- Rounds: {options['rounds']} of {options['seconds']} s each, alternating",
            f"- Command: `{report['command']}`",
        ]
    )


def _targets_table(report: Mapping[str, Any]) -> str:
    rows = [
        (case["name"], _target(target), _value(target, case["unit"]), _verdict(target))
        for cases in report["suites"].values()
        for case in cases
        for target in case["targets"]
    ]
    return _markdown(("case", "target", "result", "met or short"), rows)


def _case_head(case: Mapping[str, Any]) -> Row:
    compared = f"speedup of {case['reference']}" if case["more_is_better"] else f"relative to {case['reference']}"
    frames = ("median, frames/s",) if _frames_per_step(case) else ()
    return ("", f"median, {case['unit']}", *frames, "min to max", compared)


def _frames_per_step(case: Mapping[str, Any]) -> int:
    """Return how many frames of the simulator a step covers; 0 if the case does not say."""
    return int(case["facts"].get("frames_per_step", 0))


def _case_rows(case: Mapping[str, Any]) -> list[Row]:
    ratios = {ratio["against"]: ratio for ratio in case["ratios"]}
    rows = []
    for result in case["contenders"]:
        if result["status"] != "ok":
            empty = ("",) if _frames_per_step(case) else ()
            rows.append((result["name"], result["status"], *empty, _one_line(result["error"]), ""))
            continue
        low, high = (quantity(result[key], case["unit"]) for key in ("min", "max"))
        ratio = ratios.get(result["name"])
        times = "" if ratio is None else f"{_times(ratio['median'])} ({_times(ratio['min'])} to {_times(ratio['max'])})"
        median, per_step = result["median"], _frames_per_step(case)
        frames = (quantity(median * per_step, case["unit"]),) if per_step else ()
        rows.append((result["name"], quantity(median, case["unit"]), *frames, f"{low} to {high}", times))
    return rows


def _target(target: Mapping[str, Any]) -> str:
    if target["kind"] == "ratio":
        return f"{target['of']} >= {target['bound']:g}x {target['against']}"
    if target["kind"] == "difference":
        return f"{target['of']} - {target['against']} <= {target['bound']:g}"
    return f"{target['of']} <= {target['bound']:g}"


def _value(target: Mapping[str, Any], unit: str) -> str:
    if target["value"] is None:
        return "not measured"
    return _times(target["value"]) if target["kind"] == "ratio" else f"{_three_digits(target['value'])} {unit}"


def _verdict(target: Mapping[str, Any]) -> str:
    return {True: "met", False: "**short**", None: "?"}[target["met"]]


def _times(ratio: float) -> str:
    return f"{ratio:.0f}x" if ratio >= 100 else f"{ratio:.1f}x" if ratio >= 2 else f"{ratio:.2f}x"


def _one_line(message: str) -> str:
    line = " ".join(message.split()).replace("|", "/")
    return line if len(line) <= 90 else f"{line[:87]}..."


def _markdown(head: Row, rows: Sequence[Row]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ("---",) * len(head), *rows))
