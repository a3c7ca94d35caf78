"""Run every check of the project, one after the other, and print a table of the results (`make check`).

Continues after a failure. A check that the machine cannot run is skipped with a reason. Each check writes its own log
to build/check/. With --resume, a check that already passed on the same commit contents is not run again.
Exit status: 1 if a check failed, 2 for a wrong argument, otherwise 0.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / "build" / "check"
_END_TIMEOUT_S = 10.0
# Variables that decide which interpreter and compiler the commands use. make exports those of its command line, too.
_INHERITED = ("PYTHON", "CXX", "CXXFLAGS")


@dataclass(frozen=True)
class Check:
    """One command and its requirements."""

    name: str
    command: Sequence[str]
    why_not: Callable[[], str | None] = lambda: None  # returns the reason why it cannot run here
    environment: dict[str, str] = field(default_factory=dict)
    limit_s: float = 4 * 3600


@dataclass(frozen=True)
class Outcome:
    """The result of a check."""

    name: str
    result: str  # passed, passed earlier, failed, skipped or interrupted
    counts: str = ""
    duration_s: float = 0.0
    log: Path | None = None
    reason: str = ""


# --- the checks ------------------------------------------------------------------------------------


def checks() -> list[Check]:
    """Return all checks, the fast ones first."""
    free_python = os.environ.get("PYTHON_FREETHREADED") or "python3.13t"
    tsan_python = os.environ.get("PYTHON_TSAN", "")
    # The long form of the random C++ tests, with a suitable timeout.
    long_tests = {"ENVFLEET_TEST_SCALE": os.environ.get("ENVFLEET_TEST_SCALE", "50")}
    return [
        Check("lint", ["make", "lint"]),
        Check("test", ["make", "test"]),
        Check("clang-tidy", ["make", "clang-tidy"], limit_s=2 * 3600),
        Check("sanitize", ["make", "sanitize", "TEST_TIMEOUT=1800"], _no_sanitizers, long_tests),
        Check("sanitize-python", ["make", "sanitize-python"], _no_sanitizers),
        Check(
            "sanitize-freethreaded",
            ["make", "sanitize-freethreaded", f"PYTHON_TSAN={tsan_python}"],
            lambda: _no_tsan_python(tsan_python),
        ),
        Check(
            "freethreaded",
            ["make", "test-freethreaded", f"PYTHON={free_python}"],
            lambda: _no_free_python(free_python),
        ),
        Check("coverage", ["make", "coverage", "TEST_TIMEOUT=1800"], _no_gcov),
        Check("rllib", ["make", "test-rllib"]),
        Check("gym", ["make", "test-gym"]),
        Check("docs", ["make", "docs"]),
        Check("portable", ["make", "test-portable"]),
        Check("wheels", ["make", "wheels"]),
        Check("docker", ["make", "docker-check"]),
        Check("families", ["make", "test-families"]),
        Check("foreign", ["make", "foreign"]),
        Check("train", ["make", "train-check"]),
        Check("soak", ["make", "soak"]),
    ]


def _answer(command: Sequence[str]) -> str | None:
    """Return the output of a command, or None if it cannot run or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _no_sanitizers() -> str | None:
    for library in ("libasan.so", "libtsan.so"):
        # The compiler returns the bare name of a library that it does not have.
        path = _answer(["g++", f"-print-file-name={library}"])
        if path is None or path == library:
            return f"needs g++ with {library}; install gcc's sanitizer libraries"
    return None


def _no_gcov() -> str | None:
    return None if _answer(["gcov", "--version"]) is not None else "needs gcov; install gcc"


def _no_free_python(python: str) -> str | None:
    if _answer([python, "-c", "import sys; sys.exit(sys._is_gil_enabled())"]) is None:
        return f"needs a free-threaded Python, got {python}; set PYTHON_FREETHREADED to one"
    return None


def _no_tsan_python(python: str) -> str | None:
    if not python:
        return "needs a free-threaded Python built with --with-thread-sanitizer; set PYTHON_TSAN to one"
    arguments = _answer([python, "-c", "import sysconfig; print(sysconfig.get_config_var('CONFIG_ARGS'))"])
    if arguments is None or not {"--disable-gil", "--with-thread-sanitizer"} <= set(re.split(r"[\s']+", arguments)):
        return f"needs a Python configured with --disable-gil --with-thread-sanitizer, got {python}"
    return None


# --- running them ----------------------------------------------------------------------------------


def run(check: Check, logs: Path) -> Outcome:
    """Run one check and return its outcome."""
    reason = check.why_not()
    if reason is not None:
        return Outcome(check.name, "skipped", reason=reason)
    log = logs / f"{check.name}.log"
    environment = {**os.environ, **check.environment}
    # The commands must not inherit the options and variables of `make check` itself.
    for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES"):
        environment.pop(name, None)
    start = time.monotonic()
    with log.open("w") as output:
        # In its own session, so that a check that does not end can be killed with all its processes.
        process = subprocess.Popen(
            check.command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        result, reason = "", ""
        try:
            process.wait(check.limit_s)
        except subprocess.TimeoutExpired:
            result, reason = "failed", f"did not end within {check.limit_s:.0f} s"
        except KeyboardInterrupt:
            result = "interrupted"
        finally:
            if process.returncode is None:
                _end(process)
    text = log.read_text(errors="replace")
    if not result:
        result, reason = _judge(process.returncode, text)
    return Outcome(check.name, result, counts_of(text), time.monotonic() - start, log, reason)


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_TIMEOUT_S)
            return


def _judge(exit_code: int, text: str) -> tuple[str, str]:
    if exit_code != 0:
        return "failed", reason_of(text) or f"exit status {exit_code}"
    # A target that finds out itself that it cannot run prints this.
    skipped = re.findall(r"^skipped: (.*)$", text, re.MULTILINE)
    return ("skipped", skipped[-1]) if skipped else ("passed", "")


def counts_of(text: str) -> str:
    """Return the numbers of tests in a log, summed over all runs of pytest and ctest."""
    totals: dict[str, int] = {}
    for line in re.findall(r"^=* ?(\d+ \w+.* in [\d.]+s.*)$", text, re.MULTILINE):
        for count, kind in re.findall(r"(\d+) (passed|failed|errors?|skipped|xfailed)\b", line):
            kind = "failed" if kind.startswith("error") else kind
            totals[kind] = totals.get(kind, 0) + int(count)
    for failed, total in re.findall(r"(\d+) tests failed out of (\d+)", text):
        totals["passed"] = totals.get("passed", 0) + int(total) - int(failed)
        totals["failed"] = totals.get("failed", 0) + int(failed)
    return ", ".join(
        f"{totals[kind]} {kind}" for kind in ("passed", "failed", "skipped", "xfailed") if totals.get(kind)
    )


def reason_of(text: str) -> str:
    """Return the line of a log that best explains the failure."""
    for pattern in (r"^(?:FAILED|ERROR) .*$", r"^SUMMARY: \w+Sanitizer.*$", r"^.*\berror\b.*$", r"^make.*\*\*\*.*$"):
        found = re.findall(pattern, text, re.MULTILINE | re.IGNORECASE if "error" in pattern else re.MULTILINE)
        if found:
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            return str(found[0]).strip()[:140] + more
    return ""


def table_of(outcomes: Sequence[Outcome]) -> str:
    """Return the outcomes as aligned columns."""
    rows = [("check", "result", "counts", "duration", "log", "reason")]
    for outcome in outcomes:
        log = "" if outcome.log is None else os.path.relpath(outcome.log, ROOT)
        minutes, seconds = divmod(round(outcome.duration_s), 60)
        rows.append((outcome.name, outcome.result, outcome.counts, f"{minutes}:{seconds:02}", log, outcome.reason))
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]) - 1)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


# --- continuing an interrupted run -----------------------------------------------------------------


def clean_tree(root: Path = ROOT) -> str | None:
    """Return the hash of the committed tree, or None if the working tree differs from it."""
    if _answer(["git", "-C", str(root), "status", "--porcelain"]) != "":
        return None
    return _answer(["git", "-C", str(root), "rev-parse", "HEAD^{tree}"])


class PassedChecks:
    """The checks that passed on one tree, in a file.

    While there is no tree (uncommitted changes), nothing is recorded or found.
    """

    def __init__(self, file: Path, tree: Callable[[], str | None] = clean_tree) -> None:
        self._file = file
        self.tree = tree

    def find(self, check: Check) -> Outcome | None:
        """Return the earlier outcome of this check on the current tree."""
        record = self._read(self.tree()).get(self._key(check))
        if record is None:
            return None
        log = self._file.parent / f"{check.name}.log"
        return Outcome(check.name, "passed earlier", record["counts"], record["duration_s"], log)

    def add(self, check: Check, outcome: Outcome, tree: str | None) -> None:
        """Record a check that passed, unless the tree changed since `tree`, where it started."""
        if tree is None or tree != self.tree():
            return
        passed = self._read(tree)
        passed[self._key(check)] = {"counts": outcome.counts, "duration_s": outcome.duration_s}
        # In one step: an interrupted write would lose the earlier records.
        draft = self._file.with_suffix(".tmp")
        draft.write_text(json.dumps({"tree": tree, "passed": passed}, indent=1))
        draft.replace(self._file)

    def _read(self, tree: str | None) -> dict[str, dict[str, Any]]:
        """Return the records of this tree. A missing or damaged file has none."""
        try:
            content = json.loads(self._file.read_text())
            if tree is None or content["tree"] != tree:
                return {}
            return {
                key: {"counts": str(record["counts"]), "duration_s": float(record["duration_s"])}
                for key, record in content["passed"].items()
            }
        except Exception:  # whatever is wrong with it, the checks can run again
            return {}

    @staticmethod
    def _key(check: Check) -> str:
        # With its arguments and environment: another interpreter, compiler or scale is another check.
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        variables = sorted({**inherited, **check.environment}.items())
        return " ".join([check.name, *check.command, sys.executable, *(f"{k}={v}" for k, v in variables)])


def run_all(chosen: Sequence[Check], logs: Path, *, resume: bool = False, passed: PassedChecks | None = None) -> int:
    """Run the checks, print the table and return the exit status.

    With `resume`, a check that passed earlier on the same tree is not run again.
    """
    logs.mkdir(parents=True, exist_ok=True)
    passed = passed or PassedChecks(logs / "passed.json")
    outcomes: list[Outcome] = []
    for check in chosen:
        earlier = passed.find(check) if resume else None
        if earlier is not None:
            outcomes.append(earlier)
            print(f"{check.name}: passed earlier", flush=True)
            continue
        print(f"{check.name} ...", flush=True)
        tree = passed.tree()
        outcomes.append(run(check, logs))
        if outcomes[-1].result == "passed":
            passed.add(check, outcomes[-1], tree)
        print(f"{check.name}: {outcomes[-1].result}", flush=True)
        if outcomes[-1].result == "interrupted":
            outcomes += [
                Outcome(check.name, "skipped", reason="interrupted before it ran") for check in chosen[len(outcomes) :]
            ]
            break
    print(f"\n{table_of(outcomes)}")
    return 1 if any(outcome.result in ("failed", "interrupted") for outcome in outcomes) else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks that the command line selects."""
    known = {check.name: check for check in checks()}
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", help=f"run only these, separated by commas: {', '.join(known)}")
    parser.add_argument("--resume", action="store_true", help="do not repeat checks that passed on this very tree")
    options = parser.parse_args(arguments)
    names = options.only.split(",") if options.only else list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        parser.error(f"--only expected names from {', '.join(known)}, got {', '.join(unknown)}")
    return run_all([known[name] for name in names], LOGS, resume=options.resume)


if __name__ == "__main__":
    sys.exit(main())
