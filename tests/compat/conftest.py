"""The names of other packages, in place for a test and gone after it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from envfleet.compat import env_wrappers, envpool, envpool_protocol


def pytest_collection_modifyitems(items):
    # Other tests of this run import torchrl first, which is what the warning is about and not the subject here.
    late = pytest.mark.filterwarnings(r"ignore:install\(\) was called after torchrl:RuntimeWarning")
    for item in items:
        if "compat" in str(item.path):
            item.add_marker(late)


@pytest.fixture
def envpool_alias():
    yield envpool.install()
    envpool.uninstall()


@pytest.fixture
def env_wrappers_alias():
    yield env_wrappers.install()
    env_wrappers.uninstall()


@pytest.fixture
def protocol_alias(tmp_path, monkeypatch):
    monkeypatch.setenv("ENVFLEET_DATA", str(tmp_path / "data"))
    yield envpool_protocol.install()
    envpool_protocol.uninstall()


@pytest.fixture
def run_python(tmp_path):
    """Runs python in an empty folder, as a user would."""

    def run(*arguments, check=True, **variables):
        result = subprocess.run(
            [sys.executable, "-W", "error", *arguments],
            cwd=tmp_path,
            env={**os.environ, "ENVFLEET_DATA": str(tmp_path / "data"), **variables},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if check:
            assert result.returncode == 0, result.stderr
        return result

    return run
