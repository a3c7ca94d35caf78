"""The interruption fuzzer in its short form, and as a long run. A failure prints the seed that repeats it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = Path(__file__).parent / "interruptions.py"
BACKENDS = ["native", "serial", "threads", "processes"]


def interrupt(backend: str, num_interruptions: int, plugin: Path, seed: int | None = None) -> None:
    """Runs the fuzzer in a process of its own: it counts threads, processes and descriptors."""
    command = [sys.executable, "-X", "faulthandler", str(DRIVER), backend, str(num_interruptions)]
    command += ["--plugin", str(plugin)] if seed is None else ["--plugin", str(plugin), "--seed", str(seed)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"


@pytest.mark.parametrize("backend", BACKENDS)
def test_interruptions_leave_a_pool_that_goes_on(backend, probe_library):
    interrupt(backend, 200, probe_library, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("backend", [*BACKENDS, "ray"])
def test_many_interruptions_leave_a_pool_that_goes_on(backend, probe_library):
    interrupt(backend, 10_000, probe_library)
