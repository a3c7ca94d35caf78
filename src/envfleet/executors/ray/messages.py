"""Messages between the caller and an actor: one byte string per request and per response, with columns in it.

In a response, everything that says how to read the rest, and everything that is unpickled, comes before the columns:
a connection authenticates that part.

Faults and exceptions travel as plain values, which any process can read, with the pickled exception beside them.
"""

from __future__ import annotations

import math
import pickle
import struct
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import cloudpickle
import gymnasium
import numpy as np
from numpy.typing import NDArray

from envfleet.core.batch import Fault
from envfleet.core.errors import EnvError, EnvfleetError
from envfleet.core.spaces import leaves_of
from envfleet.core.tracebacks import message_of
from envfleet.executors.env_reports import call_remedy
from envfleet.executors.python.side_channel import dump

STEP, RESET = 0, 1

# number, acknowledged, kind, num_rows (-1: all), bytes of ids and of extras
_REQUEST = struct.Struct("<QQBxxxxxxxqqq")
_RESPONSE = struct.Struct("<qqq")  # num_rows, num_finals, bytes of extras
_ALIGNMENT = 8  # of the columns: numpy copies unaligned ones more slowly
_ENDED = 0b11
_FLOAT64, _INT32, _UINT8 = np.dtype(np.float64), np.dtype(np.int32), np.dtype(np.uint8)
_NO_ROWS: NDArray[np.intp] = np.empty(0, dtype=np.intp)
_NO_STEPS: NDArray[np.int32] = np.empty(0, dtype=np.int32)

# --- requests ------------------------------------------------------------------------------------


@dataclass
class Request:
    """A step or reset of some of a worker's envs.

    number: increases with each message; a number that arrives again gets the same response and steps nothing.
    acknowledged: responses below this number will not be asked for again. extras: deferred commands, reset options
    and actions that have no column.
    """

    number: int
    acknowledged: int
    kind: int
    local_ids: NDArray[np.int32] | None
    actions: list[NDArray[Any]]
    extras: Any = None


class RequestCodec:
    """Encodes and decodes requests. Both sides derive the columns from the action space."""

    def __init__(self, action_space: gymnasium.Space[Any]) -> None:
        self.leaves = leaves_of(action_space)
        self.arrays = [leaf for leaf in self.leaves if leaf.kind == "array"]

    def encode(self, request: Request) -> bytes:
        """Encode a request."""
        ids = b"" if request.local_ids is None else request.local_ids.tobytes()
        num_rows = -1 if request.local_ids is None else len(request.local_ids)
        # By value, like the factories: an actor does not know classes of the caller's main module.
        extras = b"" if request.extras is None else cloudpickle.dumps(request.extras)
        head = _REQUEST.pack(request.number, request.acknowledged, request.kind, num_rows, len(ids), len(extras))
        return b"".join((head, ids, *(column.tobytes() for column in request.actions), extras))

    def decode(self, data: memoryview, num_envs: int) -> Request:
        """Decode a request; its arrays are copies."""
        number, acknowledged, kind, num_rows, num_id_bytes, num_extra_bytes = _REQUEST.unpack_from(data)
        offset = _REQUEST.size
        ids = None
        if num_rows >= 0:
            ids = np.frombuffer(data, np.int32, num_rows, offset).copy()
            offset += num_id_bytes
        rows = num_envs if ids is None else num_rows
        actions = []
        if kind == STEP:
            for leaf in self.arrays:
                column, offset = _column(data, offset, leaf.dtype, (rows, *leaf.shape))
                actions.append(column.copy())
        extras = pickle.loads(data[len(data) - num_extra_bytes :]) if num_extra_bytes else None
        return Request(number, acknowledged, kind, ids, actions, extras)


# --- responses -----------------------------------------------------------------------------------


@dataclass
class ResponseColumns:
    """The rows of a response as columns.

    obs, final_obs: one column per array leaf. In same_step mode, final_rows are the rows whose episode ended, and
    final_obs and final_elapsed hold these rows only; otherwise they are empty. extras: pickled infos, faults and
    values that have no column; empty if there are none.
    """

    obs: list[NDArray[Any]]
    reward: NDArray[np.float64]
    elapsed_step: NDArray[np.int32]
    terminated: NDArray[Any]
    truncated: NDArray[Any]
    phases: NDArray[Any]
    final_rows: NDArray[np.intp] = field(default_factory=lambda: _NO_ROWS)
    final_obs: list[NDArray[Any]] = field(default_factory=list)
    final_elapsed: NDArray[np.int32] = field(default_factory=lambda: _NO_STEPS)
    extras: bytes = b""


class EncodedResponse(NamedTuple):
    """A response as byte strings: those that a connection authenticates, then columns of numbers."""

    authenticated: list[bytes]
    columns: list[bytes]


class ResponseCodec:
    """Encodes and decodes responses. Both sides derive the columns from the observation space."""

    def __init__(self, observation_space: gymnasium.Space[Any], has_finals: bool) -> None:
        self.leaves = leaves_of(observation_space)
        self.arrays = [leaf for leaf in self.leaves if leaf.kind == "array"]
        self.has_finals = has_finals
        self._columns = [(leaf.dtype, leaf.shape) for leaf in self.arrays]

    def encode(self, columns: ResponseColumns) -> EncodedResponse:
        """Encode a response."""
        flags = (columns.truncated.view(np.uint8) << 1) | columns.terminated.view(np.uint8)
        finals = (*columns.final_obs, columns.final_elapsed) if len(columns.final_rows) else ()
        extras = columns.extras
        head = _RESPONSE.pack(len(columns.reward), len(columns.final_rows), len(extras))
        numbers = (*columns.obs, columns.reward, columns.elapsed_step, (columns.phases << 2) | flags, *finals)
        return EncodedResponse(
            [head, extras, bytes(-len(extras) % _ALIGNMENT)], [column.tobytes() for column in numbers]
        )

    def decode(self, data: memoryview) -> ResponseColumns:
        """Decode a response; its arrays are views of the data."""
        num_rows, num_finals, num_extra_bytes = _RESPONSE.unpack_from(data)
        offset = _RESPONSE.size + num_extra_bytes
        extras = bytes(data[_RESPONSE.size : offset]) if num_extra_bytes else b""
        offset += -num_extra_bytes % _ALIGNMENT
        obs = []
        for dtype, shape in self._columns:
            column, offset = _column(data, offset, dtype, (num_rows, *shape))
            obs.append(column)
        reward, offset = _column(data, offset, _FLOAT64, (num_rows,))
        elapsed_step, offset = _column(data, offset, _INT32, (num_rows,))
        status, offset = _column(data, offset, _UINT8, (num_rows,))
        columns = ResponseColumns(obs, reward, elapsed_step, status & 1, status >> 1 & 1, status >> 2, extras=extras)
        if num_finals:
            columns.final_rows = np.flatnonzero(status & _ENDED)
            for dtype, shape in self._columns:
                column, offset = _column(data, offset, dtype, (num_finals, *shape))
                columns.final_obs.append(column)
            columns.final_elapsed, offset = _column(data, offset, _INT32, (num_finals,))
        return columns


def _column(data: memoryview, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[NDArray[Any], int]:
    column: NDArray[Any] = np.ndarray(shape, dtype, data, offset)
    return column, offset + math.prod(shape) * dtype.itemsize


# --- results of other calls ----------------------------------------------------------------------


def pool_fault(fault: Fault, first_env: int) -> Fault:
    """Return a fault of an actor's env under its id in the whole pool."""
    return replace(fault, env_id=first_env + fault.env_id)


class RemoteCallError(Exception):
    """A call that failed in an actor. cause: the exception, if there was one."""

    def __init__(self, message: str, traceback: str, cause: BaseException | None = None) -> None:
        super().__init__(message)
        self.traceback = traceback
        self.cause = cause


def encode_value(value: Any) -> bytes:
    """Encode the value of a successful call; a value that cannot be pickled becomes an error."""
    try:
        return dump(("value", value))
    except Exception as error:
        message = f"it returned a value that cannot be pickled: {message_of(error)}"
        return dump(("error", Fault(-1, "", message)))


def encode_error(error: BaseException, first_env: int) -> bytes:
    """Encode the exception of a failed call."""
    if isinstance(error, EnvError):
        return dump(("faults", [pool_fault(fault, first_env) for fault in error.faults]))
    return dump(("error", Fault.of(error, "")))


def decode_result(data: bytes, remedy: str) -> Any:
    """Return the value of a call, or raise what the call raised. remedy: how to fix a fault of an env."""
    try:
        kind, content = pickle.loads(data)
    except Exception as error:
        raise RemoteCallError(
            f"it returned a value that cannot be unpickled here: {message_of(error)}; return plain values", ""
        ) from error
    if kind == "value":
        return content
    if kind == "faults":
        raise EnvError.of(tuple(content), None, call_remedy(content[0], remedy)) from content[0].cause
    if isinstance(content.cause, (EnvfleetError, AttributeError)):
        raise content.cause
    raise RemoteCallError(content.message, content.traceback, content.cause)
