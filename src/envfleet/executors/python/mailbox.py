"""Mailboxes: what has no fixed size travels beside the board, one letter an env at a time.

Odd infos, observations of no fixed size, faults, calls and their answers. An env has one box
for requests and one for replies; the board says how many bytes lie in it. Nobody waits here:
a letter is written before its env is handed over.
"""

from __future__ import annotations

import ctypes
import errno
import os
import pickle
import resource
from typing import Any, Protocol

import cloudpickle

from envfleet.errors import EnvfleetError, PoolClosedError

_PAGE_BYTES = 4096
_SCHEMA_BYTES = 1 << 16  # InfoColumns limits the number of its keys and their lengths
_MAX_SCHEMAS = 64  # kMaxSchemas of native/shm/segment.h
# Memory that is kept for later messages after it was read, for the replies of all envs together, and as much for the
# requests. What is read beyond that goes back to the system, which costs about a third of the time that a large
# message takes.
_KEPT_BYTES = 1 << 24


class NoRoomError(EnvfleetError):
    """What has no fixed size found no room in shared memory."""


def dump(content: Any) -> bytes:
    """A pickle; by cloudpickle where plain pickle cannot."""
    try:
        return pickle.dumps(content, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception:
        data: bytes = cloudpickle.dumps(content, protocol=pickle.HIGHEST_PROTOCOL)
        return data


class Mailbox(Protocol):
    """Boxes for num_envs envs, and one for each version of the schema of the info columns."""

    def put_request(self, env_id: int, content: Any) -> int:
        """Writes a request; the number that the board is to hold."""

    def take_request(self, env_id: int, num_bytes: int) -> Any:
        """Reads a request."""

    def put_reply(self, env_id: int, content: Any) -> int:
        """Writes a reply; the number that the board is to hold."""

    def take_reply(self, env_id: int, num_bytes: int) -> Any:
        """Reads a reply."""

    def put_schema(self, version: int, schema: list[Any]) -> int:
        """Writes a version of the schema; the number that the board is to hold."""

    def take_schema(self, version: int, num_bytes: int) -> list[Any]:
        """Reads a version of the schema, while a later one may be written."""


class LocalMailbox:
    """Between threads of one process: the objects themselves."""

    def __init__(self, num_envs: int) -> None:
        self._requests: list[Any] = [None] * num_envs
        self._replies: list[Any] = [None] * num_envs
        self._schemas: dict[int, list[Any]] = {}

    def put_request(self, env_id: int, content: Any) -> int:
        """The object."""
        self._requests[env_id] = content
        return 1

    def take_request(self, env_id: int, num_bytes: int) -> Any:
        """The object, which stays for envs that are reset again with it."""
        return self._requests[env_id]

    def put_reply(self, env_id: int, content: Any) -> int:
        """The object."""
        self._replies[env_id] = content
        return 1

    def take_reply(self, env_id: int, num_bytes: int) -> Any:
        """The object, once."""
        content, self._replies[env_id] = self._replies[env_id], None
        return content

    def put_schema(self, version: int, schema: list[Any]) -> int:
        """The list."""
        self._schemas[version] = schema
        return 1

    def take_schema(self, version: int, num_bytes: int) -> list[Any]:
        """The list."""
        return self._schemas[version]


class FileMailbox:
    """Between processes: pickles in the board's own file, past its mapping.

    A message of up to a page lies in a box of a page; one of up to two pages in another area, of boxes of two pages;
    and so on. So a place follows from env and size alone, and the file ends, at the most, at a small multiple of
    num_envs times the largest message, which matters where the size of files is limited (ulimit -f). Only what is
    written takes memory.

        start | schemas | replies, requests of 1 page | replies, requests of 2 pages | of 4 pages | ...
    """

    def __init__(self, fd: int, start: int, num_envs: int, num_readers: int = 1) -> None:
        """num_readers: processes that share what may be kept; one for replies, num_workers for requests."""
        self._fd = fd
        self._schema_start = -(-start // _PAGE_BYTES) * _PAGE_BYTES
        self._start = self._schema_start + (_MAX_SCHEMAS + 1) * _SCHEMA_BYTES
        self._num_envs = num_envs
        self._max_kept_bytes = _KEPT_BYTES // num_readers
        self._kept_bytes = 0
        self._kept_of: dict[int, int] = {}  # offset -> bytes of memory that are kept there

    def close(self) -> None:
        """Forgets the file, whose number may soon be that of another one: a late call in another thread raises."""
        self._fd = -1

    def put_request(self, env_id: int, content: Any) -> int:
        """A pickle of it. By cloudpickle: what the caller's main module defines is not known to a worker."""
        return self._put(self._num_envs + env_id, cloudpickle.dumps(content))

    def take_request(self, env_id: int, num_bytes: int) -> Any:
        """Unpickles it."""
        return self._take(self._num_envs + env_id, num_bytes)

    def put_reply(self, env_id: int, content: Any) -> int:
        """A pickle of it."""
        return self._put(env_id, dump(content))

    def take_reply(self, env_id: int, num_bytes: int) -> Any:
        """Unpickles it."""
        return self._take(env_id, num_bytes)

    def put_schema(self, version: int, schema: list[Any]) -> int:
        """A pickle of it."""
        return self._write(self._schema_start + version * _SCHEMA_BYTES, dump(schema))

    def take_schema(self, version: int, num_bytes: int) -> list[Any]:
        """Unpickles it."""
        schema: list[Any] = pickle.loads(self._read(self._schema_start + version * _SCHEMA_BYTES, num_bytes))
        return schema

    def _put(self, box: int, data: bytes) -> int:
        return self._write(self._offset_of(box, len(data)), data)

    def _take(self, box: int, num_bytes: int) -> Any:
        offset = self._offset_of(box, num_bytes)
        content = pickle.loads(self._read(offset, num_bytes))
        if num_bytes > _PAGE_BYTES:
            self._keep_or_free(offset, num_bytes)
        return content

    def _offset_of(self, box: int, num_bytes: int) -> int:
        num_pages = 1 << ((num_bytes - 1) // _PAGE_BYTES).bit_length()
        # The areas of smaller boxes, of 1 + 2 + ... pages, lie before.
        return self._start + (2 * self._num_envs * (num_pages - 1) + box * num_pages) * _PAGE_BYTES

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


def _file_error(error: OSError, end: int, num_bytes: int) -> EnvfleetError:
    if error.errno == errno.EBADF:
        return PoolClosedError("the pool was closed by another thread; make a new pool")
    if error.errno == errno.EFBIG:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        return NoRoomError(
            f"expected room for {num_bytes} bytes beside the env's row, which end at byte {end} of the pool's shared "
            f"memory, but this process may not have files of more than {limit} bytes; raise the limit (ulimit -f), "
            "use fewer envs per pool, or pass less"
        )
    return NoRoomError(
        f"expected room for {num_bytes} bytes in shared memory, got {error}; free memory, or use fewer envs per pool"
    )


_KEEP_SIZE_PUNCH_HOLE = 0x01 | 0x02
_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def _free(fd: int, offset: int, num_bytes: int) -> None:
    """Frees the pages of a part of a file. Best effort: without it they are reused by the next message there."""
    _fallocate(fd, _KEEP_SIZE_PUNCH_HOLE, offset, num_bytes)
