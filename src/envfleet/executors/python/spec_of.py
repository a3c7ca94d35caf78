"""SpecMaker: how an executor gets its spec once an env was built and could tell its spaces."""

from __future__ import annotations

from collections.abc import Callable

from envfleet.executors.python.env_description import Portrait
from envfleet.spec import EnvSpec

SpecMaker = Callable[[Portrait], EnvSpec]
