"""make: pools of the executor under test, closed afterwards."""

from __future__ import annotations

import pytest
from subjects import SUBJECTS, why_not


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
