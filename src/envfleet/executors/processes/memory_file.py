"""Memory that processes share, as a file without a name."""

from __future__ import annotations

import os
import sys
import tempfile


def memory_file(num_bytes: int) -> int:
    """The descriptor of a new one. Nothing is left of it when the last process that has it ends."""
    if sys.platform == "linux":
        fd = os.memfd_create("envfleet")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, num_bytes)
    return fd
