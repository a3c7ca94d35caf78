"""Shared by all tests: the probe plug-in, compiled once a session, and what Ctrl-C does."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.gates import Gate

import envfleet

PLUGINS = Path(__file__).parent / "plugins"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest test, which would otherwise run alone at the end when the other workers have finished."""
    items.sort(key=lambda item: item.path.name != "test_engine.py")


@pytest.fixture(scope="session", autouse=True)
def default_ctrl_c() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, here and in the scripts that tests start.

    Whoever starts the tests in the background (nohup, a CI system) may have it ignored, and programs inherit that.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session", autouse=True)
def probe_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Faulty-v0, Sleepy-v0, Sink-v0, Lamp-v0, Confused-v0: built by the first pytest-xdist worker, for all of them."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # of the whole run
    with pytest.MonkeyPatch.context() as patch, open(folder / "probe.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        patch.setenv("ENVFLEET_CACHE", str(folder / "probe_cache"))
        envfleet.compile(PLUGINS / "probe.cc")
    (library,) = (folder / "probe_cache").glob("*.so")
    return library


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A gate that holds an env inside its step."""
    with Gate() as gate:
        yield gate


@pytest.fixture
def one_thread() -> Iterator[None]:
    """torch on one thread, for tests that run beside others."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
