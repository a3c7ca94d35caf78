"""make: pools of the executor under test, closed afterwards."""

from __future__ import annotations

import pytest
from support.subjects import SUBJECTS, why_not


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Of the ray executor's cases, leave those marked ray_core in every run and the rest to the long runs: an actor
    takes a second to start.
    """
    for item in items:
        callspec = getattr(item, "callspec", None)
        if callspec is None or callspec.params.get("make") != "ray":
            continue
        core = item.get_closest_marker("ray_core")
        if core is None or any(callspec.params[name] != value for name, value in core.kwargs.items()):
            item.add_marker(pytest.mark.soak)


@pytest.fixture(params=SUBJECTS)
def make(request):
    reason = why_not(request.node.originalname, request.param)
    if reason is not None:
        pytest.skip(reason)
    pools = []

    def make(env_id, **options):
        pools.append(SUBJECTS[request.param](env_id, **options))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()
