"""How the tests run the command line: in this process, or in a real one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Cli = Callable[..., subprocess.CompletedProcess[str]]

# Makes `import NAME` fail as it does where NAME is not installed.
_BLOCKER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
"""


@pytest.fixture(autouse=True)
def _plain_output(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """python -m envfleet in a process of its own; blocked: packages that it cannot import."""

    def run(*arguments: str, blocked: tuple[str, ...] = (), **env: str) -> subprocess.CompletedProcess[str]:
        if blocked:
            site = tmp_path / "site"
            site.mkdir()
            (site / "sitecustomize.py").write_text(_BLOCKER.format(names=blocked))
            env["PYTHONPATH"] = str(site)
        return subprocess.run(
            [sys.executable, "-m", "envfleet", *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, **env},
            check=False,
        )

    return run
