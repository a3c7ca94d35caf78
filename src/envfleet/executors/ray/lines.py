"""Lines: the caller's lines to all workers, made together and waited for together."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Sequence
from types import ModuleType

from envfleet.executors.ray.actors import Worker
from envfleet.executors.ray.authentication import SECRET_BYTES
from envfleet.executors.ray.cluster import is_encrypted
from envfleet.executors.ray.line import CallerLine, dial

_DIAL_TIMEOUT_S = 3.0
# After a loss a line is made again by itself, after ever longer; where it cannot be made, much later.
_FIRST_REDIAL_S = 1.0
_MAX_REDIAL_S = 60.0
_UNREACHED_S = 120.0


class Lines:
    """Which line belongs to which worker. is_wanted: False when every message is to go through Ray."""

    def __init__(self, ray: ModuleType, is_wanted: bool) -> None:
        self._ray = ray
        self._poll = select.poll()
        self._open: dict[int, tuple[Worker, CallerLine]] = {}  # by descriptor
        self._slow: set[CallerLine] = set()
        # Others on the network must not read along where Ray was told to see to that.
        self._is_wanted = is_wanted and not is_encrypted()
        self._not_before = 0.0

    def redial(self, worker: Worker) -> None:
        """A line to a worker that has lost its own, if it is time for that."""
        if worker.num_losses and time.monotonic() >= worker.redial_at:
            self.connect([worker])

    def note_loss(self, worker: Worker) -> None:
        """That a line ended while its worker may live."""
        worker.redial_at = time.monotonic() + min(_FIRST_REDIAL_S * 2.0**worker.num_losses, _MAX_REDIAL_S)
        worker.num_losses += 1

    def connect(self, workers: Sequence[Worker]) -> None:
        """Lines to those of these that live, have none and nothing to do. Where one cannot be reached, to none of
        them, and not again for minutes: each reset would wait for it in vain.
        """
        workers = [worker for worker in workers if worker.line is None and not worker.is_dead and worker.head is None]
        if not self._is_wanted or not workers or time.monotonic() < self._not_before:
            return
        secrets = {worker: os.urandom(SECRET_BYTES) for worker in workers}
        answers = self._ask(workers, secrets)
        doors = {worker: ((address[0], address[1]), secrets[worker]) for worker, address in answers.items() if address}
        lines = dial(doors, _DIAL_TIMEOUT_S)
        # Who was not reached and does not answer either has died since: its next message tells how.
        silent = [worker for worker in answers if worker not in lines]
        if self._alive(silent):
            self._not_before = time.monotonic() + _UNREACHED_S
            for line in lines.values():
                line.close()
            return
        for worker, line in lines.items():
            self._open[line.fileno()] = (worker, line)
            self._poll.register(line, select.POLLIN)
            worker.line = line
            worker.take_turn()  # so that the door closes behind it

    def _ask(self, workers: Sequence[Worker], secrets: dict[Worker, bytes]) -> dict[Worker, tuple[str, int] | None]:
        refs = {worker: worker.ask("listen", secrets[worker]) for worker in workers}
        answers = {}
        for worker, ref in refs.items():
            try:
                answers[worker] = self._ray.get(ref)
            except self._ray.exceptions.RayError:
                continue  # it died since, or Ray cannot reach it now
        return answers

    def _alive(self, workers: Sequence[Worker]) -> bool:
        """Whether any of these is."""
        for ref in [worker.ask("ping") for worker in workers]:
            try:
                self._ray.get(ref)
                return True
            except self._ray.exceptions.RayError:
                continue
        return False

    def wait(self, timeout_s: float) -> list[Worker]:
        """The workers whose lines have news, a loss too, at the latest after this time; what has come is in their
        inboxes.
        """
        self._slow = {line for line in self._slow if line.has_unsent and not line.is_lost}
        for line in self._slow:
            self._poll.modify(line, select.POLLIN | select.POLLOUT)
        try:
            ready = self._poll.poll(timeout_s * 1000)
        finally:
            for line in self._slow:
                if not line.is_lost:
                    self._poll.modify(line, select.POLLIN)
        news = []
        for fd, _ in ready:
            if fd not in self._open:
                self._poll.unregister(fd)
                continue
            worker, line = self._open[fd]
            line.pump()
            if line.is_lost:
                self._forget(fd)
            news.append(worker)
        return news

    def note_slow(self, line: CallerLine) -> None:
        """That a line has more to send than went at once."""
        self._slow.add(line)

    def end(self, worker: Worker) -> None:
        """Ends the line of a worker, if it has one."""
        for fd in [fd for fd, (own, _) in self._open.items() if own is worker]:
            self._forget(fd)
        worker.hang_up()
        worker.line = None

    def _forget(self, fd: int) -> None:
        with contextlib.suppress(KeyError):  # interrupted the last time
            self._poll.unregister(fd)
        del self._open[fd]
