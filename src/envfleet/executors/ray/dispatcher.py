"""Dispatcher: sends requests to workers and collects their responses, whatever becomes of the workers.

It alone owns the in-flight state: which requests are pending, which responses are complete and not yet in a batch, and
the phase of every env.

An exception of a signal handler, such as Ctrl-C, that ends a wait has changed nothing. Anywhere else it leaves the pool
interrupted, and nothing that is recorded here is trusted then: drop_pending() asks the workers.
"""

from __future__ import annotations

import contextlib
import pickle
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

import cloudpickle
import gymnasium
import numpy as np
from numpy.typing import NDArray

from envfleet import _native
from envfleet.core.autoreset import Phase
from envfleet.core.batch import Batch, Fault
from envfleet.core.errors import EnvfleetError
from envfleet.core.options import PoolConfig
from envfleet.core.statistics import PoolStats
from envfleet.core.tracebacks import message_of
from envfleet.core.validation import LeafColumns
from envfleet.executors.ray.batches import BatchBuilder, LastObservations, Response, Rows, response_from_columns
from envfleet.executors.ray.connection import CallerConnection
from envfleet.executors.ray.messages import (
    RESET,
    RemoteCallError,
    Request,
    RequestCodec,
    ResponseCodec,
    decode_result,
)
from envfleet.executors.ray.supervisor import HEARTBEAT_S, Connections, Worker, WorkerTable, describe_death

# How long what an interrupted call has sent may take to finish.
_GRACE_S = 1.0
# How long to wait on connections while other messages go through Ray, as they do after a connection was lost: nothing
# can wait for both at once.
_MIXED_WAIT_S = 0.002
# How long an actor may be "unavailable", as Ray calls it when its own connection broke, and how often to look.
_UNAVAILABLE_S = 5.0
_RETRY_S = 0.2
# The slices in which a response is fetched that the object store has lost: small enough for Ray to need no store.
_SLICE_BYTES = 96_000

_T = TypeVar("_T")


@dataclass(eq=False)
class PendingRequest:
    """A request to one worker, from its preparation to its response.

    number, data: as it is sent. ref, connection: how it was sent, through Ray or on a connection; None before that.
    started_at: when it became the worker's oldest.
    """

    worker: Worker
    env_ids: NDArray[np.int32]
    kind: int
    number: int = -1
    data: bytes = b""
    ref: Any = None
    connection: CallerConnection | None = None
    started_at: float = 0.0
    response: Response | None = None

    @property
    def method(self) -> str:
        """The method of the envs that it calls."""
        return "reset" if self.kind == RESET else "step"

    def complete(self, response: Response) -> None:
        """Record the response."""
        self.response = response
        self.ref = self.connection = None
        self.data = b""


class Dispatcher:
    """Requests from their preparation to the batch they are part of, on connections or else through Ray.

    phases: by env id. is_lost: envs that died with their worker and have not been rebuilt yet.
    """

    def __init__(
        self,
        ray: ModuleType,
        table: WorkerTable,
        connections: Connections,
        observation_space: gymnasium.Space[Any],
        requests: RequestCodec,
        responses: ResponseCodec,
        config: PoolConfig,
        guard: _native.CallGuard,
        on_stats: Callable[[Worker, PoolStats, int], None],
    ) -> None:
        """on_stats is called with the statistics that a response carries, and their age in nanoseconds."""
        num_envs = len(table.all_ids)
        self.phases: NDArray[np.uint8] = np.full(num_envs, int(Phase.UNSTARTED), dtype=np.uint8)
        self.is_lost: NDArray[np.bool_] = np.zeros(num_envs, dtype=np.bool_)
        self._ray = ray
        self._table = table
        self._connections = connections
        self._requests = requests
        self._responses = responses
        # With on_error="restart".
        self.last_obs = LastObservations(responses, num_envs) if config.restarts_envs else None
        self._batches = BatchBuilder(observation_space, responses, self.last_obs)
        self._batch_size = config.batch_size
        self._is_async = config.is_async
        self._step_timeout_s = config.step_timeout
        self._guard = guard
        self._on_stats = on_stats
        # A batch in order, with the batch rows of each request.
        self._ordered: tuple[NDArray[np.int32], list[tuple[PendingRequest, Rows]]] | None = None
        # Asynchronous requests, and the rows of their responses that are not part of a batch yet, oldest first.
        self._unordered: list[PendingRequest] = []
        self._ready: deque[tuple[Response, slice]] = deque()
        # Requests on connections that the present call waits for.
        self._awaited: set[PendingRequest] = set()
        self._checked_at = time.monotonic()  # when Ray was last asked which workers are alive
        # Of rows that left in a batch, by env id, until clear_faults().
        self._unreported: dict[int, Fault] = {}
        self._is_waiting = False

    # --- what is in flight -------------------------------------------------------------------

    @property
    def has_ordered_batch(self) -> bool:
        """Whether a batch in order is in flight."""
        return self._ordered is not None

    @property
    def num_in_flight(self) -> int:
        """The number of envs that are in flight."""
        num_ordered = len(self._ordered[0]) if self._ordered is not None else 0
        return int(num_ordered + sum(len(request.env_ids) for request in self._unordered) + self._num_ready)

    @property
    def _num_ready(self) -> int:
        return sum(rows.stop - rows.start for _, rows in self._ready)

    def in_flight(self) -> NDArray[np.bool_]:
        """Return which envs are in flight."""
        is_in_flight: NDArray[np.bool_] = np.zeros(len(self._table.all_ids), dtype=np.bool_)
        if self._ordered is not None:
            is_in_flight[self._ordered[0]] = True
        for request in self._unordered:
            is_in_flight[request.env_ids] = True
        for response, rows in self._ready:
            is_in_flight[response.env_ids[rows]] = True
        return is_in_flight

    def _forget_requests(self) -> None:
        self._ordered = None
        self._unordered = []
        self._ready = deque()
        self._awaited = set()
        for worker in self._table.workers:
            worker.pending.clear()

    # --- interruptions -----------------------------------------------------------------------

    @contextlib.contextmanager
    def interruptible(self, finish: Callable[[float | None], Any] | None = None) -> Iterator[None]:
        """Handle an exception of a signal handler as the rule of interruption says.

        finish(deadline): waits for what was sent, and returns None after the deadline. It has a second, which another
        exception ends at once, and the call counts as done if that was enough. None: the call has sent nothing that
        changes envs, and an exception that ends its wait leaves the pool as it was.
        """
        self._is_waiting = False
        try:
            yield
        except EnvfleetError:
            raise
        except BaseException:
            was_waiting, self._is_waiting = self._is_waiting, False
            if was_waiting and finish is None:
                raise
            self._guard.is_interrupted = True
            if was_waiting and finish is not None and finish(_deadline(_GRACE_S)) is not None:
                self._guard.is_interrupted = False
            raise

    def _wait(self, wait: Callable[..., _T], *args: Any, **kwargs: Any) -> _T:
        """Return wait(*args, **kwargs). An exception of a signal handler that ends it has changed nothing."""
        self._is_waiting = True
        try:
            result = wait(*args, **kwargs)
        except self._ray.exceptions.RayError:
            self._is_waiting = False
            raise
        self._is_waiting = False
        return result

    # --- sending -------------------------------------------------------------------------------

    def send(self, kind: int, env_ids: Any, actions: LeafColumns | None, options: Mapping[str, Any] | None) -> None:
        """Send one request to each worker concerned."""
        prepared = self._prepare(kind, env_ids, actions, options)
        with self.interruptible():
            self._send(env_ids, prepared, is_ordered=not self._is_async)

    def send_and_recv(
        self,
        kind: int,
        env_ids: Any,
        actions: LeafColumns | None,
        options: Mapping[str, Any] | None,
        timeout_s: float,
        *,
        is_ordered: bool,
    ) -> Batch | None:
        """Send one request to each worker concerned, and return a batch; None after the timeout.

        is_ordered: the batch has the rows of env_ids in this order, instead of those that arrive first.
        """
        prepared = self._prepare(kind, env_ids, actions, options)

        def finish(deadline: float | None) -> Batch | None:
            batch = self._recv(deadline)
            if batch is not None and kind == RESET:
                self._guard.end_parts()  # a reset is the last of them
            return batch

        with self.interruptible(finish):
            self._send(env_ids, prepared, is_ordered)
            return self._recv(_deadline(timeout_s))

    def _prepare(
        self, kind: int, env_ids: Any, actions: LeafColumns | None, options: Mapping[str, Any] | None
    ) -> list[tuple[PendingRequest, Rows]]:
        """Return a request for each worker concerned, with the batch rows of its envs.

        Raises before anything is sent if actions or options cannot be pickled.
        """
        extras = {"options": dict(options)} if options else {}
        prepared: list[tuple[PendingRequest, Rows]] = []
        for worker, ids, is_all, rows in self._table.split(env_ids):
            is_lost = self.is_lost[ids]
            if is_lost.any():
                # The rows of lost envs come back at once, as faults.
                positions = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
                lost = PendingRequest(worker, np.ascontiguousarray(ids[is_lost]), kind)
                self._lose(lost)
                prepared.append((lost, positions[is_lost]))
                ids, is_all, rows = np.ascontiguousarray(ids[~is_lost]), False, positions[~is_lost]
                if not len(ids):
                    continue
            local_ids = None if is_all else ids - np.int32(worker.envs.start)
            columns, objects = self._action_rows(actions, rows)
            worker_extras = {**extras, "actions": objects} if objects else extras
            prepared.append((self._encoded(worker, ids, kind, local_ids, columns, worker_extras), rows))
        return prepared

    def _encoded(
        self,
        worker: Worker,
        env_ids: NDArray[np.int32],
        kind: int,
        local_ids: NDArray[np.int32] | None,
        actions: list[NDArray[Any]],
        extras: Mapping[str, Any],
    ) -> PendingRequest:
        number = worker.next_number
        worker.next_number += 1
        current = worker.current
        acknowledged = number if current is None else current.number
        if worker.commands:
            extras = {**extras, "commands": worker.commands}
        data = self._requests.encode(Request(number, acknowledged, kind, local_ids, actions, extras or None))
        return PendingRequest(worker, env_ids, kind, number, data)

    def _action_rows(self, actions: LeafColumns | None, rows: Rows) -> tuple[list[NDArray[Any]], list[Any]]:
        """Return these rows of the array leaves, and of the others."""
        if actions is None:
            return [], []
        arrays, objects = [], []
        for leaf, column in zip(self._requests.leaves, actions, strict=True):
            if leaf.kind == "array":
                arrays.append(column[rows])
            else:
                positions = range(rows.start, rows.stop) if isinstance(rows, slice) else rows
                objects.append([column[row] for row in positions])
        return arrays, objects

    def _send(self, env_ids: Any, prepared: list[tuple[PendingRequest, Rows]], is_ordered: bool) -> None:
        """Send these requests and record them."""
        for request, _ in prepared:
            if request.kind == RESET:
                self.forget_faults(request.env_ids)
            if request.response is None:  # else its envs are lost
                self._send_first(request)
        if is_ordered:
            self._ordered = (self._table.all_ids if env_ids is None else env_ids, prepared)
        else:
            self._unordered += [request for request, _ in prepared]

    def _send_first(self, request: PendingRequest) -> None:
        """Send a request for the first time."""
        worker = request.worker
        if worker.connection is not None and worker.connection.is_lost:
            self._on_connection_lost(worker)
        if worker.is_dead:  # since it was prepared
            self._lose(request)
            return
        if worker.connection is None:
            self._connections.reconnect_if_due(worker)
        request.started_at = time.monotonic()
        worker.pending.append(request)
        self._send_one(request)
        worker.commands = []

    def _send_one(self, request: PendingRequest) -> None:
        worker = request.worker
        try:
            if worker.connection is not None and not worker.connection.is_lost:
                request.connection = worker.send(request.number, request.data)
                if request.connection.has_unsent:
                    self._connections.watch_unsent(request.connection)
            else:
                request.connection = None
                self._awaited.discard(request)
                request.ref = worker.handle.run.remote(request.data)
        except self._ray.exceptions.RayError as error:
            self.mark_dead(worker, describe_death(error))

    def _on_connection_lost(self, worker: Worker) -> None:
        """Send everything pending again, through Ray. Whether the worker is alive is not known yet."""
        self._connections.note_loss(worker)
        if worker.current is not None:
            worker.current.started_at = time.monotonic()
        for request in list(worker.pending):
            if request.response is None and request.ref is None:
                self._send_one(request)

    # --- batches ---------------------------------------------------------------------------------

    def recv(self, timeout_s: float) -> Batch | None:
        """Return the batch in order, or else one of the rows that arrived first; None after the timeout."""
        with self.interruptible():
            return self._recv(_deadline(timeout_s))

    def _recv(self, deadline: float | None) -> Batch | None:
        batch = self._recv_ordered(deadline) if self._ordered is not None else self._recv_first(deadline)
        if batch is not None and batch.faults:
            self._unreported.update({fault.env_id: fault for fault in batch.faults})
            self._guard.has_unreported = True
        return batch

    def _recv_ordered(self, deadline: float | None) -> Batch | None:
        assert self._ordered is not None
        env_ids, requests = self._ordered
        if not self._await_all([request for request, _ in requests], deadline):
            return None
        pieces = [
            (request.response, slice(0, len(request.env_ids)), rows)
            for request, rows in requests
            if request.response is not None
        ]
        batch = self._batches.build(pieces, env_ids)
        self._ordered = None
        return batch

    def _recv_first(self, deadline: float | None) -> Batch | None:
        size = self._batch_size
        self._collect_ready()
        while (num_ready := self._num_ready) < size:
            # The least number of responses that can be enough: after each, the next may be there already.
            largest = max(len(request.env_ids) for request in self._unordered)
            is_in_time = self._await_some(self._unordered, -(-(size - num_ready) // largest), deadline)
            self._collect_ready()
            if not is_in_time and self._num_ready < size:
                return None
        pieces, env_ids, num_filled = [], [], 0
        while num_filled < size:
            response, rows = self._ready.popleft()
            count = min(rows.stop - rows.start, size - num_filled)
            taken = slice(rows.start, rows.start + count)
            pieces.append((response, taken, slice(num_filled, num_filled + count)))
            env_ids.append(response.env_ids[taken])
            num_filled += count
            if taken.stop < rows.stop:
                self._ready.appendleft((response, slice(taken.stop, rows.stop)))
        return self._batches.build(pieces, np.concatenate(env_ids))

    def _collect_ready(self) -> None:
        for request in self._unordered:
            if request.response is not None:
                self._ready.append((request.response, slice(0, len(request.env_ids))))
        self._unordered = [request for request in self._unordered if request.response is None]

    def unreported_faults(self) -> tuple[Fault, ...]:
        """Return the faults of rows that left in a batch and have not been forgotten yet, by env id."""
        return tuple(self._unreported[env_id] for env_id in sorted(self._unreported))

    def forget_faults(self, env_ids: Iterable[int]) -> None:
        """Forget the faults of these envs."""
        if self._unreported:
            for env_id in env_ids:
                self._unreported.pop(int(env_id), None)
            self._guard.has_unreported = bool(self._unreported)

    def drop_pending(self, timeout_s: float) -> bool:
        """Wait for everything in flight and discard it. Returns False after the timeout."""
        with self.interruptible():
            deadline = _deadline(timeout_s)
            if self._guard.is_interrupted:
                return self._synchronize(deadline)
            ordered = [request for request, _ in self._ordered[1]] if self._ordered is not None else []
            if not self._await_all([*ordered, *self._unordered], deadline):
                return False
            self._forget_requests()
            return True

    def _synchronize(self, deadline: float | None) -> bool:
        """Wait until the workers have finished what interrupted calls have sent, and learn the phases of their envs.

        Returns False after the deadline. A worker that does not answer within step_timeout is killed.
        """
        self._forget_requests()
        self._connections.close_all(self._table.workers)  # which the workers notice once they have answered
        asked = {}
        for worker in self._table.workers:
            if worker.is_dead:
                self.mark_dead(worker, worker.death)
                continue
            local_ids = list(range(len(worker.envs)))
            asked[worker] = worker.call("call", worker.commands, "phases", cloudpickle.dumps(()), local_ids)
            worker.commands = []
        overdue_at = None if self._step_timeout_s is None else time.monotonic() + self._step_timeout_s
        for worker, ref in asked.items():
            while not self._wait(self._ray.wait, [ref], timeout=self._slice(deadline, overdue_at))[0]:
                if _is_over(overdue_at):
                    self.mark_dead(worker, self._overdue_death)
                    break
                if _is_over(deadline):
                    return False
            if worker.is_dead:
                continue
            try:
                _, phases = decode_result(self._ray.get(ref), "")
                self.phases[worker.envs.start : worker.envs.stop] = phases
            except (self._ray.exceptions.RayError, RemoteCallError) as error:
                self.mark_dead(worker, describe_death(error))
        self._connections.connect(self._table.workers)
        return True

    def _slice(self, *deadlines: float | None) -> float:
        """Return how long to wait for Ray at a time. Raises once close() has cancelled the call."""
        self._guard.check_not_cancelled()
        until = min([time.monotonic() + HEARTBEAT_S, *(own for own in deadlines if own is not None)])
        return max(0.0, until - time.monotonic())

    # --- receiving -------------------------------------------------------------------------------

    def _await_all(self, requests: Sequence[PendingRequest], deadline: float | None) -> bool:
        """Wait until all of them are complete. False after the deadline."""
        self._await_on_connections(requests)
        while self._awaited:
            self._poll_connections(self._wait_limit(self._awaited, deadline))
            if self._awaited and _is_over(deadline):
                return False
        incomplete = [request for request in requests if request.response is None]
        if not incomplete or self._get_all(incomplete, deadline):
            return True
        return all(self._get_one(request, deadline) for request in incomplete)

    def _await_some(self, requests: Sequence[PendingRequest], count: int, deadline: float | None) -> bool:
        """Wait until so many of them are complete, or there is other news. False after the deadline."""
        self._await_on_connections(requests)
        incomplete = [request for request in requests if request.response is None]
        count -= len(requests) - len(incomplete)
        if count <= 0:
            return True
        by_ref = {request.ref: request for request in incomplete if request.ref is not None}
        limit_s = self._wait_limit(incomplete, deadline)
        if self._awaited:
            self._poll_connections(min(_MIXED_WAIT_S, limit_s or _MIXED_WAIT_S) if by_ref else limit_s)
            limit_s, count = 0.0, 1
        if by_ref:
            num_returns = min(count, len(by_ref))
            ready, _ = self._wait(self._ray.wait, list(by_ref), num_returns=num_returns, timeout=limit_s)
            arrived = [by_ref[ref] for ref in ready if by_ref[ref].response is None]
            if arrived and not self._get_all(arrived, None):
                for request in arrived:
                    self._get_one(request, None)
        self._kill_overdue(incomplete)
        return not _is_over(deadline)

    def _await_on_connections(self, requests: Iterable[PendingRequest]) -> None:
        """Await those of these requests that are on connections, and take in what has already arrived."""
        self._awaited = {request for request in requests if request.connection is not None}
        for worker in {request.worker for request in self._awaited}:
            self._take_received(worker)

    def _poll_connections(self, limit_s: float | None) -> None:
        """Wait on connections for any awaited request, and take in what has arrived."""
        workers = self._pump_connections(HEARTBEAT_S if limit_s is None else min(limit_s, HEARTBEAT_S))
        if time.monotonic() - self._checked_at >= HEARTBEAT_S:
            workers += self._close_dead_connections()
        for worker in workers:
            self._take_received(worker)
        self._kill_overdue(list(self._awaited))

    def _pump_connections(self, limit_s: float) -> list[Worker]:
        """Wait until connections have news, a loss included; return their workers."""
        return self._connections.pump(self._wait(self._connections.poll, limit_s))

    def _close_dead_connections(self) -> list[Worker]:
        """Close the connections of awaited workers that, as Ray knows, no longer serve them; return those workers."""
        self._checked_at = time.monotonic()
        awaited = {request.worker for request in self._awaited}
        by_ref = {worker.serve_ref: worker for worker in awaited if worker.serve_ref is not None}
        if not by_ref:
            return []
        ended, _ = self._ray.wait(list(by_ref), num_returns=len(by_ref), timeout=0)
        workers = [by_ref[ref] for ref in ended]
        for worker in workers:
            if worker.connection is not None:
                worker.connection.close()
        return workers

    def _take_received(self, worker: Worker) -> None:
        """Take in the frames that a worker's connection has received, and its loss."""
        connection = worker.connection
        if connection is None:
            return
        while connection.received:
            number, data = connection.received.popleft()
            self._receive(next(request for request in worker.pending if request.number == number), data)
        if connection.is_lost:
            self._on_connection_lost(worker)

    def _get_all(self, requests: Sequence[PendingRequest], deadline: float | None) -> bool:
        """Get all responses from Ray in one call, the common case. False if each needs a closer look."""
        refs = [request.ref for request in requests if request.ref is not None]
        try:
            responses = self._wait(self._ray.get, refs, timeout=self._wait_limit(requests, deadline))
        except self._ray.exceptions.RayError:
            return False
        for request, data in zip(requests, responses, strict=True):
            self._receive(request, memoryview(data))
        return True

    def _get_one(self, request: PendingRequest, deadline: float | None) -> bool:
        """Get one response from Ray, or find out why there is none. False after the deadline."""
        errors = self._ray.exceptions
        while request.response is None:
            try:
                data = self._wait(self._ray.get, request.ref, timeout=self._wait_limit([request], deadline))
                self._receive(request, memoryview(data))
            except errors.GetTimeoutError:
                self._kill_overdue([request])
                if request.response is None and _is_over(deadline):
                    return False
            except errors.RayActorError as error:
                self.mark_dead(request.worker, describe_death(error))
            except errors.RayError as error:
                self._fetch_again(request, error)
        return True

    def _fetch_again(self, request: PendingRequest, error: Exception) -> None:
        """Fetch a response that Ray has lost in slices that need no object store: the actor still has it."""
        data = b""
        try:
            while True:
                end = len(data) + _SLICE_BYTES
                part = self._ray.get(request.worker.call("read_response", request.number, len(data), end))
                data += part
                if len(part) < _SLICE_BYTES:
                    break
        except self._ray.exceptions.RayError as other:
            self.mark_dead(request.worker, describe_death(other))
            return
        if data:
            self._receive(request, memoryview(data))
        else:
            # The text of Ray's own error would be the whole traceback of the actor.
            self.mark_dead(request.worker, f"failed: {message_of(getattr(error, 'cause', None) or error)}")

    def _receive(self, request: PendingRequest, data: memoryview) -> None:
        """Decode a response and record it."""
        columns = self._responses.decode(data)
        self._record(request, response_from_columns(request.env_ids, request.method, columns), columns.phases)

    def _record(self, request: PendingRequest, response: Response, phases: NDArray[Any]) -> None:
        worker = request.worker
        if self.last_obs is not None:
            self.last_obs.keep(response)
        self.phases[request.env_ids] = phases
        for row, fault in response.faults.items():
            if phases[row] != Phase.BROKEN:  # it could not be unpickled here; the worker does not know about the fault
                self.phases[fault.env_id] = Phase.BROKEN
                worker.defer("phase", fault.env_id - worker.envs.start, int(Phase.BROKEN))
        self._complete(request, response)
        if response.stats:
            self._on_stats(worker, *pickle.loads(response.stats))
        current = worker.current
        if current is not None:
            current.started_at = time.monotonic()

    def _complete(self, request: PendingRequest, response: Response) -> None:
        request.complete(response)
        self._awaited.discard(request)
        if request in request.worker.pending:
            request.worker.pending.remove(request)

    # --- lost workers ----------------------------------------------------------------------------

    def mark_dead(self, worker: Worker, death: str) -> None:
        """Record the death of a worker: everything pending on it is lost, and so are its envs."""
        self._connections.close(worker)
        worker.mark_dead(death)
        self.is_lost[worker.envs.start : worker.envs.stop] = True
        for request in list(worker.pending):
            self._lose(request)

    def _lose(self, request: PendingRequest) -> None:
        """Complete a request whose worker died: every row is a fault."""
        self.phases[request.env_ids] = Phase.BROKEN
        env_ids = request.env_ids.tolist()
        faults = {row: request.worker.fault(env_id, request.method) for row, env_id in enumerate(env_ids)}
        self._complete(request, Response(request.env_ids, None, faults=faults))

    def find_dead(self, workers: Iterable[Worker]) -> None:
        """Find out which of these idle workers have died."""
        pings = [(worker, worker.call("ping")) for worker in workers if not worker.is_dead]
        for worker, ref in pings:
            try:
                self.result_of(worker, ref)
            except self._ray.exceptions.RayError as error:
                self.check_alive(worker, error)

    def call_all(self, calls: Mapping[Worker, tuple[str, bytes, list[int]]]) -> dict[Worker, Any]:
        """Make these calls of EnvActor.call(), all at once; return what the workers answered, or the RayError."""
        refs: dict[Worker, Any] = {}
        answers: dict[Worker, Any] = {}

        def finish(deadline: float | None) -> dict[Worker, Any] | None:
            for worker, ref in refs.items():
                if worker in answers:
                    continue
                try:
                    answer = self.result_of(worker, ref, deadline)
                except self._ray.exceptions.RayError as error:
                    answer = error
                if answer is None:
                    return None
                answers[worker] = answer
            return answers

        with self.interruptible(finish):
            for worker, (method, arguments, local_ids) in calls.items():
                refs[worker] = worker.call("call", worker.commands, method, arguments, local_ids)
                worker.commands = []
            finish(None)
        return answers

    def result_of(self, worker: Worker, ref: Any, deadline: float | None = None) -> Any:
        """Return the result of a call through Ray, which runs after everything pending; None after the deadline.

        Raises RayError. step_timeout applies to what is pending here as well: a call behind a stuck step would never
        return.
        """
        while True:
            limit_s = self._wait_limit([worker.current] if worker.current is not None else [], deadline)
            limit_s = HEARTBEAT_S if limit_s is None else min(limit_s, HEARTBEAT_S)
            if self._wait(self._ray.wait, [ref], timeout=limit_s)[0]:
                return self._ray.get(ref)
            if _is_over(deadline):
                return None
            self._update(worker)

    def _update(self, worker: Worker) -> None:
        """Take in the responses of a worker that no call waits for, and kill it if it is overdue."""
        for other in self._pump_connections(0.0):
            self._take_received(other)
        while (current := worker.current) is not None and self._has_response(current):
            self._get_one(current, None)
        if current is not None:
            self._kill_overdue([current])

    def check_alive(self, worker: Worker, error: Exception) -> bool:
        """Return whether a worker is alive after this error of a call through Ray; if not, record its death.

        Ray also raises if a result does not fit into the object store or is lost with it, and if an actor cannot be
        reached for a moment: then the envs are still there.
        """
        if self._is_alive(worker, error):
            return True
        self.mark_dead(worker, describe_death(error))
        return False

    def _is_alive(self, worker: Worker, error: Exception) -> bool:
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
                self._ray.get(worker.call("ping"))
                return True
            except errors.RayError as other:
                if not isinstance(other, errors.RayActorError):
                    return True  # it did answer
                error = other
        return False

    def _wait_limit(self, requests: Iterable[PendingRequest], deadline: float | None) -> float | None:
        """Return how long to wait until the deadline, or until a worker is overdue; None: indefinitely.

        Raises once close() has interrupted the call.
        """
        self._guard.check_not_cancelled()
        until = deadline
        if self._step_timeout_s is not None:
            for worker in {request.worker for request in requests}:
                overdue_at = worker.silent_since() + self._step_timeout_s
                until = overdue_at if until is None else min(overdue_at, until)
        return None if until is None else max(0.0, until - time.monotonic())

    def _kill_overdue(self, requests: Iterable[PendingRequest]) -> None:
        if self._step_timeout_s is None:
            return
        for worker in {request.worker for request in requests if request.worker.is_overdue}:
            if self._has_response(worker.current):
                # What takes long is the transfer: a response stays on its node until it is fetched.
                worker.current.started_at = time.monotonic()
            else:
                self.mark_dead(worker, self._overdue_death)

    @property
    def _overdue_death(self) -> str:
        return f"did not answer within step_timeout={self._step_timeout_s:g} s and was killed"

    def _has_response(self, request: PendingRequest) -> bool:
        """Return whether the response to a request that went through Ray exists, on whichever node."""
        # Without fetch_local=False, an object on another node never counts as ready when there is no time to fetch it.
        return request.ref is not None and bool(self._ray.wait([request.ref], timeout=0, fetch_local=False)[0])


def _deadline(timeout_s: float) -> float | None:
    return None if timeout_s < 0 else time.monotonic() + timeout_s


def _is_over(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline
