"""Run cases in alternating rounds, and collect statistics and the facts that belong to a figure.

    Case (contenders, targets) -> run_case: alternating rounds -> a plain dict, the form of the JSON report

Every contender of a case is created once and stays alive between its rounds. An idle contender costs nothing (the
threads of EnvPool and envfleet sleep on semaphores and futexes, the processes of Gymnasium and SB3 on pipes; all
measured at 0 % CPU), while creating it again for each round would measure cold caches. A contender that is missing or
fails becomes a row of the table, and the others continue.
"""

from __future__ import annotations

import gc
import importlib.util
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
MANY_CORES = 8  # from here on, suites measure other sizes against other targets
PACKAGES = (
    *("envfleet", "envpool", "gymnasium", "stable-baselines3", "torch", "mujoco", "numpy"),
    *("ale-py", "vizdoom", "dm-control", "minigrid", "procgen-mirror", "ray"),
)


@dataclass(frozen=True)
class Options:
    """The defaults are those of compare.py, except that its num_threads defaults to the number of cores."""

    num_envs: tuple[int, ...] = (1, 64, 1024, 8192)  # sizes of the suite cartpole
    num_threads: int = 2  # of every pool that has threads; limited by its number of envs
    peers: tuple[str, ...] | None = None  # prefixes of their names, in lower case; None: all
    envs: tuple[str, ...] | None = None  # prefixes of the env ids of the suite native_table; None: all
    baseline: str | None = None  # the interpreter of an environment with another build of envfleet, to compare with


class Skipped(Exception):  # noqa: N818 (not an error)
    """Raised, with the reason, by a suite that does not apply to this interpreter or machine."""


class Subject(Protocol):
    """A contender that has been created: measured once per round."""

    def measure(self, seconds: float) -> float: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Contender:
    """A participant of a case: its name and how to create it."""

    name: str
    make: Callable[[], Subject]


@dataclass(frozen=True)
class Target:
    """The result that a case should reach.

    ratio: `of` is at least `bound` times as fast as `against`, whether more or less of the unit is better.
    difference: `of` minus `against` is at most `bound`. value: `of` is at most `bound`.
    """

    kind: Literal["ratio", "difference", "value"]
    of: str
    bound: float
    against: str = ""


@dataclass(frozen=True)
class Case:
    """One comparison, shown as one table. `facts` are copied to the JSON."""

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
    """A Subject that measures the rate of run(k), which does k batches."""

    run: Callable[[int], None]
    steps_per_batch: int
    shut: Callable[[], None]
    in_us: bool = False
    """Measure microseconds per batch instead of env steps per second."""
    _chunk: int = 0

    def measure(self, seconds: float) -> float:
        """Run one round: an untimed start, then chunks of batches for at least `seconds`."""
        if self._chunk == 0:
            self._chunk = self._calibrate(seconds / 10)
        # Untimed: refills the caches after the other contenders, and receives the steps that an asynchronous pool
        # finished between its rounds, which would otherwise count as free steps.
        self.run(self._chunk)
        num_batches, begin = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - begin) < seconds:
            self.run(self._chunk)
            num_batches += self._chunk
        return 1e6 * elapsed / num_batches if self.in_us else num_batches * self.steps_per_batch / elapsed

    def close(self) -> None:
        self.shut()

    def _calibrate(self, seconds: float) -> int:
        """Return the number of batches that take about this long, found by doubling."""
        num_batches = 1
        while True:
            begin = time.perf_counter()
            self.run(num_batches)
            elapsed = time.perf_counter() - begin
            if elapsed >= seconds / 2:
                return max(1, round(num_batches * seconds / elapsed))
            num_batches *= 2


def rotated(items: Sequence[Any], round_number: int) -> list[Any]:
    """Return the order of a round: each contender is first, second, … equally often."""
    start = round_number % len(items) if items else 0
    return [*items[start:], *items[:start]]


def summary(samples: Sequence[float]) -> dict[str, float]:
    """Return the median and the spread."""
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive") if len(samples) > 1 else [samples[0]] * 3
    return {
        "median": statistics.median(samples),
        "min": min(samples),
        "max": max(samples),
        "q1": low,
        "q3": high,
    }


def run_case(case: Case, rounds: int, seconds: float) -> dict[str, Any]:
    """Measure a case and return its entry of the JSON report."""
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
                gc.collect()  # here, not in the middle of a round
                value = _attempt(results[name], subjects[name].measure, seconds)
                if value is not None:
                    results[name]["samples"].append(value)
        others_cores = others.cores()
    finally:
        for name, subject in subjects.items():
            fault: dict[str, Any] = {}
            _attempt(fault, subject.close)
            if fault:  # its measurements remain valid
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
    """Return the value of a call, or None if it raises, with the reason in `result`."""
    try:
        return call(*arguments)
    except ImportError as error:
        result.update(status="not installed", error=str(error))
    except Exception as error:  # any failure of a peer becomes a row of the table
        result.update(status="failed", error=f"{type(error).__name__}: {error}")
    return None


def _ratios(case: Case, results: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the speedup of the reference over each of the others."""
    ratios = []
    for other in results:
        if other != case.reference and (ratio := _ratio(case.reference, other, results, case.more_is_better)):
            ratios.append({"of": case.reference, "against": other, **ratio})
    return ratios


def _ratio(
    of: str, against: str, results: Mapping[str, Mapping[str, Any]], more_is_better: bool
) -> dict[str, float] | None:
    """Return the ratio, taken round by round: measurements close in time suffer from the same noise."""
    if any(name not in results or results[name]["status"] != "ok" for name in (of, against)):
        return None
    ours, theirs = results[of]["samples"], results[against]["samples"]
    upper, lower = (ours, theirs) if more_is_better else (theirs, ours)
    return summary([a / b for a, b in zip(upper, lower, strict=True)])


def judged(target: Target, results: Mapping[str, Mapping[str, Any]], more_is_better: bool) -> dict[str, Any]:
    """Return a target with its outcome; value and met are None if a contender is missing."""
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
    """Describe the machine."""
    return {
        "cpu": _first_value("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "usable_cores": usable_cores(),
        "cores": os.cpu_count(),
        "memory_gb": round(int((_first_value("/proc/meminfo", "MemTotal") or "0").split()[0]) / 2**20, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


class OthersMeter:
    """Measures how many cores other processes used: a load that invalidates figures without being visible in them.

    It is the busy time in /proc/stat minus that of this process and its descendants.
    """

    def __init__(self) -> None:
        self._ticks = self._others_ticks()
        self._begin = time.monotonic()

    def cores(self) -> float:
        """Return the mean since this meter was created. A clock tick is 10 ms: ask after a second or more."""
        elapsed_ticks = (time.monotonic() - self._begin) * os.sysconf("SC_CLK_TCK")
        # If every contender failed at once, hardly any time passed, and one tick would count as thousands of cores.
        max_cores = float(os.cpu_count() or 1)
        return round(min(max_cores, max(0.0, self._others_ticks() - self._ticks) / elapsed_ticks), 2)

    @staticmethod
    def _others_ticks() -> int:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(
            int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        )
        return user + nice + system + irq + softirq + steal - _own_ticks()


def _own_ticks() -> int:
    """Return the CPU time of this process and its descendants, including dead ones that were waited for."""
    parents, ticks = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            except (FileNotFoundError, ProcessLookupError):  # it has just exited
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
    """Return the whole JSON report."""
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
        # Without access to a package index, packages may be unpacked by hand, without their metadata.
        name = package.replace("-", "_")
        if importlib.util.find_spec(name) is None:
            return "not installed"
        return str(getattr(importlib.import_module(name), "__version__", "unknown"))


def _first_value(path: str, key: str) -> str | None:
    """Return the first `key : value` in a file of /proc."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(key)), None)
