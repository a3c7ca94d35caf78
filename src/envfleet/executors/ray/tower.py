"""Tower: sends requests to workers and waits for their replies, whatever becomes of the workers.

An exception while it waits, Ctrl-C too, leaves every flight as it is: the next call goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.autoreset import Phase
from envfleet.executors.ray.actors import Worker, how_it_died
from envfleet.executors.ray.flights import Arrival, Flight, arrived, lost
from envfleet.executors.ray.lines import Lines
from envfleet.executors.ray.messages import PART_BYTES, ActionForm, Request, RowForm, glued, num_parts_for

# How long to wait on lines before Ray is asked whether a silent worker lives: a machine that lost its power ends no
# connection.
_HEARTBEAT_S = 1.0
# The same while some messages go through Ray, as they do after a line was lost: nothing waits for both at once.
_GLANCE_S = 0.002
# For Ray to say what became of a worker whose line ended.
_VERDICT_TIMEOUT_S = 60.0


class Tower:
    """The flights of all workers, and where their envs stand.

    phases: by env id. is_lost: envs that died with their worker and that nobody has asked to be rebuilt.
    """

    def __init__(
        self,
        ray: ModuleType,
        workers: Sequence[Worker],
        actions: ActionForm,
        rows: RowForm,
        step_timeout: float | None,
        has_lines: bool,
    ) -> None:
        num_envs = workers[-1].share.stop
        self._ray = ray
        self._actions = actions
        self._rows = rows
        self._step_timeout = step_timeout
        self.phases: NDArray[np.uint8] = np.full(num_envs, int(Phase.UNSTARTED), dtype=np.uint8)
        self.is_lost: NDArray[np.bool_] = np.zeros(num_envs, dtype=np.bool_)
        # Flights on lines that a call waits for: a set, since each of a thousand workers lands by itself.
        self._awaited: set[Flight] = set()
        self._has_lines = has_lines
        self._lines = Lines(ray)
        self.connect(workers)

    def connect(self, workers: Sequence[Worker]) -> None:
        """For workers that are new."""
        if self._has_lines:
            self._lines.connect(workers)

    # --- departures --------------------------------------------------------------------------

    def prepare(
        self,
        worker: Worker,
        env_ids: NDArray[np.int32],
        local_ids: NDArray[np.int32] | None,
        kind: int,
        actions: list[NDArray[Any]],
        extras: dict[str, Any],
    ) -> Flight:
        """A flight that is ready to be sent. local_ids: None for the whole share."""
        orders, worker.orders = worker.orders, []
        if orders:
            extras["orders"] = orders
        flight = Flight(worker, env_ids, kind)
        flight.number, worker.next_number = worker.next_number, worker.next_number + 1
        flight.num_parts = num_parts_for(self._rows.expected_bytes(len(env_ids)))
        acknowledged = worker.outstanding[0].number if worker.outstanding else flight.number
        request = Request(flight.number, acknowledged, kind, flight.num_parts, local_ids, actions, extras or None)
        flight.request = self._actions.encode(request)
        worker.outstanding.append(flight)
        return flight

    def lost_flight(self, worker: Worker, env_ids: NDArray[np.int32], kind: int) -> Flight:
        """A flight of envs that are no more: it is back at once, with faults."""
        flight = Flight(worker, env_ids, kind)
        self._lose(flight)
        return flight

    def send(self, flights: Iterable[Flight]) -> None:
        """Sends what was not sent yet. A request that was sent and not noted as such does no harm twice."""
        for flight in flights:
            worker = flight.worker
            if worker.line is not None and worker.line.is_lost:
                self._after_loss(worker)
            if flight.arrival is not None or flight.is_under_way:
                continue
            if worker.outstanding[0] is flight:
                flight.turn_at = time.monotonic()
            try:
                if worker.line is not None:
                    flight.line = worker.send_on_line(flight.number, flight.request)
                    if flight.line.has_unsent:
                        self._lines.note_slow(worker)
                else:
                    flight.line = None
                    self._awaited.discard(flight)
                    flight.refs = worker.call_in_parts(flight.request, flight.num_parts)
            except self._ray.exceptions.RayError as error:
                self.bury(worker, how_it_died(error))

    def _after_loss(self, worker: Worker) -> None:
        """Its line has ended: either it died, or what is under way is sent again, through Ray."""
        errors = self._ray.exceptions
        serving, worker.serving = worker.serving, None
        self._lines.end(worker)
        try:
            if serving is not None:
                self._ray.get(serving, timeout=_VERDICT_TIMEOUT_S)
        except errors.RayTaskError:
            pass  # it lives, and what it stumbled on comes again
        except errors.GetTimeoutError:
            self.bury(worker, "cannot be reached")
        except errors.RayError as error:
            self.bury(worker, how_it_died(error))
        self.send(list(worker.outstanding))

    # --- arrivals ------------------------------------------------------------------------------

    def await_all(self, flights: Sequence[Flight], deadline: float | None) -> bool:
        """Until all of them are back. False after the deadline."""
        self.send(flights)
        self._await_on_lines(flights)
        while self._awaited:
            self._listen(self._patience(self._awaited, deadline))
            if self._awaited and deadline is not None and time.monotonic() >= deadline:
                return False
        pending = [flight for flight in flights if flight.arrival is None]
        if not pending:
            return True
        if self._take_at_once(pending, deadline):
            return True
        return all(self._await_one(flight, deadline) for flight in pending)

    def await_some(self, flights: Sequence[Flight], count: int, deadline: float | None) -> bool:
        """Until so many of them are back. False after the deadline."""
        self.send(flights)
        pending = [flight for flight in flights if flight.arrival is None]
        count -= len(flights) - len(pending)
        if count <= 0:
            return True
        self._await_on_lines(pending)
        by_ray = {flight.refs[0]: flight for flight in pending if flight.refs}
        patience = self._patience(pending, deadline)
        if self._awaited:
            if self._listen(min(_GLANCE_S, patience or _GLANCE_S) if by_ray else patience):
                return True
            patience = 0.0
        if by_ray:
            num_wanted = 1 if self._awaited else count
            ready, _ = self._ray.wait(list(by_ray), num_returns=num_wanted, timeout=patience)
            landing = [by_ray[ref] for ref in ready]
            if landing and not self._take_at_once(landing, None):
                for flight in landing:
                    self._await_one(flight, None)
            if len(landing) >= num_wanted:
                return True
        self._give_up_the_overdue(pending)
        return deadline is None or time.monotonic() < deadline

    def _await_on_lines(self, flights: Iterable[Flight]) -> None:
        """Awaits those of these flights that are on lines, and takes in what came while nobody waited for it."""
        self._awaited = {flight for flight in flights if flight.line is not None}
        for worker in {flight.worker for flight in self._awaited}:
            self._take_in(worker)

    def _listen(self, patience: float | None) -> bool:
        """Waits on lines for any flight that is awaited; whether there was news of any worker."""
        heartbeat = _HEARTBEAT_S if patience is None else min(patience, _HEARTBEAT_S)
        news = self._lines.wait(heartbeat)
        if not news and heartbeat == _HEARTBEAT_S:
            news = self._gone()
        for worker in news:
            self._take_in(worker)
        if self._step_timeout is not None:
            self._give_up_the_overdue(list(self._awaited))
        return bool(news)

    def _gone(self) -> list[Worker]:
        """Workers that are awaited on their lines, and of whom Ray knows that they are not there."""
        awaited = {flight.worker for flight in self._awaited}
        serving = {worker.serving: worker for worker in awaited if worker.serving is not None}
        if not serving:
            return []
        ended, _ = self._ray.wait(list(serving), num_returns=1, timeout=0)
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
                if flight.number == number:  # else it was sent twice, and came twice
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
                if flight.arrival is None and deadline is not None and time.monotonic() >= deadline:
                    return False
            except errors.RayActorError as error:
                self.bury(flight.worker, how_it_died(error))
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
            self.bury(flight.worker, how_it_died(other))
            return
        if data:
            self._arrive(flight, [data])
        else:
            self.bury(flight.worker, f"failed: {error}")

    def _arrive(self, flight: Flight, parts: Sequence[Any]) -> None:
        arrival = arrived(flight, self._rows.decode(glued(parts)))
        self._note(flight, arrival)

    def _note(self, flight: Flight, arrival: Arrival) -> None:
        reply = arrival.reply
        assert reply is not None
        self.phases[flight.env_ids] = reply.phases
        for row, fault in arrival.faults.items():
            if reply.phases[row] != Phase.BROKEN:  # what could not be read here: its worker thinks that all is well
                self.phases[fault.env_id] = Phase.BROKEN
                worker = flight.worker
                worker.orders.append(("phase", fault.env_id - worker.share.start, int(Phase.BROKEN)))
        outstanding = flight.worker.outstanding
        outstanding.remove(flight)
        if outstanding:
            outstanding[0].turn_at = time.monotonic()
        self._awaited.discard(flight)
        flight.land(arrival)

    # --- deaths --------------------------------------------------------------------------------

    def bury(self, worker: Worker, how: str) -> None:
        """Notes a worker's death: what was under way on it is lost, and so are its envs."""
        self._lines.end(worker)
        worker.bury(how)
        self.is_lost[worker.share.start : worker.share.stop] = True
        flights = list(worker.outstanding)
        worker.outstanding.clear()
        for flight in flights:
            self._lose(flight)

    def _lose(self, flight: Flight) -> None:
        self._awaited.discard(flight)
        flight.land(lost(flight))
        self.phases[flight.env_ids] = Phase.BROKEN

    def find_dead(self, workers: Iterable[Worker]) -> None:
        """Looks which of these, that have nothing to do, died."""
        pings = [(worker, worker.ask("ping")) for worker in workers if not worker.is_dead]
        for worker, ref in pings:
            try:
                self._ray.get(ref)
            except self._ray.exceptions.RayError as error:
                self.bury(worker, how_it_died(error))

    def _patience(self, flights: Iterable[Flight], deadline: float | None) -> float | None:
        """How long to wait before somebody must be told, or given up."""
        until = deadline
        if self._step_timeout is not None:
            heads = {id(flight.worker): flight.worker.outstanding[0] for flight in flights}
            first = min(head.turn_at for head in heads.values()) + self._step_timeout
            until = first if until is None else min(first, until)
        return None if until is None else max(0.0, until - time.monotonic())

    def _give_up_the_overdue(self, flights: Iterable[Flight]) -> None:
        if self._step_timeout is None:
            return
        now = time.monotonic()
        for worker in {id(flight.worker): flight.worker for flight in flights}.values():
            if worker.outstanding and now - worker.outstanding[0].turn_at >= self._step_timeout:
                self.bury(worker, f"did not answer within step_timeout={self._step_timeout:g} s and was killed")
