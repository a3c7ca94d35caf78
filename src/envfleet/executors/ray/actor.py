"""EnvActor: the class of the Ray actors. It builds the executor of its envs and answers requests one at a time."""

from __future__ import annotations

import os
import pickle
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet.core.autoreset import Phase
from envfleet.core.batch import Batch, Fault
from envfleet.core.errors import EnvError
from envfleet.core.executor import NO_TIMEOUT, REFUSED, Executor, Refused
from envfleet.core.spaces import split
from envfleet.core.statistics import PoolStats
from envfleet.core.tracebacks import message_of
from envfleet.core.validation import LeafColumns
from envfleet.executors.env_reports import EnvCloseWarning, EnvStateError
from envfleet.executors.process_context import ProcessContext
from envfleet.executors.python.executor import PythonExecutor
from envfleet.executors.python.side_channel import dump
from envfleet.executors.ray.batches import InfoColumns, split_info
from envfleet.executors.ray.connection import (
    SERVE_ID,
    STOP_SERVING,
    ActorConnection,
    Address,
    ConnectionLostError,
    Listener,
)
from envfleet.executors.ray.messages import (
    RESET,
    EncodedResponse,
    Request,
    RequestCodec,
    ResponseCodec,
    ResponseColumns,
    encode_error,
    encode_value,
    pool_fault,
)

# How often a response carries the counts of stats(), for threads that must not disturb the caller's: every second, and
# less often if that took more than a hundredth of the time.
_STATS_NS = 1_000_000_000
_STATS_SHARE = 100
# Ray returns smaller values inside its own message. A larger array is read from the object store without a copy.
_INLINE_BYTES = 96_000


class EnvActor:
    """One worker of a Ray pool: the envs from first_env on, in an executor of its own."""

    def __init__(self, first_env: int) -> None:
        self._first_env = first_env
        self._executor: Executor | None = None
        # Responses that the caller may ask for again, by number.
        self._kept: dict[int, EncodedResponse] = {}
        self._last_started = -1
        self._failure = ""
        self._last_stopped_serve = 0
        self._next_stats_ns = 0
        self._listener: Listener | None = None
        self._connection: ActorConnection | None = None

    # --- life cycle ------------------------------------------------------------------------------

    def build(self, context: ProcessContext, builder: bytes, mode: AutoresetMode) -> bytes:
        """Build the envs; return their description and this process's id."""
        try:
            context.apply()
            executor, description = pickle.loads(builder).build()
        except BaseException as error:
            return encode_error(error, self._first_env)
        self._executor = executor
        self._requests = RequestCodec(description.action_space)
        self._responses = ResponseCodec(description.observation_space, mode is AutoresetMode.SAME_STEP)
        self._split_obs = split(description.observation_space)
        self._built_at_ns = time.monotonic_ns()
        return encode_value((description, os.getpid()))

    def ping(self) -> None:
        """Return, if the actor is alive."""

    def close(self) -> bytes:
        """Close the envs; return the warnings that this caused, as texts."""
        executor, self._executor = self._executor, None
        if executor is None:
            return encode_value([])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            executor.close()
        texts = []
        for warning in (record.message for record in caught):
            if isinstance(warning, EnvCloseWarning):
                texts.append(str(EnvCloseWarning(self._first_env + warning.env_id, warning.message)))
            elif isinstance(warning, (RuntimeWarning, ResourceWarning)):
                texts.append(str(warning))
        return encode_value(texts)

    # --- steps and resets ------------------------------------------------------------------

    def run(self, data: Any) -> Any:
        """Run a request that came through Ray, once; return the encoded response."""
        self._disconnect()  # the caller has given the connection up
        response = b"".join(_buffers(self._respond(memoryview(data))))
        return np.frombuffer(response, np.uint8) if len(response) > _INLINE_BYTES else response

    def read_response(self, number: int, start: int, stop: int) -> bytes:
        """Return a slice of a kept response that the object store has lost; empty if there is none."""
        response = self._kept.get(number)
        return b"" if response is None else b"".join(_buffers(response))[start:stop]

    def _respond(self, data: memoryview) -> EncodedResponse:
        """Run a request, or return the response that was kept since it first arrived."""
        assert self._executor is not None
        request = self._requests.decode(data, self._executor.num_envs)
        for number in [number for number in self._kept if number < request.acknowledged]:
            del self._kept[number]
        if request.number not in self._kept:
            if request.number <= self._last_started:
                raise RuntimeError(f"the request was started, and failed: {self._failure}")
            self._last_started = request.number
            try:
                self._kept[request.number] = self._run(self._executor, request)
            except BaseException as error:
                self._failure = message_of(error)
                raise
        return self._kept[request.number]

    def _run(self, executor: Executor, request: Request) -> EncodedResponse:
        extras = request.extras or {}
        self._apply(extras.get("commands", ()))
        if request.kind == RESET:
            batch: Batch | Refused | None = executor.reset(request.local_ids, extras.get("options") or {}, NO_TIMEOUT)
        else:
            batch = self._step(executor, request, extras.get("actions"))
        assert isinstance(batch, Batch), "the inner executor refused input that the caller had checked"
        return self._encode(executor, batch, "reset" if request.kind == RESET else "step")

    def _step(self, executor: Executor, request: Request, objects: Sequence[Any] | None) -> Batch | Refused | None:
        if objects is None and len(request.actions) == 1 and len(self._requests.leaves) == 1:
            batch = executor.step(request.actions[0], request.local_ids, NO_TIMEOUT)
            if batch is not REFUSED:
                return batch
        arrays, others = iter(request.actions), iter(objects or ())
        leaves = [next(arrays if leaf.kind == "array" else others) for leaf in self._requests.leaves]
        return executor.step(LeafColumns(leaves), request.local_ids, NO_TIMEOUT)

    def _apply(self, commands: Sequence[tuple[Any, ...]]) -> None:
        """Run the commands that the caller has deferred to this message."""
        executor = self._executor
        assert executor is not None
        for command, *arguments in commands:
            if command == "seed":
                executor.seed(*arguments)
            else:
                self._set_phase(executor, *arguments)

    def _set_phase(self, executor: Executor, local_id: int, phase: int) -> None:
        if isinstance(executor, PythonExecutor):
            executor.set_phase(local_id, phase)
        else:
            executor.rebuild(local_id, phase)

    # --- the connection --------------------------------------------------------------------

    def listen(self, secret: bytes) -> Address | None:
        """Return the address where the caller can connect; None if this actor cannot listen."""
        import ray

        self._disconnect()
        try:
            self._listener = Listener(str(ray.util.get_node_ip_address()), secret)  # type: ignore[no-untyped-call]
        except OSError:
            return None
        return self._listener.address

    def serve(self, serve_id: int) -> None:
        """Answer the requests on the connection, in the thread that built the envs.

        Returns when the connection is lost, or when the caller has a call for Ray to deliver and stops this serve()
        and all before it.
        """
        try:
            if self._connection is None and self._listener is not None:
                listener, self._listener = self._listener, None
                self._connection = listener.accept()
            while self._connection is not None and serve_id > self._last_stopped_serve:
                number, data = self._connection.recv()
                if number == STOP_SERVING:
                    self._last_stopped_serve = max(self._last_stopped_serve, SERVE_ID.unpack(data)[0])
                else:
                    self._connection.send(number, *self._respond(data))
        except ConnectionLostError:
            self._disconnect()
        except BaseException:
            self._disconnect()
            raise

    def _disconnect(self) -> None:
        for end in (self._listener, self._connection):
            if end is not None:
                end.close()
        self._listener = self._connection = None

    # --- responses -------------------------------------------------------------------------

    def _encode(self, executor: Executor, batch: Batch, method: str) -> EncodedResponse:
        faults: dict[int, Fault] = {}  # by row
        if batch.faults:
            rows = {int(env_id): row for row, env_id in enumerate(batch.env_id)}
            faults = {rows[fault.env_id]: pool_fault(fault, self._first_env) for fault in batch.faults}
            executor.clear_faults()  # the caller handles them
        obs, object_obs = self._columns(batch.obs)
        final_obs: list[NDArray[Any]] = []
        object_final_obs: list[Sequence[Any]] = []
        info: InfoColumns = {}
        final_info: InfoColumns = {}
        objects: dict[int, dict[str, Any]] = {}  # by row: parts that have no column
        if batch.info:
            info, values = split_info(batch.info, len(batch))
            _add_part(objects, "info", values)
        if batch.final is not None:
            final_obs, object_final_obs = self._columns(batch.final.obs)
            if batch.final.info:
                final_info, values = split_info(batch.final.info, len(batch))
                _add_part(objects, "final_info", values)
        if object_obs or object_final_obs:
            ended = batch.terminated | batch.truncated
            for row in range(len(batch)):
                parts = objects.setdefault(row, {})
                parts["obs"] = [column[row] for column in object_obs]
                if object_final_obs and ended[row]:
                    parts["final_obs"] = [column[row] for column in object_final_obs]
        pickled: dict[int, bytes] = {}
        for row, parts in objects.items():
            try:
                pickled[row] = dump(parts)
            except Exception as error:  # the fault of this env and of no other
                faults[row] = self._unpicklable(executor, int(batch.env_id[row]), method, parts, error)
                for column in (*obs, batch.reward, batch.terminated, batch.truncated):
                    column[row] = 0
        extras = b""
        stats = self._due_stats()
        if info or final_info or pickled or faults or stats:
            extras = pickle.dumps((info, final_info, pickled, faults, stats), protocol=pickle.HIGHEST_PROTOCOL)
        columns = ResponseColumns(
            obs,
            batch.reward,
            batch.elapsed_step,
            batch.terminated,
            batch.truncated,
            executor.phases()[batch.env_id],
            extras=extras,
        )
        if batch.final is not None:
            # Not before: a row that cannot be pickled has no final row either.
            final_rows = np.flatnonzero(batch.terminated | batch.truncated)
            columns.final_rows = final_rows
            columns.final_obs = [column[final_rows] for column in final_obs]
            columns.final_elapsed = batch.final.elapsed_step[final_rows]
        return self._responses.encode(columns)

    def _columns(self, obs: Any) -> tuple[list[NDArray[Any]], list[Sequence[Any]]]:
        """Return the columns of the array leaves, and those of the others."""
        arrays: list[NDArray[Any]] = []
        objects: list[Sequence[Any]] = []
        for leaf, column in zip(self._responses.leaves, self._split_obs(obs), strict=True):
            (arrays if leaf.kind == "array" else objects).append(column)
        return arrays, objects

    def _unpicklable(
        self, executor: Executor, local_id: int, method: str, parts: Mapping[str, Any], error: Exception
    ) -> Fault:
        """Return the fault of an env whose row cannot be pickled."""
        self._set_phase(executor, local_id, Phase.BROKEN)
        message = (
            f"expected infos and observations that can be pickled, got {', '.join(parts)} that cannot: "
            f"{message_of(error)}; keep such objects in the env and access them with call()"
        )
        return Fault(self._first_env + local_id, method, message)

    # --- calls -------------------------------------------------------------------------------

    def call(self, commands: Sequence[tuple[Any, ...]], method: str, arguments: bytes, env_ids: Sequence[int]) -> bytes:
        """Call a method of the executor; return its value and the phases of these envs after it."""
        executor = self._executor
        assert executor is not None
        try:
            self._apply(commands)
            value: Any
            if method == "stats":
                value = self._stats()
            else:
                value = getattr(executor, method)(*pickle.loads(arguments))
                if method == "set_state":
                    value = self._observe_one(executor, env_ids[0])
            return encode_value((value, executor.phases()[list(env_ids)].tolist()))
        except EnvStateError as error:
            return encode_error(error.with_env_id(self._first_env + error.env_id), self._first_env)
        except BaseException as error:
            return encode_error(error, self._first_env)

    def _due_stats(self) -> bytes:
        """Return the pickled statistics if some time has passed since the last ones, else nothing."""
        start_ns = time.monotonic_ns()
        if start_ns < self._next_stats_ns:
            return b""
        data = pickle.dumps(self._stats(), protocol=pickle.HIGHEST_PROTOCOL)
        end_ns = time.monotonic_ns()
        self._next_stats_ns = end_ns + max(_STATS_NS, _STATS_SHARE * (end_ns - start_ns))
        return data

    def _observe_one(self, executor: Executor, local_id: int) -> list[Any] | None:
        """Return what an env shows now, a value per leaf; None if that cannot be seen."""
        try:
            return [column[local_id] for column in self._split_obs(executor.observe()[0])]
        except EnvError:
            return None

    def _stats(self) -> tuple[PoolStats, int]:
        """Return the statistics of the envs and their age in nanoseconds."""
        assert self._executor is not None
        return self._executor.stats(), time.monotonic_ns() - self._built_at_ns


def _buffers(response: EncodedResponse) -> list[bytes]:
    return [*response.authenticated, *response.columns]


def _add_part(objects: dict[int, dict[str, Any]], name: str, by_row: Mapping[int, Any]) -> None:
    for row, values in by_row.items():
        objects.setdefault(row, {})[name] = values
