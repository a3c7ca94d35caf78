"""context_fn: objects that the generators of all processes share, made by a manager of multiprocessing's."""

from __future__ import annotations

import multiprocessing
import os
import sys
import uuid
import warnings
from collections.abc import Callable, Mapping
from multiprocessing.managers import SyncManager
from typing import Any

from envfleet.errors import ConfigError
from envfleet.executors.processes.worker import exit_with_parent


class SharedContext:
    """What context_fn(manager) gave, and the manager's process, which lives as long as the runner."""

    def __init__(self, context_fn: Callable[[SyncManager], Mapping[str, Any]]) -> None:
        if not callable(context_fn):
            raise ConfigError(f"context_fn expected a function of a multiprocessing manager, got {context_fn!r}")
        # Forked: the other ways import the user's main module, and a script without a guard would run twice.
        # Without a file for its socket where the system can: after a kill -9 nobody would remove it.
        address = f"\0envfleet-{uuid.uuid4()}" if sys.platform == "linux" else None
        self._manager = SyncManager(address=address, ctx=multiprocessing.get_context("fork"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: none of them is needed there
            self._manager.start(exit_with_parent, (os.getpid(),))
        self.kwargs: dict[str, Any] = {}
        try:
            given = context_fn(self._manager)
            if not isinstance(given, Mapping):
                raise ConfigError(
                    f"context_fn(manager) expected to give a dict of the generators' keyword arguments, got {given!r}"
                )
        except BaseException:
            self.close()
            raise
        self.kwargs = dict(given)

    def close(self) -> None:
        """Ends the manager. Idempotent."""
        self._manager.shutdown()
        self.kwargs = {}  # what is left of its objects holds a connection each
