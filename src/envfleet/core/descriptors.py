"""Descriptors 0 to 2 belong to the standard streams, even if a process (a daemon, for example) has closed those.

A file that takes such a number is overwritten by the next C library that prints something.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

_MAX_STANDARD_FD = 2


class _Closable(Protocol):
    def fileno(self) -> int: ...
    def close(self) -> None: ...


Files = TypeVar("Files", bound=Sequence[_Closable])


def above_standard_streams(open_files: Callable[[], Files]) -> Files:
    """Return the result of the first call that takes no number of a standard stream.

    Opens again instead of duplicating: the files own their descriptors, so that an exception from a signal handler
    leaks none.
    """
    too_low: list[_Closable] = []  # open until the end: otherwise the next call would take the same numbers
    try:
        while True:
            files = open_files()
            if min(file.fileno() for file in files) > _MAX_STANDARD_FD:
                return files
            too_low += files
    finally:
        for file in too_low:
            file.close()


def move_above_standard_streams(fd: int) -> int:
    """Return the descriptor, or a duplicate that replaces it if it has the number of a standard stream."""
    if fd > _MAX_STANDARD_FD:
        return fd
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _MAX_STANDARD_FD + 1)
    os.close(fd)
    return moved


def open_closed_standard_streams() -> None:
    """Open the null device for every standard stream that is closed. Only for processes that belong to envfleet."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= _MAX_STANDARD_FD:
        os.set_inheritable(fd, True)
    os.close(fd)


def is_inherited(fd: int) -> bool:
    """Return whether a program started from here has this descriptor too: it is open, and not close-on-exec."""
    try:
        return os.get_inheritable(fd)
    except OSError:  # it is closed
        return False
