"""Gymnasium's own tests of vector environments, with envfleet's classes in the place of its own.

They are not in Gymnasium's wheel or sdist (which leaves tests/vector out): they come from the archive of the
release. Where there is no network, ENVFLEET_GYMNASIUM_TESTS names a folder that holds Gymnasium's `tests`.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

import gymnasium
import pytest
from foreign_tests import assert_they_pass, folder_of_tests

ARCHIVE = "https://github.com/Farama-Foundation/Gymnasium/archive/refs/tags/v{version}.tar.gz"

# Tests of Gymnasium that cannot apply here, each with its reason.
EXCLUDED: dict[str, str] = {}


def fetched(folder: Path) -> Path:
    url = ARCHIVE.format(version=gymnasium.__version__)
    packed = folder / "archive.tar.gz"
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            packed.write_bytes(answer.read())
    except (urllib.error.URLError, TimeoutError) as error:
        pytest.skip(f"Gymnasium's tests could not be fetched from {url}: {error}")
    return packed


@pytest.fixture(scope="module")
def gymnasium_root(pytestconfig: pytest.Config) -> Path:
    root_name = f"Gymnasium-{gymnasium.__version__}"
    return folder_of_tests(pytestconfig, "ENVFLEET_GYMNASIUM_TESTS", "vector", root_name, fetched)


@pytest.mark.timeout(900)
def test_gymnasiums_own_tests_pass(gymnasium_root: Path) -> None:
    plugin = Path(__file__).parent / "swapped_classes.py"
    assert_they_pass(gymnasium_root, ["vector"], plugin, more_than=200, timeout_s=120, excluded=EXCLUDED)
