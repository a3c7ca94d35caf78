"""Entrance: one caller at a time, in the process that made the pool, until it is closed or Ray has gone."""

from __future__ import annotations

import os
import threading

from envfleet.errors import CallOrderError, ForkedPoolError, PoolClosedError
from envfleet.ray_cluster import Lease


class Entrance:
    """A lock that is held while a call is inside."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._pid = os.getpid()
        self._busy = threading.Lock()
        self.is_closed = False

    @property
    def is_forked(self) -> bool:
        """Whether this is a child of the process that made it."""
        return os.getpid() != self._pid

    def opened(self) -> threading.Lock:
        """The lock, to be held as a context; Ctrl-C cannot get in between its halves. Raises when the call has no
        business here.
        """
        if self.is_forked:
            raise ForkedPoolError(
                "this pool was made before fork() and its workers belong to the parent; "
                "expected it to be used there, got a call in the child: make a new pool in the child"
            )
        if self._busy.locked():
            raise CallOrderError(
                "two threads called this pool at once; expected one caller at a time: use a lock or a pool a thread"
            )
        if self.is_closed:
            raise PoolClosedError("this pool is closed; make a new one")
        self._lease.check()
        return self._busy

    def close(self, patience_s: float) -> None:
        """Lets nobody in any more, once who is inside has left or the time is over."""
        if self.is_closed:
            return
        is_mine = self._busy.acquire(timeout=patience_s)
        self.is_closed = True
        if is_mine:
            self._busy.release()
