"""backend: both of the Runner's. nothing_left: for tests after which nothing of a Runner may be left."""

from __future__ import annotations

import gc
from functools import partial

import pytest
from sampling_probes import BACKENDS, counting
from support.traces import Traces, wait_until

from envfleet.sampling import Runner


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


@pytest.fixture
def nothing_left():
    """No child, no descriptor. The fork server of this process stays."""
    Runner([partial(counting, 0)]).close()
    before = Traces.now()
    yield
    gc.collect()
    assert wait_until(lambda: Traces.now().children <= before.children)
    assert wait_until(lambda: not Traces.now().descriptors - before.descriptors), (
        Traces.now().descriptors - before.descriptors
    )
