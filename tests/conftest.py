"""Shared by all tests: the probe plug-in, compiled once a session, and what Ctrl-C does."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.gates import Gate

import envfleet

PLUGINS = Path(__file__).parent / "plugins"


@pytest.fixture(scope="session", autouse=True)
def default_ctrl_c() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, here and in the scripts that tests start.

    Whoever starts the tests in the background (nohup, a CI system) may have it ignored, and programs inherit that.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session", autouse=True)
def probe_envs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Faulty-v0, Sleepy-v0, Sink-v0, Lamp-v0, Confused-v0."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENVFLEET_CACHE", str(tmp_path_factory.mktemp("cache")))
        return envfleet.compile(PLUGINS / "probe.cc")


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A gate that holds an env inside its step."""
    with Gate() as gate:
        yield gate
