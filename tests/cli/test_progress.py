"""What commands show on a terminal while they work: a bar or a line with the time that is left; nothing elsewhere."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from envfleet.cli.console import time_left


def on_a_terminal(tmp_path: Path, *arguments: str, env: dict[str, str] | None = None) -> str:
    """Run a command whose stdout and stderr are a terminal, and return what it wrote there."""
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "envfleet", *arguments],
        cwd=tmp_path,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "160", **(env or {})},
        stdin=child,
        stdout=child,
        stderr=child,
    )
    os.close(child)
    written = b""
    try:
        while part := os.read(parent, 65536):
            written += part
    except OSError:  # Linux's way to say that the other end is closed
        pass
    finally:
        os.close(parent)
    assert process.wait(timeout=60) == 0, written.decode()
    return written.decode()


COMMANDS = {
    "run": ["run", "CartPole-v1", "--num-envs", "2", "--seconds", "0.5"],
    "run_steps": ["run", "CartPole-v1", "--num-envs", "2", "--steps", "500000"],
    "record": [
        "run",
        "CartPole-v1",
        "--num-envs",
        "2",
        "--steps",
        "10",
        "--record",
        "x.gif",
        "--record-envs",
        "1",
        "--record-steps",
        "20",
    ],
    "bench": ["bench", "CartPole-v1", "--num-envs", "2", "--rounds", "3", "--seconds", "0.6"],
    "tune": ["tune", "CartPole-v1", "--num-envs", "2", "--seconds", "1", "--backends", "serial,native"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_bar_with_the_time_that_is_left(command: str, tmp_path: Path) -> None:
    assert re.search(r"\d+%.*\d s left", on_a_terminal(tmp_path, *COMMANDS[command]))


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_without_a_terminal(command: str, tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = cli(*COMMANDS[command])
    assert (result.returncode, result.stderr) == (0, "")
    assert " left" not in result.stdout


def test_doctor_says_what_it_examines(tmp_path: Path) -> None:
    # Without the packages that take long to examine.
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util\nfind = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *own: None if name in ('torch', 'jax') else find(name, *own)\n"
    )
    written = on_a_terminal(tmp_path, "doctor", env={"PYTHONPATH": str(tmp_path)})
    assert "examining the backends ..." in written
    assert written.rstrip().endswith("All fine.")


@pytest.mark.parametrize(("seconds", "said"), [(-1, "0 s"), (8.4, "8 s"), (125, "2:05 min"), (3720, "1:02 h")])
def test_durations(seconds: float, said: str) -> None:
    assert time_left(seconds) == said
