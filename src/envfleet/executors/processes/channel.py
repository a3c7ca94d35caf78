"""Channel: complete messages, with file descriptors, over a Unix socket."""

from __future__ import annotations

import array
import contextlib
import os
import select
import socket
import struct
import time
from collections.abc import Sequence

from envfleet.core.descriptors import above_standard_streams, move_above_standard_streams

_HEADER = struct.Struct("<QI")
_MAX_FDS = 8
_CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)  # 0: macOS, which has no such flag
_FD_BYTES = array.array("i").itemsize


class Channel:
    """One end of a channel. One thread at a time in each direction.

    An exception in the middle of send() or recv() (such as Ctrl-C) leaves a partial message behind: close the channel.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    @staticmethod
    def pair() -> tuple[Channel, Channel]:
        """Return the two ends of a new channel."""
        one, other = above_standard_streams(lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM))
        return Channel(one), Channel(other)

    @staticmethod
    def adopt(fd: int) -> Channel:
        """Return the end with this inherited descriptor, which is not passed on to programs started from here."""
        sock = socket.socket(fileno=fd)
        sock.set_inheritable(False)
        return Channel(sock)

    def send(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Send a message; the receiver gets duplicates of the descriptors."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        header = _HEADER.pack(len(data), len(fds))
        # The descriptors travel with the first byte.
        sent = self._socket.sendmsg([header, data], rights)
        if sent < len(header) + len(data):
            self._socket.sendall(header[sent:])
            self._socket.sendall(memoryview(data)[max(0, sent - len(header)) :])

    def recv(self, deadline: float | None = None) -> tuple[bytes, list[int]] | None:
        """Return the next message; None if the other end is closed.

        deadline: as time.monotonic(); raises TimeoutError if the message is not complete by then.
        """
        fds = array.array("i")
        try:
            self._await_data(deadline)
            # Close-on-exec: a program started by an env must not keep a pool's memory alive.
            header, ancillary, _, _ = self._socket.recvmsg(
                _HEADER.size, socket.CMSG_SPACE(_MAX_FDS * _FD_BYTES), _CLOSE_ON_EXEC
            )
            for level, kind, data in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds.frombytes(data[: len(data) - len(data) % _FD_BYTES])
            for index, fd in enumerate(fds):
                fds[index] = move_above_standard_streams(fd)
                if not _CLOSE_ON_EXEC:
                    os.set_inheritable(fds[index], False)
            if not header:
                return None
            header += self._exactly(_HEADER.size - len(header), deadline)
            return self._exactly(_HEADER.unpack(header)[0], deadline), list(fds)
        except BaseException as error:
            # Their message never arrived completely, so they would stay open for ever.
            for fd in fds:
                os.close(fd)
            if isinstance(error, (EOFError, ConnectionError)):
                return None
            raise

    def _exactly(self, count: int, deadline: float | None) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            self._await_data(deadline)
            part = self._socket.recv(min(count - len(parts), 1 << 20))
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)

    def _await_data(self, deadline: float | None) -> None:
        if deadline is None:
            return
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._socket.fileno()

    def shutdown_write(self) -> None:
        """Signal that nothing more will be sent."""
        with contextlib.suppress(OSError):  # the other end is gone
            self._socket.shutdown(socket.SHUT_WR)

    def shutdown_read(self) -> None:
        """Make recv() return None after what has arrived, even if a third process still holds the other end."""
        with contextlib.suppress(OSError):  # it is closed
            self._socket.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        """Close this end."""
        self._socket.close()
