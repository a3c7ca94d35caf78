"""What travels between the caller and an actor: one run of bytes a request, one a reply, columns in them.

In a reply, what says how the rest is to be read and what is unpickled comes before the columns: a line seals that part.

Bytes, and not arrays or tuples of them: Ray hands bytes on without pickling, and what is below 100 kB
goes inside the reply itself, without the object store. So larger runs are cut into parts of that size,
each a return value or an argument of its own, until the object store is the faster way.
"""

from __future__ import annotations

import itertools
import math
import pickle
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import cloudpickle
import gymnasium
import numpy as np
from numpy.typing import NDArray

from envfleet.spaces import leaves_of

# Below Ray's max_direct_call_object_size (100 KiB), with room for its own words.
PART_BYTES = 96_000
# From here on one object in the store is quicker than many parts.
MAX_PARTS = 32

STEP, RESET = 0, 1

# number, acknowledged, kind, num_parts, num_rows (-1: all), bytes of ids and of extras
_REQUEST = struct.Struct("<QQBBxxxxxxqqq")
_REPLY = struct.Struct("<qqq")  # num_rows, num_finals, bytes of extras
_ALIGNMENT = 8  # of the columns: numpy copies what is not aligned more slowly
_ENDED = 0b11


@dataclass
class Request:
    """A step or reset of some of a worker's envs.

    number: rises by one a message; a number that comes again gets its reply again and moves nothing.
    acknowledged: replies below it will not be asked for again. extras: orders, options and what has no column.
    """

    number: int
    acknowledged: int
    kind: int
    num_parts: int
    local_ids: NDArray[np.int32] | None
    actions: list[NDArray[Any]]
    extras: Any = None


class ActionForm:
    """The columns of an action, as both sides compute them from the space."""

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        self.leaves = leaves_of(space)
        self.arrays = [leaf for leaf in self.leaves if leaf.kind == "array"]

    def encode(self, request: Request) -> bytes:
        """The request as bytes."""
        ids = b"" if request.local_ids is None else request.local_ids.tobytes()
        num_rows = -1 if request.local_ids is None else len(request.local_ids)
        # By value, as the factories travel: a class of the main module is not known to an actor.
        extras = b"" if request.extras is None else cloudpickle.dumps(request.extras)
        head = _REQUEST.pack(
            request.number, request.acknowledged, request.kind, request.num_parts, num_rows, len(ids), len(extras)
        )
        return b"".join((head, ids, *(column.tobytes() for column in request.actions), extras))

    def decode(self, data: memoryview, num_envs: int) -> Request:
        """The request; its arrays are its own."""
        number, acknowledged, kind, num_parts, num_rows, id_bytes, extra_bytes = _REQUEST.unpack_from(data)
        offset = _REQUEST.size
        ids = None
        if num_rows >= 0:
            ids = np.frombuffer(data, np.int32, num_rows, offset).copy()
            offset += id_bytes
        rows = num_envs if ids is None else num_rows
        actions = []
        if kind == STEP:
            for leaf in self.arrays:
                column, offset = _column(data, offset, leaf.dtype, (rows, *leaf.shape))
                actions.append(column.copy())
        extras = pickle.loads(data[len(data) - extra_bytes :]) if extra_bytes else None
        return Request(number, acknowledged, kind, num_parts, ids, actions, extras)


@dataclass
class Reply:
    """Rows of some of a worker's envs.

    obs, final_obs: a column for each array leaf. Of last rows there are only those of episodes that ended, final_rows.
    extras: infos, faults, and what has no column; None where there is nothing.
    """

    obs: list[NDArray[Any]]
    reward: NDArray[np.float64]
    elapsed_step: NDArray[np.int32]
    terminated: NDArray[Any]
    truncated: NDArray[Any]
    phases: NDArray[Any]
    final_rows: NDArray[np.intp]
    final_obs: list[NDArray[Any]]
    final_elapsed: NDArray[np.int32]
    extras: bytes


class EncodedReply(NamedTuple):
    """A reply as runs of bytes: what a line seals, then columns of numbers."""

    sealed: list[bytes]
    columns: list[bytes]


class RowForm:
    """The columns of a row, as both sides compute them from the space."""

    def __init__(self, space: gymnasium.Space[Any], has_finals: bool) -> None:
        self.leaves = leaves_of(space)
        self.arrays = [leaf for leaf in self.leaves if leaf.kind == "array"]
        self.has_finals = has_finals
        self._columns = [(leaf.dtype, leaf.shape) for leaf in self.arrays]
        self._obs_bytes = sum(math.prod(shape) * dtype.itemsize for dtype, shape in self._columns)

    def expected_bytes(self, num_rows: int) -> int:
        """What a reply without finals and extras takes."""
        return _REPLY.size + num_rows * (self._obs_bytes + 8 + 4 + 1)

    def encode(
        self,
        obs: Sequence[NDArray[Any]],
        reward: NDArray[np.float64],
        elapsed_step: NDArray[np.int32],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        phases: NDArray[np.uint8],
        final_obs: Sequence[NDArray[Any]] | None,
        final_elapsed: NDArray[np.int32] | None,
        extras: bytes,
    ) -> EncodedReply:
        """The reply as runs of bytes."""
        status = (phases << 2) | (truncated.view(np.uint8) << 1) | terminated.view(np.uint8)
        finals: list[bytes] = []
        num_finals = 0
        if final_obs is not None and final_elapsed is not None:
            ended = np.flatnonzero(status & _ENDED)
            num_finals = len(ended)
            if num_finals:
                finals = [column[ended].tobytes() for column in (*final_obs, final_elapsed)]
        return EncodedReply(
            [_REPLY.pack(len(reward), num_finals, len(extras)), extras, bytes(-len(extras) % _ALIGNMENT)],
            [
                *(column.tobytes() for column in obs),
                reward.tobytes(),
                elapsed_step.tobytes(),
                status.tobytes(),
                *finals,
            ],
        )

    def decode(self, data: memoryview) -> Reply:
        """The reply; its arrays are views of the data."""
        num_rows, num_finals, extra_bytes = _REPLY.unpack_from(data)
        offset = _REPLY.size + extra_bytes
        extras = bytes(data[_REPLY.size : offset]) if extra_bytes else b""
        offset += -extra_bytes % _ALIGNMENT
        obs = []
        for dtype, shape in self._columns:
            column, offset = _column(data, offset, dtype, (num_rows, *shape))
            obs.append(column)
        reward, offset = _column(data, offset, _FLOAT64, (num_rows,))
        elapsed_step, offset = _column(data, offset, _INT32, (num_rows,))
        status, offset = _column(data, offset, _UINT8, (num_rows,))
        final_obs: list[NDArray[Any]] = []
        final_rows = _NO_ROWS
        final_elapsed: NDArray[np.int32] = _NO_STEPS
        if num_finals:
            final_rows = np.flatnonzero(status & _ENDED)
            for dtype, shape in self._columns:
                column, offset = _column(data, offset, dtype, (num_finals, *shape))
                final_obs.append(column)
            final_elapsed, offset = _column(data, offset, _INT32, (num_finals,))
        return Reply(
            obs,
            reward,
            elapsed_step,
            status & 1,
            status >> 1 & 1,
            status >> 2,
            final_rows,
            final_obs,
            final_elapsed,
            extras,
        )


_FLOAT64, _INT32, _UINT8 = np.dtype(np.float64), np.dtype(np.int32), np.dtype(np.uint8)
_NO_ROWS: NDArray[np.intp] = np.empty(0, dtype=np.intp)
_NO_STEPS: NDArray[np.int32] = np.empty(0, dtype=np.int32)


def num_parts_for(num_bytes: int) -> int:
    """In how many parts a run of so many bytes travels best."""
    parts = -(-num_bytes // PART_BYTES)
    return parts if parts <= MAX_PARTS else 1


def cut(runs: Sequence[bytes], num_parts: int) -> Any:
    """The runs as that many parts: bytes, a list of bytes, or one array for the object store."""
    data = b"".join(runs)
    if num_parts == 1:
        # An array is read from the store where it lies, bytes would be copied out of it.
        return np.frombuffer(data, np.uint8) if len(data) > PART_BYTES else data
    # The last takes what is more than was expected.
    bounds = [*(PART_BYTES * k for k in range(num_parts)), max(len(data), PART_BYTES * (num_parts - 1))]
    return [data[start:end] for start, end in itertools.pairwise(bounds)]


def glued(parts: Sequence[Any]) -> memoryview:
    """What cut() was given, from its parts."""
    if len(parts) == 1:
        return memoryview(parts[0])
    return memoryview(b"".join(parts))


def _column(data: memoryview, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[NDArray[Any], int]:
    column: NDArray[Any] = np.ndarray(shape, dtype, data, offset)
    return column, offset + math.prod(shape) * dtype.itemsize
