"""Scripts written from EnvPool's examples, run by python -m envfleet.compat: beside gym 0.26.2 and without it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"


def needs(*packages):
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


@pytest.fixture(scope="module")
def gym_folder(request):
    """A folder with the real gym 0.26.2 alone, installed once and kept with pytest's cache."""
    folder = Path(request.config.cache.mkdir("real_gym")) / "0.26.2"
    if not folder.exists():
        own = folder.with_name(f"0.26.2-{os.getpid()}")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(own)]
        result = subprocess.run(
            [*command, "gym==0.26.2", "gym-notices==0.0.8"], capture_output=True, text=True, timeout=110, check=False
        )
        if result.returncode:
            shutil.rmtree(own, ignore_errors=True)
            pytest.skip(f"gym 0.26.2 cannot be installed here: {result.stderr[-300:]}")
        try:
            own.rename(folder)
        except OSError:  # another run was first
            shutil.rmtree(own)
    return folder


def run(run_python, script, *arguments, **variables):
    # Not -W error: gym 0.26 and what it imports warn.
    command = ("-W", "default", "-m", "envfleet.compat", str(SCRIPTS / script), *arguments)
    assert run_python(*command, **variables).stdout.split()[-1] == "done"


@needs("ale_py", "mujoco", "dm_env")
def test_examples_with_the_calls_before_gym_0_26(run_python):
    if importlib.util.find_spec("gym") is not None:
        pytest.skip("the real gym is installed")
    run(run_python, "envpool_examples.py", "old")


@needs("ale_py", "mujoco", "dm_env")
def test_examples_beside_gym_0_26(run_python, gym_folder):
    run(run_python, "envpool_examples.py", "new", PYTHONPATH=str(gym_folder))


def test_wrappers_of_gym_0_26(run_python, gym_folder):
    run(run_python, "gym_wrappers_around_envpool.py", PYTHONPATH=str(gym_folder))
