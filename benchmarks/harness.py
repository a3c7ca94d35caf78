"""Rounds, statistics and the facts that a figure needs beside it.

    Case (contenders, targets) -> run_case: rounds, alternating -> a plain dict, as the JSON has it

Every contender of a case is made once and stays alive between its rounds: an idle one
costs nothing here (EnvPool's and envfleet's threads sleep on semaphores and futexes,
Gymnasium's and SB3's processes on pipes; all measured at 0 % CPU), while making one anew
for each round would measure cold caches. A contender that is missing or fails becomes a
line of the table and the others go on.
"""

from __future__ import annotations

import gc
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, Protocol

SCHEMA = 1
PACKAGES = (
    *("envfleet", "envpool", "gymnasium", "stable-baselines3", "torch", "mujoco", "numpy"),
    *("ale-py", "vizdoom", "dm-control", "minigrid", "ray"),
)


class Skipped(Exception):  # noqa: N818 (nothing went wrong)
    """Raised by a suite that means nothing on this interpreter or machine; says why."""


class Subject(Protocol):
    """A contender that was made: measured once a round."""

    def measure(self, seconds: float) -> float: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Contender:
    """Who takes part, under which name, and how to make it."""

    name: str
    make: Callable[[], Subject]


@dataclass(frozen=True)
class Target:
    """What a case should show.

    ratio: `of` is at least `bound` times as fast as `against`, whichever way the unit counts.
    difference: `of` minus `against` is at most `bound`. value: `of` is at most `bound`.
    """

    kind: Literal["ratio", "difference", "value"]
    of: str
    bound: float
    against: str = ""


@dataclass(frozen=True)
class Case:
    """One comparison: a row of a table. `facts` go to the JSON as they are."""

    name: str
    unit: str
    contenders: Sequence[Contender]
    reference: str
    """The contender that the others are compared with."""
    targets: Sequence[Target] = ()
    more_is_better: bool = True
    facts: Mapping[str, Any] | None = None


@dataclass
class Loop:
    """A Subject that steps: run(k) does k batches, and the figure is how fast."""

    run: Callable[[int], None]
    steps_a_batch: int
    shut: Callable[[], None]
    in_us: bool = False
    """Microseconds a batch instead of env steps a second."""
    _chunk: int = 0

    def measure(self, seconds: float) -> float:
        """One round: an untimed start, then chunks of batches until `seconds` are over."""
        if self._chunk == 0:
            self._chunk = self._calibrate(seconds / 10)
        # Untimed: brings back what the others pushed out of the caches, and receives what an
        # asynchronous pool finished while it was not its turn, which would be steps for free.
        self.run(self._chunk)
        num_batches, begin = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - begin) < seconds:
            self.run(self._chunk)
            num_batches += self._chunk
        return 1e6 * elapsed / num_batches if self.in_us else num_batches * self.steps_a_batch / elapsed

    def close(self) -> None:
        self.shut()

    def _calibrate(self, seconds: float) -> int:
        """How many batches take about this long, by doubling."""
        num_batches = 1
        while True:
            begin = time.perf_counter()
            self.run(num_batches)
            elapsed = time.perf_counter() - begin
            if elapsed >= seconds / 2:
                return max(1, round(num_batches * seconds / elapsed))
            num_batches *= 2


def rotated(items: Sequence[Any], round_number: int) -> list[Any]:
    """The order of a round: each contender comes first, second ... equally often."""
    start = round_number % len(items) if items else 0
    return [*items[start:], *items[:start]]


def summary(samples: Sequence[float]) -> dict[str, float]:
    """Median and spread."""
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive") if len(samples) > 1 else [samples[0]] * 3
    return {
        "median": statistics.median(samples),
        "min": min(samples),
        "max": max(samples),
        "q1": low,
        "q3": high,
    }


def run_case(case: Case, rounds: int, seconds: float) -> dict[str, Any]:
    """Measures a case and gives it as the JSON has it."""
    results: dict[str, dict[str, Any]] = {
        c.name: {"name": c.name, "status": "ok", "samples": []} for c in case.contenders
    }
    subjects: dict[str, Subject] = {}
    for contender in case.contenders:
        if (made := _attempt(results[contender.name], contender.make)) is not None:
            subjects[contender.name] = made
    others = OthersMeter()
    others_cores = 0.0
    try:
        for round_number in range(rounds):
            for name in rotated([c.name for c in case.contenders], round_number):
                if results[name]["status"] != "ok":
                    continue
                gc.collect()  # here, not in the middle of somebody's round
                value = _attempt(results[name], subjects[name].measure, seconds)
                if value is not None:
                    results[name]["samples"].append(value)
        others_cores = others.cores()
    finally:
        for name, subject in subjects.items():
            fault: dict[str, Any] = {}
            _attempt(fault, subject.close)
            if fault:  # its figures stand
                results[name]["error_at_close"] = fault["error"]
    for result in results.values():
        if result["status"] == "ok":
            result.update(summary(result["samples"]))
    return {
        "name": case.name,
        "unit": case.unit,
        "more_is_better": case.more_is_better,
        "facts": dict(case.facts or {}),
        "others_cores": others_cores,
        "contenders": list(results.values()),
        "reference": case.reference,
        "ratios": _ratios(case, results),
        "targets": [judged(target, results, case.more_is_better) for target in case.targets if target.of in results],
    }


def _attempt(result: dict[str, Any], call: Callable[..., Any], *arguments: Any) -> Any:
    """The call's value; None, and the reason in `result`, when it raises."""
    try:
        return call(*arguments)
    except ImportError as error:
        result.update(status="not installed", error=str(error))
    except Exception as error:  # any fault of a peer is a line of the table
        result.update(status="failed", error=f"{type(error).__name__}: {error}")
    return None


def _ratios(case: Case, results: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """How many times as fast the reference is as each of the others."""
    ratios = []
    for other in results:
        if other != case.reference and (ratio := _ratio(case.reference, other, results, case.more_is_better)):
            ratios.append({"of": case.reference, "against": other, **ratio})
    return ratios


def _ratio(
    of: str, against: str, results: Mapping[str, Mapping[str, Any]], more_is_better: bool
) -> dict[str, float] | None:
    """Of the rounds one by one: two neighbours in time suffer from the same noise."""
    if any(name not in results or results[name]["status"] != "ok" for name in (of, against)):
        return None
    ours, theirs = results[of]["samples"], results[against]["samples"]
    upper, lower = (ours, theirs) if more_is_better else (theirs, ours)
    return summary([a / b for a, b in zip(upper, lower, strict=True)])


def judged(target: Target, results: Mapping[str, Mapping[str, Any]], more_is_better: bool) -> dict[str, Any]:
    """A target beside what came out; value and met are None where a contender is missing."""
    value: float | None = None
    present = all(results.get(name, {}).get("status") == "ok" for name in (target.of, target.against) if name)
    if present and target.kind == "ratio":
        ratio = _ratio(target.of, target.against, results, more_is_better)
        value = ratio["median"] if ratio else None
    elif present and target.kind == "difference":
        pairs = zip(results[target.of]["samples"], results[target.against]["samples"], strict=True)
        value = statistics.median([a - b for a, b in pairs])
    elif present:
        value = results[target.of]["median"]
    met = None if value is None else value >= target.bound if target.kind == "ratio" else value <= target.bound
    return {
        "kind": target.kind,
        "of": target.of,
        "against": target.against,
        "bound": target.bound,
        "value": value,
        "met": met,
    }


def machine() -> dict[str, Any]:
    """The machine."""
    return {
        "cpu": _first_value("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "usable_cores": usable_cores(),
        "cores": os.cpu_count(),
        "memory_gb": round(int((_first_value("/proc/meminfo", "MemTotal") or "0").split()[0]) / 2**20, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


class OthersMeter:
    """How many cores the rest of the machine used meanwhile: what makes a figure worthless unseen.

    all that /proc/stat says was busy, minus this process and its descendants
    """

    def __init__(self) -> None:
        self._ticks = self._others_ticks()
        self._begin = time.monotonic()

    def cores(self) -> float:
        """The mean since this meter was made. A clock tick is 10 ms: ask after a second or more."""
        elapsed_ticks = (time.monotonic() - self._begin) * os.sysconf("SC_CLK_TCK")
        # In no time at all a tick would be thousands of cores: so it is where every contender failed at once.
        most = float(os.cpu_count() or 1)
        return round(min(most, max(0.0, self._others_ticks() - self._ticks) / elapsed_ticks), 2)

    @staticmethod
    def _others_ticks() -> int:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(
            int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        )
        return user + nice + system + irq + softirq + steal - _own_ticks()


def _own_ticks() -> int:
    """CPU time of this process and its descendants, the dead ones included once they are waited for."""
    parents, ticks = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            except (FileNotFoundError, ProcessLookupError):  # it has just ended
                continue
            parents[int(folder.name)] = int(fields[1])
            ticks[int(folder.name)] = sum(map(int, fields[11:15]))  # utime stime cutime cstime
    own, size = {os.getpid()}, 0
    while len(own) > size:
        size = len(own)
        own |= {pid for pid, parent in parents.items() if parent in own}
    return sum(ticks.get(pid, 0) for pid in own)


def usable_cores() -> int:
    return len(os.sched_getaffinity(0))


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    return {package: _version(package) for package in packages}


def report(options: Mapping[str, Any], suites: Mapping[str, Any]) -> dict[str, Any]:
    """The whole JSON."""
    return {
        "schema": SCHEMA,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(["python", *sys.argv]),
        "machine": machine(),
        "versions": versions(),
        "options": dict(options),
        "suites": dict(suites),
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _first_value(path: str, key: str) -> str | None:
    """The first `key : value` of a file of /proc."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(key)), None)
