"""Tower: sends requests to workers and waits for their replies, whatever becomes of the workers.

An exception while it waits, Ctrl-C too, leaves every flight as it is: the next call goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

from envfleet import _native
from envfleet.executors.python.exception_report import message_of
from envfleet.executors.ray.actors import HEARTBEAT_S, Worker, how_it_died
from envfleet.executors.ray.books import Books
from envfleet.executors.ray.flights import Flight, arrived
from envfleet.executors.ray.lines import Lines
from envfleet.executors.ray.messages import PART_BYTES, RowForm, glued

# How long to wait on lines while some messages go through Ray, as they do after a line was lost: nothing waits for
# both at once.
_GLANCE_S = 0.002
# How long an actor may be unavailable, as Ray calls it when a connection broke, and how often to look.
_UNAVAILABLE_S = 5.0
_RETRY_S = 0.2


class Tower:
    """The flights of all workers, on lines where there are some, else through Ray."""

    def __init__(
        self,
        ray: ModuleType,
        books: Books,
        rows: RowForm,
        lines: Lines,
        step_timeout: float | None,
        guard: _native.CallGuard,
    ) -> None:
        self._ray = ray
        self._guard = guard
        self._books = books
        self._rows = rows
        self._lines = lines
        self._step_timeout = step_timeout
        self._asked_at = time.monotonic()  # when Ray was last asked who lives
        self.ray_error: type[Exception] = ray.exceptions.RayError

    # --- departures --------------------------------------------------------------------------

    def send(self, flights: Iterable[Flight]) -> None:
        """Sends what was not sent yet. A request that was sent and not noted as such does no harm twice."""
        for flight in flights:
            worker = flight.worker
            if flight.arrival is None and worker.is_dead:  # since it was prepared
                self._books.lose(flight)
            if worker.line is not None and worker.line.is_lost:
                self._after_loss(worker)
            if flight.arrival is None and not flight.is_under_way:
                if worker.line is None:
                    self._lines.redial(worker)
                self._books.enter(flight)
                self._send_in_order(worker)

    def _send_in_order(self, worker: Worker) -> None:
        """What an interruption, or the loss of a line, left behind goes before what is new."""
        for flight in list(worker.outstanding):
            if flight.arrival is None and not flight.is_under_way:
                self._send(flight)

    def _send(self, flight: Flight) -> None:
        worker = flight.worker
        try:
            if worker.line is not None and not worker.line.is_lost:
                flight.line = worker.send_on_line(flight.number, flight.request)
                if flight.line.has_unsent:
                    self._lines.note_slow(flight.line)
            else:
                flight.line = None
                self._books.awaited.discard(flight)
                flight.refs = worker.call_in_parts(flight.request, flight.num_parts)
        except self._ray.exceptions.RayError as error:
            self._books.bury(worker, how_it_died(error))

    def _after_loss(self, worker: Worker) -> None:
        """Its line has ended, and nobody knows yet whether it lives: what is under way is sent again, through Ray."""
        self._lines.end(worker)
        self._lines.note_loss(worker)
        if worker.head is not None:
            worker.head.turn_at = time.monotonic()
        self._send_in_order(worker)

    # --- arrivals ------------------------------------------------------------------------------

    def await_all(self, flights: Sequence[Flight], deadline: float | None) -> bool:
        """Until all of them are back. False after the deadline."""
        self.send(flights)
        self._await_on_lines(flights)
        while self._books.awaited:
            self._listen(self._patience(self._books.awaited, deadline))
            if self._books.awaited and _is_over(deadline):
                return False
        pending = [flight for flight in flights if flight.arrival is None]
        if not pending:
            return True
        if self._take_at_once(pending, deadline):
            return True
        return all(self._await_one(flight, deadline) for flight in pending)

    def await_some(self, flights: Sequence[Flight], count: int, deadline: float | None) -> bool:
        """Until so many of them are back, or some news. False after the deadline."""
        self.send(flights)
        self._await_on_lines(flights)
        pending = [flight for flight in flights if flight.arrival is None]
        count -= len(flights) - len(pending)
        if count <= 0:
            return True
        by_ray = {flight.refs[0]: flight for flight in pending if flight.refs}
        patience = self._patience(pending, deadline)
        if self._books.awaited:
            self._listen(min(_GLANCE_S, patience or _GLANCE_S) if by_ray else patience)
            patience, count = 0.0, 1
        if by_ray:
            ready, _ = self._ray.wait(list(by_ray), num_returns=min(count, len(by_ray)), timeout=patience)
            landing = [by_ray[ref] for ref in ready if by_ray[ref].arrival is None]
            if landing and not self._take_at_once(landing, None):
                for flight in landing:
                    self._await_one(flight, None)
        self._give_up_the_overdue(pending)
        return not _is_over(deadline)

    def _await_on_lines(self, flights: Iterable[Flight]) -> None:
        """Awaits those of these flights that are on lines, and takes in what came while nobody waited for it."""
        self._books.awaited = {flight for flight in flights if flight.line is not None}
        for worker in {flight.worker for flight in self._books.awaited}:
            self._take_in(worker)

    def _listen(self, patience: float | None) -> None:
        """Waits on lines for any flight that is awaited, and takes in what came."""
        news = self._lines.wait(HEARTBEAT_S if patience is None else min(patience, HEARTBEAT_S))
        if time.monotonic() - self._asked_at >= HEARTBEAT_S:
            news += self._gone()
        for worker in news:
            self._take_in(worker)
        self._give_up_the_overdue(list(self._books.awaited))

    def _gone(self) -> list[Worker]:
        """Workers that are awaited on their lines, and of whom Ray knows that they are not there."""
        self._asked_at = time.monotonic()
        awaited = {flight.worker for flight in self._books.awaited}
        serving = {worker.serving: worker for worker in awaited if worker.serving is not None}
        if not serving:
            return []
        ended, _ = self._ray.wait(list(serving), num_returns=len(serving), timeout=0)
        gone = [serving[ref] for ref in ended]
        for worker in gone:
            if worker.line is not None:
                worker.line.close()
        return gone

    def _take_in(self, worker: Worker) -> None:
        """What has come on a worker's line, and whether that has ended."""
        line = worker.line
        if line is None:
            return
        while line.inbox:
            number, data = line.inbox[0]
            for flight in list(worker.outstanding):
                if flight.number == number and flight.arrival is None:  # else it was sent twice, and came twice
                    self._arrive(flight, [data])
            line.inbox.popleft()
        if line.is_lost:
            self._after_loss(worker)

    def _take_at_once(self, flights: Sequence[Flight], deadline: float | None) -> bool:
        """All replies in one call, the common case. False when it takes a closer look."""
        refs = [ref for flight in flights for ref in flight.refs or ()]
        try:
            parts = self._ray.get(refs, timeout=self._patience(flights, deadline))
        except self._ray.exceptions.RayError:
            return False
        position = 0
        for flight in flights:
            end = position + flight.num_parts
            self._arrive(flight, parts[position:end])
            position = end
        return True

    def _await_one(self, flight: Flight, deadline: float | None) -> bool:
        errors = self._ray.exceptions
        while flight.arrival is None:
            try:
                parts = self._ray.get(flight.refs, timeout=self._patience([flight], deadline))
                self._arrive(flight, parts)
            except errors.GetTimeoutError:
                self._give_up_the_overdue([flight])
                if flight.arrival is None and _is_over(deadline):
                    return False
            except errors.RayActorError as error:
                self._books.bury(flight.worker, how_it_died(error))
            except errors.RayError as error:
                self._fetch(flight, error)
        return True

    def _fetch(self, flight: Flight, error: Exception) -> None:
        """A reply that was lost on its way, in pieces that need no object store: the actor has it still."""
        errors = self._ray.exceptions
        data = b""
        try:
            while True:
                piece = self._ray.get(flight.worker.ask("again", flight.number, len(data), len(data) + PART_BYTES))
                data += piece
                if len(piece) < PART_BYTES:
                    break
        except errors.RayError as other:
            self._books.bury(flight.worker, how_it_died(other))
            return
        if data:
            self._arrive(flight, [data])
        else:
            # Of an exception in the actor Ray's own text is the whole traceback.
            self._books.bury(flight.worker, f"failed: {message_of(getattr(error, 'cause', None) or error)}")

    def _arrive(self, flight: Flight, parts: Sequence[bytes | memoryview]) -> None:
        self._books.land(flight, arrived(flight, self._rows.decode(glued(parts))))

    # --- who lives -----------------------------------------------------------------------------

    def find_dead(self, workers: Iterable[Worker]) -> None:
        """Looks which of these, that have nothing to do, died."""
        pings = [(worker, worker.ask("ping")) for worker in workers if not worker.is_dead]
        for worker, ref in pings:
            try:
                self.answer(worker, ref)
            except self._ray.exceptions.RayError as error:
                self.buries(worker, error)

    def answer(self, worker: Worker, ref: Any) -> Any:
        """What a worker answers to a call through Ray, after what is under way on it. Raises RayError.

        Of what is under way step_timeout holds here as well: behind a step that is stuck no call would ever come back.
        """
        while True:
            is_timed = self._step_timeout is not None and worker.head is not None
            patience = min(self._patience([worker.head], None) or 0.0, HEARTBEAT_S) if is_timed else None
            if self._ray.wait([ref], timeout=patience)[0]:
                return self._ray.get(ref)
            self._look_after(worker)

    def _look_after(self, worker: Worker) -> None:
        """Takes in what a worker has answered while nobody waited for that, and gives it up when it is overdue."""
        for own in self._lines.wait(0.0):
            self._take_in(own)
        while (head := worker.head) is not None and self._is_answered(head):
            self._await_one(head, None)
        if head is not None:
            self._give_up_the_overdue([head])

    def buries(self, worker: Worker, error: Exception) -> bool:
        """Whether an error of a call through Ray means that the worker died; then it is noted.

        Ray also raises when an answer does not fit into the object store, or is lost with it, and when an actor cannot
        be reached for a moment: the envs are still there.
        """
        if self._lives(worker, error):
            return False
        self._books.bury(worker, how_it_died(error))
        return True

    def _lives(self, worker: Worker, error: Exception) -> bool:
        errors = self._ray.exceptions
        deadline = time.monotonic() + _UNAVAILABLE_S
        while not worker.is_dead:
            if isinstance(error, errors.ActorUnavailableError):
                if _is_over(deadline):
                    return False
                time.sleep(_RETRY_S)
            elif isinstance(error, errors.RayActorError):
                return False
            try:
                self._ray.get(worker.ask("ping"))
                return True
            except errors.RayError as other:
                if not isinstance(other, errors.RayActorError):
                    return True  # it did answer
                error = other
        return False

    def _patience(self, flights: Iterable[Flight], deadline: float | None) -> float | None:
        """How long to wait before somebody must be told, or given up. Raises once close() has interrupted the call."""
        self._guard.check_not_interrupted()
        until = deadline
        if self._step_timeout is not None:
            for worker in {flight.worker for flight in flights}:
                given_up_at = worker.silent_since() + self._step_timeout
                until = given_up_at if until is None else min(given_up_at, until)
        return None if until is None else max(0.0, until - time.monotonic())

    def _give_up_the_overdue(self, flights: Iterable[Flight]) -> None:
        if self._step_timeout is None:
            return
        for worker in {flight.worker for flight in flights if flight.worker.is_overdue}:
            if self._is_answered(worker.head):
                # What takes long is the way of its reply: that lies on another node until somebody asks for it.
                worker.head.turn_at = time.monotonic()
            else:
                self._books.bury(worker, f"did not answer within step_timeout={self._step_timeout:g} s and was killed")

    def _is_answered(self, flight: Flight) -> bool:
        """Whether the reply to a flight that goes through Ray is there, on whichever node."""
        refs = flight.refs or []
        # Without fetch_local=False, what is on another node never counts as ready when there is no time to fetch it.
        return bool(refs) and not self._ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)[1]


def _is_over(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline
