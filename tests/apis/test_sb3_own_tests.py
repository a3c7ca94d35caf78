"""Stable-Baselines3's own tests of vectorised environments, with envfleet's classes in the place of its own.

They are not in this repository, nor in SB3's wheel: they come from the sdist of the release that is
installed, once for a pytest cache. Where there is no network, ENVFLEET_SB3_TESTS names a folder that
holds SB3's `tests`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

stable_baselines3 = pytest.importorskip("stable_baselines3")

FILES = (
    "test_vec_envs.py",
    "test_vec_monitor.py",
    "test_vec_normalize.py",
    "test_vec_check_nan.py",
    "test_vec_extract_dict_obs.py",
    "test_vec_stacked_obs.py",
)

# Tests of SB3 that cannot apply here, each with its reason.
EXCLUDED: dict[str, str] = {}


@pytest.fixture(scope="module")
def sb3_root(request: pytest.FixtureRequest) -> Path:
    """A folder with SB3's `tests` of the installed version."""
    named = os.environ.get("ENVFLEET_SB3_TESTS")
    if named:
        root = Path(named)
        assert (root / "tests" / FILES[0]).is_file(), f"ENVFLEET_SB3_TESTS={named} holds no tests/{FILES[0]}"
        return root
    version = stable_baselines3.__version__
    folder = Path(request.config.cache.mkdir("sb3_tests"))  # type: ignore[union-attr]
    root = folder / f"stable_baselines3-{version}"
    if not (root / "tests" / FILES[0]).is_file():
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "stable-baselines3")
        fetched = subprocess.run(
            [*pip, "--dest", str(folder), f"stable-baselines3=={version}"], capture_output=True, text=True, check=False
        )
        packed = next(folder.glob(f"stable_baselines3-{version}.tar.gz"), None)
        if packed is None:
            pytest.skip(f"pip could not fetch the sdist of stable-baselines3 {version}: {fetched.stderr[-300:]}")
        with tarfile.open(packed) as archive:
            wanted = [member for member in archive.getmembers() if "/tests/" in f"/{member.name}/"]
            archive.extractall(folder, wanted, filter="data")
        packed.unlink()
    return root


@pytest.mark.soak  # minutes
@pytest.mark.timeout(1800)
def test_sb3s_own_tests_pass(sb3_root: Path) -> None:
    here = Path(__file__).parent
    deselected = [f"--deselect={test}" for test in EXCLUDED]
    run = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", *(f"tests/{name}" for name in FILES), "-q"),
            *("-p", "sb3_swapped_classes", "-p", "no:cacheprovider"),
            *("-c", os.devnull, "--rootdir", str(sb3_root), "--timeout", "300", *deselected),
        ],
        cwd=sb3_root,
        env={**os.environ, "PYTHONPATH": str(here), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    told = run.stdout[-8000:]
    assert run.returncode == 0, told
    passed = re.search(r"(\d+) passed", told)
    assert passed is not None, told
    assert int(passed[1]) > 70, told
