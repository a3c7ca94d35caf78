"""Memory that processes share, as a file without a name."""

from __future__ import annotations

import errno
import resource

from envfleet import _native
from envfleet.errors import EnvfleetError


def shared_memory(num_bytes: int) -> _native.MemoryFile:
    """A new file of this size. Nothing is left of it when the last process that has it ends."""
    try:
        return _native.MemoryFile(num_bytes)
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise EnvfleetError(
                f"expected {num_bytes} bytes of shared memory, got {error}; "
                "close other pools or files, or raise the limit (ulimit -n for descriptors)"
            ) from error
        raise EnvfleetError(
            f"expected to create a file of {num_bytes} bytes in shared memory, but this process may not have files "
            f"of more than {file_size_limit()} bytes; raise the limit (ulimit -f), or use fewer envs per pool"
        ) from error


def memory_file(num_bytes: int) -> int:
    """The descriptor of a new one, which the caller closes."""
    return shared_memory(num_bytes).detach()


def file_size_limit() -> int:
    """How large a file this process may write (ulimit -f), in bytes; -1 for no limit."""
    return resource.getrlimit(resource.RLIMIT_FSIZE)[0]
