"""Scripts in processes of their own, and that they leave nothing behind: no process, no file."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
from support.traces import shared_files, wait_until

TESTS = Path(__file__).parents[1]


def command_of(tmp_path: Path, *arguments: str, folders: Sequence[Path] = ()) -> dict[str, Any]:
    """For subprocess: a Python with warnings as errors, our probes, and a folder of its own for temporary files.

    folders: where it finds modules beside those of tests/.
    """
    (tmp_path / "tmp").mkdir()
    path = os.pathsep.join(filter(None, [str(TESTS), *map(str, folders), os.environ.get("PYTHONPATH")]))
    return {
        "args": [sys.executable, "-W", "error", *arguments],
        "env": {**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path / "tmp")},
        "cwd": tmp_path,
        "text": True,
        # A group of its own: a signal to the group must not reach the tests.
        "start_new_session": True,
    }


@contextlib.contextmanager
def started(
    tmp_path: Path, code: str, *, prelude: str = "", folders: Sequence[Path] = (), **options: Any
) -> Iterator[subprocess.Popen[str]]:
    """A script that runs, its output in pipes; what is left of it at the end is killed."""
    script = tmp_path / "script.py"
    script.write_text(prelude + textwrap.dedent(code))
    command = command_of(tmp_path, str(script), folders=folders)
    process = subprocess.Popen(**command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    try:
        yield process
    finally:
        for survivor in family(tmp_path):
            survivor.kill()
        process.communicate()


def run_script(
    tmp_path: Path, code: str, *, prelude: str = "", folders: Sequence[Path] = ()
) -> subprocess.CompletedProcess[str]:
    """Runs a script to its end; it must leave no process and no file."""
    before = shared_files()
    with started(tmp_path, code, prelude=prelude, folders=folders, stdin=subprocess.DEVNULL) as process:
        out, err = process.communicate(timeout=120)
        assert wait_until(lambda: not family(tmp_path)), f"left behind: {family(tmp_path)}"
    assert_no_files(tmp_path, before)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def family(tmp_path: Path) -> list[psutil.Process]:
    """The living processes of a script, whoever their parent and session are: its TMPDIR marks them."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TMPDIR") == str(tmp_path / "tmp") and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def assert_no_files(tmp_path: Path, before: frozenset[str]) -> None:
    """Nothing in the script's folder for temporary files, nothing new in shared memory."""
    left = lambda: [*(tmp_path / "tmp").iterdir(), *(shared_files() - before)]  # noqa: E731 (used twice, here)
    wait_until(lambda: not left())
    assert left() == []
