"""Shared by all tests: the probe plug-in, compiled once a session."""

from __future__ import annotations

from pathlib import Path

import pytest

import envfleet

PLUGINS = Path(__file__).parent / "plugins"


@pytest.fixture(scope="session", autouse=True)
def probe_envs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Faulty-v0, Sleepy-v0, Sink-v0, Lamp-v0, Confused-v0."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENVFLEET_CACHE", str(tmp_path_factory.mktemp("cache")))
        return envfleet.compile(PLUGINS / "probe.cc")
