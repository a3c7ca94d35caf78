"""Mailboxes: what has no fixed size travels beside the board, one letter an env at a time.

Odd infos, observations of no fixed size, faults, calls and their answers. An env has one box
for requests and one for replies; the board says how many bytes lie in it. Nobody waits here:
a letter is written before its env is handed over.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import sys
from collections.abc import Callable
from typing import Any, Protocol

import cloudpickle

# A box is this much of the file's address space; memory is used only where something was written.
_BOX_BYTES = 1 << 36
# A letter this big is given back to the system when it was read.
_LARGE = 1 << 20


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
    """Between processes: pickles in the board's own file, past its mapping."""

    def __init__(self, fd: int, start: int, num_envs: int) -> None:
        self._fd = fd
        self._start = -(-start // 4096) * 4096
        self._num_envs = num_envs

    def put_request(self, env_id: int, content: Any) -> int:
        """A pickle of it. By cloudpickle: what the caller's main module defines is not known to a worker."""
        return self._write(2 * env_id, content, cloudpickle.dumps)

    def take_request(self, env_id: int, num_bytes: int) -> Any:
        """Unpickles it."""
        return self._read(2 * env_id, num_bytes)

    def put_reply(self, env_id: int, content: Any) -> int:
        """A pickle of it."""
        return self._write(2 * env_id + 1, content)

    def take_reply(self, env_id: int, num_bytes: int) -> Any:
        """Unpickles it."""
        return self._read(2 * env_id + 1, num_bytes)

    def put_schema(self, version: int, schema: list[Any]) -> int:
        """A pickle of it."""
        return self._write(2 * self._num_envs + version, schema)

    def take_schema(self, version: int, num_bytes: int) -> list[Any]:
        """Unpickles it."""
        schema: list[Any] = self._read(2 * self._num_envs + version, num_bytes)
        return schema

    def _write(self, box: int, content: Any, to_bytes: Callable[[Any], bytes] = dump) -> int:
        data = memoryview(to_bytes(content))
        offset = self._start + box * _BOX_BYTES
        written = 0
        while written < len(data):
            written += os.pwrite(self._fd, data[written:], offset + written)
        return len(data)

    def _read(self, box: int, num_bytes: int) -> Any:
        offset = self._start + box * _BOX_BYTES
        data = bytearray(num_bytes)
        read = 0
        while read < num_bytes:
            count = os.preadv(self._fd, [memoryview(data)[read:]], offset + read)
            if count == 0:
                raise EOFError(f"a letter of {num_bytes} bytes ends after {read}")
            read += count
        content = pickle.loads(data)
        if num_bytes >= _LARGE:
            _give_back(self._fd, offset, num_bytes)
        return content


def _give_back(fd: int, offset: int, num_bytes: int) -> None:
    """Frees the pages of a part of a file. Best effort: without it they are reused by the next letter."""
    if sys.platform != "linux":
        return
    keep_size_punch_hole = 0x01 | 0x02
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate(fd, keep_size_punch_hole, ctypes.c_int64(offset), ctypes.c_int64(num_bytes))
