"""Entrance: the call guard of a pool on Ray, which also asks whether its session is still there."""

from __future__ import annotations

from envfleet import _native
from envfleet.executors.ray.cluster import Lease


class Entrance:
    """One caller at a time, in the process that made the pool, until it is closed or Ray has gone."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self.guard = _native.CallGuard()

    def opened(self) -> _native.PartOfCall:
        """To be held as a context while a call is inside. Raises, here or when it is entered, if the call has no
        business there.
        """
        # A child that fork() made must not touch Ray's connections, which are its parent's.
        if not self.guard.is_forked and not self.guard.is_closing:
            self._lease.check()
        return self.guard.part()
