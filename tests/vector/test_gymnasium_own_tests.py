"""Gymnasium's own tests of vector environments, with envfleet's classes in the place of its own.

They are not in this repository, nor in Gymnasium's wheel or sdist (which leaves tests/vector out):
they come from the archive of the release that is installed, once for a pytest cache. Where there is
no network, ENVFLEET_GYMNASIUM_TESTS names a folder that holds Gymnasium's `tests`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
from pathlib import Path

import gymnasium
import pytest

ARCHIVE = "https://github.com/Farama-Foundation/Gymnasium/archive/refs/tags/v{version}.tar.gz"

# Tests of Gymnasium that cannot apply here, each with its reason.
EXCLUDED: dict[str, str] = {}


@pytest.fixture(scope="module")
def gymnasium_root(request: pytest.FixtureRequest) -> Path:
    """A folder with Gymnasium's `tests` of the installed version."""
    named = os.environ.get("ENVFLEET_GYMNASIUM_TESTS")
    if named:
        root = Path(named)
        assert (root / "tests" / "vector").is_dir(), f"ENVFLEET_GYMNASIUM_TESTS={named} holds no tests/vector"
        return root
    folder = Path(request.config.cache.mkdir("gymnasium_tests"))  # type: ignore[union-attr]
    root = folder / f"Gymnasium-{gymnasium.__version__}"
    if not (root / "tests" / "vector").is_dir():
        url = ARCHIVE.format(version=gymnasium.__version__)
        packed = folder / "archive.tar.gz"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                packed.write_bytes(answer.read())
        except (urllib.error.URLError, TimeoutError) as error:
            pytest.skip(f"Gymnasium's tests could not be fetched from {url}: {error}")
        with tarfile.open(packed) as archive:
            wanted = [member for member in archive.getmembers() if "/tests/" in f"/{member.name}/"]
            archive.extractall(folder, wanted, filter="data")
        packed.unlink()
    return root


@pytest.mark.timeout(900)
def test_gymnasiums_own_tests_pass(gymnasium_root: Path) -> None:
    here = Path(__file__).parent
    deselected = [f"--deselect={test}" for test in EXCLUDED]
    run = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "tests/vector", "-q", "-p", "swapped_classes", "-p", "no:cacheprovider"),
            *("-c", os.devnull, "--rootdir", str(gymnasium_root), "--timeout", "120", *deselected),
        ],
        cwd=gymnasium_root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(here), str(gymnasium_root)])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    told = run.stdout[-8000:]
    assert run.returncode == 0, told
    passed = re.search(r"(\d+) passed", told)
    assert passed is not None, told
    assert int(passed[1]) > 200, told
