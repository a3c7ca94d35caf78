"""Traffic: what was asked of the envs and is not handed out yet, in order or as it comes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.batch import Batch
from envfleet.executors.ray.books import Books
from envfleet.executors.ray.flights import Arrival, BatchMaker, Flight
from envfleet.executors.ray.infos import Rows
from envfleet.executors.ray.shares import Shares
from envfleet.executors.ray.tower import Tower
from envfleet.spaces import Leaf
from envfleet.validation import LeafColumns


class Traffic:
    """Flights from their departure to the batch that they are part of.

    is_async: batches of the rows that came first, batch_size of them; else all that was asked at once is one batch.
    """

    def __init__(
        self,
        tower: Tower,
        books: Books,
        shares: Shares,
        batches: BatchMaker,
        action_leaves: Sequence[Leaf],
        batch_size: int,
        is_async: bool,
    ) -> None:
        self._tower = tower
        self._books = books
        self._shares = shares
        self._batches = batches
        self._action_leaves = action_leaves
        self._batch_size = batch_size
        self._is_async = is_async
        # A batch in order, with the rows where each flight's go; and asynchronous flights, then their rows.
        self._ordered: tuple[NDArray[np.int32], list[tuple[Flight, Rows]]] | None = None
        self._loose: list[Flight] = []
        self._landed: deque[tuple[Arrival, slice]] = deque()

    @property
    def has_ordered(self) -> bool:
        """Whether a batch in order is under way."""
        return self._ordered is not None

    # What is in flight follows from these alone: beside them, a count could be left behind by an interruption.

    @property
    def num_in_flight(self) -> int:
        """How many envs are."""
        num_ordered = len(self._ordered[0]) if self._ordered is not None else 0
        num_loose = sum(len(flight.env_ids) for flight in self._loose)
        return int(num_ordered + num_loose + sum(rows.stop - rows.start for _, rows in self._landed))

    def in_flight(self) -> NDArray[np.bool_]:
        """Which envs are."""
        is_in_flight: NDArray[np.bool_] = np.zeros(len(self._shares.all_ids), dtype=np.bool_)
        if self._ordered is not None:
            is_in_flight[self._ordered[0]] = True
        for flight in self._loose:
            is_in_flight[flight.env_ids] = True
        for arrival, rows in self._landed:
            is_in_flight[arrival.env_ids[rows]] = True
        return is_in_flight

    # --- departures ------------------------------------------------------------------------

    def depart(self, kind: int, env_ids: Any, actions: LeafColumns | None, options: Mapping[str, Any] | None) -> None:
        """Sends a request to each worker concerned."""
        if not self._is_async:
            self.depart_in_order(kind, env_ids, actions, options)
            return
        flights = [flight for flight, _ in self._flights(kind, env_ids, actions, options)]
        self._loose += flights
        self._tower.send(flights)

    def depart_in_order(
        self, kind: int, env_ids: Any, actions: LeafColumns | None, options: Mapping[str, Any] | None
    ) -> None:
        """The same for a batch in the order of env_ids."""
        flights = self._flights(kind, env_ids, actions, options)
        ids = self._shares.all_ids if env_ids is None else env_ids
        # Noted before it is sent: after Ctrl-C in between, recv() sends the rest.
        self._ordered = (ids, flights)
        self._tower.send(flight for flight, _ in flights)

    def _flights(
        self, kind: int, env_ids: Any, actions: LeafColumns | None, options: Mapping[str, Any] | None
    ) -> list[tuple[Flight, Rows]]:
        """A message for each worker concerned, and which rows of the batch its rows are."""
        extras = {"options": dict(options)} if options else {}
        made: list[tuple[Flight, Rows]] = []
        for worker, own, is_whole, rows in self._shares.by_worker(env_ids):
            is_lost = self._books.is_lost[own]
            if is_lost.any():
                # The rows of envs that are no more come back at once, as faults.
                positions = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
                gone = Flight(worker, np.ascontiguousarray(own[is_lost]), kind)
                self._books.lose(gone)
                made.append((gone, positions[is_lost]))
                own, is_whole, rows = np.ascontiguousarray(own[~is_lost]), False, positions[~is_lost]
                if not len(own):
                    continue
            local_ids = None if is_whole else own - np.int32(worker.share.start)
            columns, loose = self._columns(actions, rows)
            mine = {**extras, "actions": loose} if loose else extras
            made.append((Flight(worker, own, kind, local_ids, columns, mine), rows))
        return made

    def _columns(self, actions: LeafColumns | None, rows: Rows) -> tuple[list[NDArray[Any]], list[Any]]:
        if actions is None:
            return [], []
        arrays, loose = [], []
        for leaf, column in zip(self._action_leaves, actions, strict=True):
            if leaf.kind == "array":
                arrays.append(column[rows])
            else:
                picked = range(rows.start, rows.stop) if isinstance(rows, slice) else rows
                loose.append([column[row] for row in picked])
        return arrays, loose

    # --- arrivals --------------------------------------------------------------------------

    def ordered_batch(self, timeout_s: float) -> Batch | None:
        """The batch in order, when all of it is back; None when the time was over before."""
        assert self._ordered is not None
        env_ids, flights = self._ordered
        if not self._tower.await_all([flight for flight, _ in flights], _deadline(timeout_s)):
            return None
        pieces = [
            (flight.arrival, slice(0, len(flight.env_ids)), rows)
            for flight, rows in flights
            if flight.arrival is not None
        ]
        batch = self._batches.batch(pieces, env_ids)
        self._ordered = None
        return batch

    def first_batch(self, timeout_s: float) -> Batch | None:
        """A batch of the rows that came first; None when the time was over before there were enough."""
        wanted = self._batch_size
        deadline = _deadline(timeout_s)
        self._note_landed()
        while (have := sum(rows.stop - rows.start for _, rows in self._landed)) < wanted:
            # As many as it takes at least: after each, the next may already be there.
            largest = max(len(flight.env_ids) for flight in self._loose)
            is_in_time = self._tower.await_some(self._loose, -(-(wanted - have) // largest), deadline)
            self._note_landed()
            if not is_in_time and sum(rows.stop - rows.start for _, rows in self._landed) < wanted:
                return None
        pieces, env_ids, filled = [], [], 0
        rest = deque(self._landed)
        while filled < wanted:
            arrival, rows = rest[0]
            count = min(rows.stop - rows.start, wanted - filled)
            taken = slice(rows.start, rows.start + count)
            pieces.append((arrival, taken, slice(filled, filled + count)))
            env_ids.append(arrival.env_ids[taken])
            filled += count
            if taken.stop == rows.stop:
                rest.popleft()
            else:
                rest[0] = (arrival, slice(taken.stop, rows.stop))
        ids = np.concatenate(env_ids)
        batch = self._batches.batch(pieces, ids)
        self._landed = rest
        return batch

    def _note_landed(self) -> None:
        for flight in [flight for flight in self._loose if flight.arrival is not None]:
            assert flight.arrival is not None
            if all(arrival is not flight.arrival for arrival, _ in self._landed):
                self._landed.append((flight.arrival, slice(0, len(flight.env_ids))))
            self._loose.remove(flight)

    def abandon(self, timeout_s: float) -> bool:
        """Waits for everything, and drops it. False when the time was over before."""
        flights = [flight for flight, _ in self._ordered[1]] if self._ordered is not None else []
        if not self._tower.await_all([*flights, *self._loose], _deadline(timeout_s)):
            return False
        self._ordered = None
        self._loose.clear()
        self._landed.clear()
        return True


def _deadline(timeout_s: float) -> float | None:
    return None if timeout_s < 0 else time.monotonic() + timeout_s
