"""The executors under the conformance suite. A new one joins by adding its name.

A subject makes pools of four envs that behave alike on every executor: "CartPole-v1",
"Faulty-v0", "Sleepy-v0" and "Sink-v0" (tests/plugins/probe.cc says what they do).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import envfleet
from envfleet import Pool

Subject = Callable[..., Pool]


def native(env_id: str, **options: Any) -> Pool:
    return envfleet.make_pool(env_id, backend="native", **options)


SUBJECTS: dict[str, Subject] = {"native": native}
