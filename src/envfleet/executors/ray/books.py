"""Books: which flights are under way on which worker, and where all envs stand.

Ctrl-C may come between any two lines here. So what makes a flight exist is one step, what lands it is one step, and
everything around those may be done again.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.autoreset import Phase
from envfleet.executors.ray.actors import Worker
from envfleet.executors.ray.flights import Arrival, Flight, lost
from envfleet.executors.ray.lines import Lines
from envfleet.executors.ray.messages import ActionForm, Request, RowForm, num_parts_for


class Books:
    """Of all workers.

    phases: by env id. is_lost: envs that died with their worker and that nobody has asked to be rebuilt.
    awaited: flights on lines that a call waits for; a set, since each of a thousand workers lands by itself.
    """

    def __init__(self, num_envs: int, lines: Lines, actions: ActionForm, rows: RowForm) -> None:
        self.phases: NDArray[np.uint8] = np.full(num_envs, int(Phase.UNSTARTED), dtype=np.uint8)
        self.is_lost: NDArray[np.bool_] = np.zeros(num_envs, dtype=np.bool_)
        self.awaited: set[Flight] = set()
        self._lines = lines
        self._actions = actions
        self._rows = rows

    def enter(self, flight: Flight) -> None:
        """Gives a flight its number and its place among its worker's. Once: entered flights stay as they are."""
        worker = flight.worker
        if flight in worker.outstanding:
            return
        number = worker.next_number
        worker.next_number = number + 1  # first: a number may be left out, but not given twice
        head = worker.head
        acknowledged = number if head is None else head.number
        orders = list(worker.orders)
        extras: dict[str, Any] = {**flight.extras, "orders": orders} if orders else flight.extras
        num_parts = num_parts_for(self._rows.expected_bytes(len(flight.env_ids)))
        flight.number, flight.num_parts, flight.turn_at = number, num_parts, time.monotonic()
        flight.request = self._actions.encode(
            Request(number, acknowledged, flight.kind, num_parts, flight.local_ids, flight.actions, extras or None)
        )
        worker.outstanding.append(flight)
        # Told twice, in case of an interruption here, they are obeyed once: they are numbered.
        worker.orders = worker.orders[len(orders) :]

    def land(self, flight: Flight, arrival: Arrival) -> None:
        """Notes what came back."""
        reply = arrival.reply
        assert reply is not None
        worker = flight.worker
        self.phases[flight.env_ids] = reply.phases
        for row, fault in arrival.faults.items():
            if reply.phases[row] != Phase.BROKEN:  # what could not be read here: its worker thinks that all is well
                self.phases[fault.env_id] = Phase.BROKEN
                worker.order("phase", fault.env_id - worker.share.start, int(Phase.BROKEN))
        self._close(flight, arrival)
        head = worker.head
        if head is not None:
            head.turn_at = time.monotonic()

    def bury(self, worker: Worker, how: str) -> None:
        """Notes a worker's death: what was under way on it is lost, and so are its envs."""
        self._lines.end(worker)
        worker.bury(how)
        self.is_lost[worker.share.start : worker.share.stop] = True
        for flight in list(worker.outstanding):
            self.lose(flight)

    def lose(self, flight: Flight) -> None:
        """Notes that nothing comes back of this."""
        self.phases[flight.env_ids] = Phase.BROKEN
        self._close(flight, lost(flight))

    def _close(self, flight: Flight, arrival: Arrival) -> None:
        flight.land(arrival)
        self.awaited.discard(flight)
        if flight in flight.worker.outstanding:
            flight.worker.outstanding.remove(flight)
