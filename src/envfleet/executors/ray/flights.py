"""Flights: messages under way, what came back of them, and rows of several as one batch."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from envfleet.batch import Batch, Fault, FinalRows
from envfleet.executors.python.exception_report import message_of
from envfleet.executors.ray.actors import Worker
from envfleet.executors.ray.faults import fault_of
from envfleet.executors.ray.infos import Rows, Tree, joined
from envfleet.executors.ray.line import CallerLine
from envfleet.executors.ray.messages import RESET, Reply, RowForm
from envfleet.spaces import batched_leaf, join


@dataclass(eq=False)
class Flight:
    """A message to a worker. arrival: what became of it, when that is known.

    local_ids: None for the worker's whole share. number, num_parts, request: from the books, when it is sent.
    refs, line: how it was sent, through Ray or on a line; None until then.
    turn_at: since when nothing is before it on its worker.
    """

    worker: Worker
    env_ids: NDArray[np.int32]
    kind: int
    local_ids: NDArray[np.int32] | None = None
    actions: list[NDArray[Any]] = field(default_factory=list)
    extras: dict[str, Any] = field(default_factory=dict)
    number: int = -1
    num_parts: int = 1
    request: bytes = b""
    refs: list[Any] | None = None
    line: CallerLine | None = None
    turn_at: float = 0.0
    arrival: Arrival | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether its worker has it, or will have."""
        return self.refs is not None or (self.line is not None and not self.line.is_lost)

    def land(self, arrival: Arrival) -> None:
        """Notes what became of it."""
        self.arrival = arrival
        self.refs = self.line = None
        self.request = b""

    @property
    def method(self) -> str:
        """What its envs were asked to do."""
        return "reset" if self.kind == RESET else "step"


@dataclass(eq=False)
class Arrival:
    """The rows of a flight. reply: None when they were lost with their worker."""

    env_ids: NDArray[np.int32]
    reply: Reply | None
    tree: Tree = field(default_factory=dict)
    final_tree: Tree = field(default_factory=dict)
    mail: dict[int, dict[str, Any]] = field(default_factory=dict)  # what rows have beside their columns
    faults: dict[int, Fault] = field(default_factory=dict)  # by row


def arrived(flight: Flight, reply: Reply) -> Arrival:
    """What a reply holds. A letter that cannot be read here is its env's fault and nobody else's."""
    arrival = Arrival(flight.env_ids, reply)
    if reply.extras:
        arrival.tree, arrival.final_tree, letters, notes = pickle.loads(reply.extras)
        arrival.faults = {row: fault_of(note) for row, note in notes}
        for row, letter in letters.items():
            try:
                arrival.mail[row] = pickle.loads(letter)
            except Exception as error:
                what = f"what it sent cannot be read here: {message_of(error)}; send plain values in infos"
                arrival.faults[row] = Fault(int(flight.env_ids[row]), flight.method, what, cause=error)
    return arrival


def lost(flight: Flight) -> Arrival:
    """The rows of a flight whose worker died."""
    ids = flight.env_ids.tolist()
    faults = {row: flight.worker.fault(env_id, flight.method) for row, env_id in enumerate(ids)}
    return Arrival(flight.env_ids, None, faults=faults)


# Rows start to stop of an arrival go to these rows of a batch.
Piece = tuple[Arrival, slice, Rows]


class BatchMaker:
    """Makes batches of pieces."""

    def __init__(self, space: gymnasium.Space[Any], form: RowForm) -> None:
        self._form = form
        self._join: Callable[[Sequence[Any]], Any] = join(space)
        self._is_plain = len(form.leaves) == 1 and form.leaves[0].path == () and form.leaves[0].kind == "array"

    def batch(self, pieces: Sequence[Piece], env_ids: NDArray[np.int32]) -> Batch:
        """One batch of these pieces, whose rows are these envs'."""
        num_rows = len(env_ids)
        # Of rows that were lost, and of last rows where no episode ended, nothing else would be written.
        is_whole = all(arrival.reply is not None for arrival, _, _ in pieces)
        new = np.empty if is_whole else np.zeros
        obs: list[NDArray[Any]] = [new((num_rows, *leaf.shape), leaf.dtype) for leaf in self._form.arrays]
        reward, elapsed_step = new(num_rows, np.float64), new(num_rows, np.int32)
        terminated, truncated = new(num_rows, np.bool_), new(num_rows, np.bool_)
        is_simple = is_whole and not self._form.has_finals
        for arrival, take, put in pieces:
            reply = arrival.reply
            if reply is None:
                continue
            for column, own in zip(obs, reply.obs, strict=True):
                column[put] = own[take]
            reward[put] = reply.reward[take]
            elapsed_step[put] = reply.elapsed_step[take]
            terminated[put] = reply.terminated[take]
            truncated[put] = reply.truncated[take]
            is_simple = is_simple and not reply.extras
        if is_simple and self._is_plain:
            return Batch(obs[0], reward, terminated, truncated, env_ids, elapsed_step, {}, None, ())
        mail, faults = _by_row(pieces)
        infos = [(arrival.tree, take, put) for arrival, take, put in pieces if arrival.tree]
        info = joined(infos, {row: own["info"] for row, own in mail.items() if "info" in own}, num_rows)
        return Batch(
            self._structured(obs, {row: own["obs"] for row, own in mail.items() if "obs" in own}, num_rows),
            reward,
            terminated,
            truncated,
            env_ids,
            elapsed_step,
            info,
            self._final(pieces, mail, num_rows) if self._form.has_finals else None,
            faults,
        )

    def _final(self, pieces: Sequence[Piece], mail: dict[int, dict[str, Any]], num_rows: int) -> FinalRows:
        obs: list[NDArray[Any]] = [np.zeros((num_rows, *leaf.shape), leaf.dtype) for leaf in self._form.arrays]
        elapsed_step = np.zeros(num_rows, np.int32)
        for arrival, take, put in pieces:
            reply = arrival.reply
            if reply is None or not len(reply.final_rows):
                continue
            chosen = (reply.final_rows >= take.start) & (reply.final_rows < take.stop)
            places = np.arange(num_rows)[put][reply.final_rows[chosen] - take.start]
            for column, own in zip(obs, reply.final_obs, strict=True):
                column[places] = own[chosen]
            elapsed_step[places] = reply.final_elapsed[chosen]
        infos = [(arrival.final_tree, take, put) for arrival, take, put in pieces if arrival.final_tree]
        objects = {row: own["final_info"] for row, own in mail.items() if "final_info" in own}
        loose = {row: own["final_obs"] for row, own in mail.items() if "final_obs" in own}
        return FinalRows(self._structured(obs, loose, num_rows), elapsed_step, joined(infos, objects, num_rows))

    def _structured(self, arrays: Sequence[NDArray[Any]], loose: dict[int, list[Any]], num_rows: int) -> Any:
        """The observation of a batch from its columns and what has none."""
        if self._is_plain:
            return arrays[0]
        columns: list[Any] = []
        rest = iter(arrays)
        position = 0
        for leaf in self._form.leaves:
            if leaf.kind == "array":
                columns.append(next(rest))
            else:
                # A row whose env raised has none.
                values = [loose[row][position] if row in loose else None for row in range(num_rows)]
                columns.append(batched_leaf(leaf, values))
                position += 1
        return self._join(columns)


def _by_row(pieces: Sequence[Piece]) -> tuple[dict[int, dict[str, Any]], tuple[Fault, ...]]:
    """The mail and the faults of these pieces, by rows of the whole."""
    mail: dict[int, dict[str, Any]] = {}
    faults: dict[int, Fault] = {}
    for arrival, take, put in pieces:
        if not arrival.mail and not arrival.faults:
            continue
        places = range(put.start, put.stop) if isinstance(put, slice) else put
        for place, row in zip(places, range(take.start, take.stop), strict=True):
            if row in arrival.mail:
                mail[int(place)] = arrival.mail[row]
            if row in arrival.faults:
                faults[int(place)] = arrival.faults[row]
    return mail, tuple(faults[row] for row in sorted(faults))
