"""Before the first of these tests: what is loaded by now is not looked at again by the garbage collector.

They collect garbage often, to see that nothing is left behind; with torch and its kin loaded by other tests,
each time would take half a second.
"""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(scope="package", autouse=True)
def small_heap():
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
