"""The engine's own C++ tests, plainly built. `make sanitize` runs them under the sanitizers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def run(*command: str | Path) -> None:
    # cmake, ctest and ninja come with the build's tools, beside this interpreter.
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    result = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, env=environment
    )
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-5000:]


@pytest.mark.timeout(900)
def test_engine(tmp_path):
    python = f"-DPython_EXECUTABLE={sys.executable}"
    quick = ("-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=")  # with assertions, without debug information
    run("cmake", "-S", ROOT, "-B", tmp_path, "-G", "Ninja", python, *quick)
    run("cmake", "--build", tmp_path)
    run("ctest", "--test-dir", tmp_path, "--output-on-failure", "--timeout", "120")
