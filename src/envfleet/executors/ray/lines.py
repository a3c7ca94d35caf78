"""Lines: the caller's lines to all workers, made together and waited for together."""

from __future__ import annotations

import os
import select
from collections.abc import Sequence
from types import ModuleType

from envfleet.executors.ray.actors import Worker
from envfleet.executors.ray.line import SECRET_BYTES, CallerLine, dial
from envfleet.ray_cluster import is_encrypted

_DIAL_TIMEOUT_S = 3.0


class Lines:
    """Which line belongs to which worker."""

    def __init__(self, ray: ModuleType) -> None:
        self._ray = ray
        self._poll = select.poll()
        self._workers: dict[int, Worker] = {}
        self._slow: set[CallerLine] = set()
        # Others on the network must not read along where Ray was told to see to that.
        self._is_wanted = not is_encrypted()

    def connect(self, workers: Sequence[Worker]) -> None:
        """Lines to these, or to none of them: then their messages go through Ray."""
        if not self._is_wanted:
            return
        secrets = {worker: os.urandom(SECRET_BYTES) for worker in workers}
        refs = {worker: worker.handle.listen.remote(secret) for worker, secret in secrets.items()}
        doors = {}
        for worker, ref in refs.items():
            try:
                address = self._ray.get(ref)
            except self._ray.exceptions.RayError:
                continue  # it died since: its next message tells how
            if address is None:
                self._is_wanted = False
                return
            doors[worker] = ((address[0], address[1]), secrets[worker])
        lines = dial(doors, _DIAL_TIMEOUT_S)
        if lines is None:
            self._is_wanted = False  # it would be tried, in vain, at each restart
            return
        for worker, line in lines.items():
            worker.line = line
            self._workers[line.fileno()] = worker
            self._poll.register(line, select.POLLIN)

    def wait(self, timeout_s: float | None) -> list[Worker]:
        """The workers whose lines have news, a loss too, at the latest after this time; what has come is in their
        inboxes.
        """
        self._slow = {line for line in self._slow if line.has_unsent}
        for line in self._slow:
            self._poll.modify(line, select.POLLIN | select.POLLOUT)
        try:
            ready = self._poll.poll(None if timeout_s is None else timeout_s * 1000)
        finally:
            for line in self._slow:
                self._poll.modify(line, select.POLLIN)
        news = []
        for fd, _ in ready:
            worker = self._workers[fd]
            assert worker.line is not None
            worker.line.pump()
            if worker.line.is_lost:
                self._forget(fd)
            news.append(worker)
        return news

    def note_slow(self, worker: Worker) -> None:
        """That a line has more to send than went at once."""
        if worker.line is not None:
            self._slow.add(worker.line)

    def end(self, worker: Worker) -> None:
        """Ends the line of a worker, if it has one."""
        line: CallerLine | None = worker.line
        if line is None:
            return
        for fd in [fd for fd, own in self._workers.items() if own is worker]:
            self._forget(fd)
        worker.line = None
        line.close()

    def _forget(self, fd: int) -> None:
        del self._workers[fd]
        self._poll.unregister(fd)
