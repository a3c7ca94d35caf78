"""The side channel: messages between the caller and the workers for everything that has no fixed size.

Infos that fit no column, observations of variable size, exception reports, calls by name and their results. Each env
has room for one request and one reply; its slot in shared memory says how many bytes the message has. Nothing here
waits or synchronizes: a message is written before its env is handed over through the slots.
"""

from __future__ import annotations

import ctypes
import errno
import os
import pickle
import resource
from typing import Any, Protocol

import cloudpickle

from envfleet.core.errors import EnvfleetError, PoolClosedError
from envfleet.executors.python.layout import align_up

_PAGE_BYTES = 4096
_SCHEMA_BYTES = 1 << 16  # InfoSchema limits the number of its keys and their lengths
_MAX_SCHEMAS = 64  # kMaxSchemas of native/shm/segment.h
# Memory that is kept for later messages after a message was read, for the replies of all envs together, and the same
# again for the requests. Memory beyond that is returned to the system, which costs about a third of the time that a
# large message takes.
_KEPT_BYTES = 1 << 24


class NoRoomError(EnvfleetError):
    """A message does not fit into shared memory."""


def dump(content: Any) -> bytes:
    """Pickle a value, with cloudpickle if plain pickle cannot."""
    try:
        return pickle.dumps(content, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception:
        data: bytes = cloudpickle.dumps(content, protocol=pickle.HIGHEST_PROTOCOL)
        return data


class SideChannel(Protocol):
    """One request and one reply per env, and one message per version of the info columns' schema."""

    def put_request(self, env_id: int, content: Any) -> int:
        """Write a request and return the number to store in the env's slot."""

    def take_request(self, env_id: int, num_bytes: int) -> Any:
        """Read a request."""

    def put_reply(self, env_id: int, content: Any) -> int:
        """Write a reply and return the number to store in the env's slot."""

    def take_reply(self, env_id: int, num_bytes: int) -> Any:
        """Read a reply."""

    def put_schema(self, version: int, schema: list[Any]) -> int:
        """Write a version of the schema and return the number to store in shared memory."""

    def take_schema(self, version: int, num_bytes: int) -> list[Any]:
        """Read a version of the schema; a later one may be written at the same time."""


class LocalSideChannel:
    """Between threads of one process: the objects themselves are passed."""

    def __init__(self, num_envs: int) -> None:
        self._requests: list[Any] = [None] * num_envs
        self._replies: list[Any] = [None] * num_envs
        self._schemas: dict[int, list[Any]] = {}

    def put_request(self, env_id: int, content: Any) -> int:
        """Store the object."""
        self._requests[env_id] = content
        return 1

    def take_request(self, env_id: int, num_bytes: int) -> Any:
        """Return the object, which stays until the next request."""
        return self._requests[env_id]

    def put_reply(self, env_id: int, content: Any) -> int:
        """Store the object."""
        self._replies[env_id] = content
        return 1

    def take_reply(self, env_id: int, num_bytes: int) -> Any:
        """Return the object and forget it."""
        content, self._replies[env_id] = self._replies[env_id], None
        return content

    def put_schema(self, version: int, schema: list[Any]) -> int:
        """Store the list."""
        self._schemas[version] = schema
        return 1

    def take_schema(self, version: int, num_bytes: int) -> list[Any]:
        """Return the list."""
        return self._schemas[version]


class FileSideChannel:
    """Between processes: pickles in the shared-memory file, beyond the part that is mapped.

    A message of up to one page is stored in a one-page cell; one of up to two pages in another area, of two-page
    cells; and so on. The position follows from env and size alone, and the file size is at most a small multiple of
    num_envs times the largest message, which matters where file sizes are limited (ulimit -f). Only pages that were
    written take memory.

        start | schemas | replies, requests of 1 page | replies, requests of 2 pages | of 4 pages | ...
    """

    def __init__(self, fd: int, start: int, num_envs: int, num_readers: int = 1) -> None:
        """num_readers: the processes that share the memory to keep; 1 for replies, num_workers for requests."""
        self._fd = fd
        self._schema_start = align_up(start, _PAGE_BYTES)
        self._start = self._schema_start + (_MAX_SCHEMAS + 1) * _SCHEMA_BYTES
        self._num_envs = num_envs
        self._max_kept_bytes = _KEPT_BYTES // num_readers
        self._kept_bytes = 0
        self._kept_of: dict[int, int] = {}  # offset -> bytes of memory that are kept there

    def close(self) -> None:
        """Forget the descriptor, which may soon be another file's: a late call in another thread raises."""
        self._fd = -1

    def put_request(self, env_id: int, content: Any) -> int:
        """Pickle it with cloudpickle: workers cannot import what the caller's main module defines."""
        return self._put(self._num_envs + env_id, cloudpickle.dumps(content))

    def take_request(self, env_id: int, num_bytes: int) -> Any:
        """Unpickle it."""
        return self._take(self._num_envs + env_id, num_bytes)

    def put_reply(self, env_id: int, content: Any) -> int:
        """Pickle it."""
        return self._put(env_id, dump(content))

    def take_reply(self, env_id: int, num_bytes: int) -> Any:
        """Unpickle it."""
        return self._take(env_id, num_bytes)

    def put_schema(self, version: int, schema: list[Any]) -> int:
        """Pickle it."""
        return self._write(self._schema_start + version * _SCHEMA_BYTES, dump(schema))

    def take_schema(self, version: int, num_bytes: int) -> list[Any]:
        """Unpickle it."""
        schema: list[Any] = pickle.loads(self._read(self._schema_start + version * _SCHEMA_BYTES, num_bytes))
        return schema

    def _put(self, cell: int, data: bytes) -> int:
        return self._write(self._offset_of(cell, len(data)), data)

    def _take(self, cell: int, num_bytes: int) -> Any:
        offset = self._offset_of(cell, num_bytes)
        content = pickle.loads(self._read(offset, num_bytes))
        if num_bytes > _PAGE_BYTES:
            self._keep_or_free(offset, num_bytes)
        return content

    def _offset_of(self, cell: int, num_bytes: int) -> int:
        num_pages = 1 << ((num_bytes - 1) // _PAGE_BYTES).bit_length()
        # The areas of smaller cells, of 1 + 2 + ... pages, come first.
        return self._start + (2 * self._num_envs * (num_pages - 1) + cell * num_pages) * _PAGE_BYTES

    def _write(self, offset: int, data: bytes) -> int:
        view, written = memoryview(data), 0
        try:
            while written < len(data):
                written += os.pwrite(self._fd, view[written:], offset + written)
        except OSError as error:
            raise _file_error(error, offset + len(data), len(data)) from error
        return len(data)

    def _read(self, offset: int, num_bytes: int) -> bytearray:
        data, read = bytearray(num_bytes), 0
        while read < num_bytes:
            try:
                count = os.preadv(self._fd, [memoryview(data)[read:]], offset + read)
            except OSError as error:
                raise _file_error(error, offset + num_bytes, num_bytes) from error
            if count == 0:
                raise EOFError(f"a message of {num_bytes} bytes ends after {read}")
            read += count
        return data

    def _keep_or_free(self, offset: int, num_bytes: int) -> None:
        kept_bytes = self._kept_of.get(offset, 0)
        if num_bytes <= kept_bytes:
            return
        if self._kept_bytes - kept_bytes + num_bytes <= self._max_kept_bytes:
            self._kept_of[offset] = num_bytes
            self._kept_bytes += num_bytes - kept_bytes
        else:
            self._kept_of.pop(offset, None)
            self._kept_bytes -= kept_bytes
            _free(self._fd, offset, num_bytes)


def file_size_limit() -> int:
    """Return the file size limit of this process (ulimit -f) in bytes; -1 for no limit."""
    return resource.getrlimit(resource.RLIMIT_FSIZE)[0]


def _file_error(error: OSError, end: int, num_bytes: int) -> EnvfleetError:
    if error.errno == errno.EBADF:
        return PoolClosedError("the pool was closed by another thread; make a new pool")
    if error.errno == errno.EFBIG:
        return NoRoomError(
            f"a message of {num_bytes} bytes expected room up to byte {end} of the pool's shared memory, got a limit "
            f"of {file_size_limit()} bytes per file; raise the limit (ulimit -f), use fewer envs per pool, or pass "
            "smaller objects"
        )
    return NoRoomError(
        f"a message expected {num_bytes} bytes of shared memory, got {error}; free memory, or use fewer envs per pool"
    )


_KEEP_SIZE_PUNCH_HOLE = 0x01 | 0x02
_fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)  # None: only Linux has it
if _fallocate is not None:
    _fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def _free(fd: int, offset: int, num_bytes: int) -> None:
    """Free the pages of a part of a file. Best effort: otherwise the next message there reuses them."""
    if _fallocate is not None:
        _fallocate(fd, _KEEP_SIZE_PUNCH_HOLE, offset, num_bytes)
