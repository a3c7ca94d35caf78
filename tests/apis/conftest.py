"""one_thread: torch on one thread, for tests that run beside others."""

from __future__ import annotations

import pytest


@pytest.fixture
def one_thread():
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
