"""Shared memory between processes, as an anonymous file."""

from __future__ import annotations

import errno

from envfleet import _native
from envfleet.core.descriptors import above_standard_streams
from envfleet.core.errors import EnvfleetError
from envfleet.executors.python.side_channel import file_size_limit


def shared_memory(num_bytes: int) -> _native.MemoryFile:
    """Create a file of this size, which disappears when the last process that has it open ends."""
    try:
        return above_standard_streams(lambda: [_native.MemoryFile(num_bytes)])[0]
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise EnvfleetError(
                f"expected {num_bytes} bytes of shared memory, got {error}; "
                "close other pools or files, or raise the limit (ulimit -n for descriptors)"
            ) from error
        raise EnvfleetError(
            f"expected {num_bytes} bytes of shared memory, got a limit of {file_size_limit()} bytes per file; "
            "raise the limit (ulimit -f), or use fewer envs per pool"
        ) from error


def memory_file(num_bytes: int) -> int:
    """Create an anonymous shared-memory file and return its descriptor; the caller closes it."""
    return shared_memory(num_bytes).detach()
