"""Other projects' own tests, run with envfleet's classes in the place of theirs.

They are not in this repository: they come from an archive of the release that is installed, once for a pytest
cache. Where there is no network, an environment variable names a folder that holds the project's `tests`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest


def folder_of_tests(
    config: pytest.Config, variable: str, wanted: str, root_name: str, fetch: Callable[[Path], Path]
) -> Path:
    """A folder with the project's `tests`, of the version that is installed.

    wanted: what `tests` must hold. root_name: the folder in the archive. fetch: puts the archive into the folder
    that it is given, or skips the test.
    """
    named = os.environ.get(variable)
    if named:
        assert (Path(named) / "tests" / wanted).exists(), f"{variable}={named} holds no tests/{wanted}"
        return Path(named)
    assert config.cache is not None
    folder = Path(config.cache.mkdir(variable.removeprefix("ENVFLEET_").lower()))
    root = folder / root_name
    if not (root / "tests" / wanted).exists():
        packed = fetch(folder)
        with tarfile.open(packed) as archive:
            members = [member for member in archive.getmembers() if "/tests/" in f"/{member.name}/"]
            archive.extractall(folder, members, filter="data")
        packed.unlink()
    return root


def assert_they_pass(
    root: Path,
    tests: Iterable[str],
    plugin: Path,
    *,
    more_than: int,
    timeout_s: int,
    excluded: Iterable[str] = (),
    **environment: str,
) -> None:
    """Runs them in a pytest of their own, in which the plug-in has swapped the classes: so many pass, none fails."""
    run = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", *(f"tests/{name}" for name in tests), "-q"),
            *("-p", plugin.stem, "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(root)),
            *("--timeout", str(timeout_s), *(f"--deselect={test}" for test in excluded)),
        ],
        cwd=root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(plugin.parent), str(root)]), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    told = run.stdout[-8000:]
    assert run.returncode == 0, told
    passed = re.search(r"(\d+) passed", told)
    assert passed is not None, told
    assert int(passed[1]) > more_than, told
