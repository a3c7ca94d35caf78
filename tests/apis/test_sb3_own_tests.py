"""Stable-Baselines3's own tests of vectorised environments, with envfleet's classes in the place of its own.

They are not in SB3's wheel: they come from its sdist. Where there is no network, ENVFLEET_SB3_TESTS names a
folder that holds SB3's `tests`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from foreign_tests import assert_they_pass, folder_of_tests

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


def fetched(folder: Path) -> Path:
    version = stable_baselines3.__version__
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "stable-baselines3")
    told = subprocess.run(
        [*pip, "--dest", str(folder), f"stable-baselines3=={version}"], capture_output=True, text=True, check=False
    )
    packed = next(folder.glob(f"stable_baselines3-{version}.tar.gz"), None)
    if packed is None:
        pytest.skip(f"pip could not fetch the sdist of stable-baselines3 {version}: {told.stderr[-300:]}")
    return packed


@pytest.fixture(scope="module")
def sb3_root(pytestconfig: pytest.Config) -> Path:
    root_name = f"stable_baselines3-{stable_baselines3.__version__}"
    return folder_of_tests(pytestconfig, "ENVFLEET_SB3_TESTS", FILES[0], root_name, fetched)


@pytest.mark.soak  # minutes
@pytest.mark.timeout(1800)
def test_sb3s_own_tests_pass(sb3_root: Path) -> None:
    plugin = Path(__file__).parent / "sb3_swapped_classes.py"
    assert_they_pass(sb3_root, FILES, plugin, more_than=70, timeout_s=300, excluded=EXCLUDED, OMP_NUM_THREADS="1")
