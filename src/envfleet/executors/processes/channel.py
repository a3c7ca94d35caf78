"""Channel: whole messages, with descriptors, over a Unix socket."""

from __future__ import annotations

import array
import contextlib
import socket
import struct
from collections.abc import Sequence

_HEADER = struct.Struct("<QI")
_MAX_FDS = 8


class Channel:
    """One end. Not for two threads at once in the same direction."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    @staticmethod
    def pair() -> tuple[Channel, Channel]:
        """Two ends of one channel."""
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return Channel(one), Channel(other)

    def send(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Sends a message; the descriptors arrive as the receiver's own."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        header = _HEADER.pack(len(data), len(fds))
        # The header is short enough to go in one piece, and the descriptors with it.
        sent = self._socket.sendmsg([header], rights)
        self._socket.sendall(header[sent:] + data)

    def recv(self) -> tuple[bytes, list[int]] | None:
        """The next message; None when the other end is gone."""
        size = array.array("i").itemsize
        try:
            header, ancillary, _, _ = self._socket.recvmsg(_HEADER.size, socket.CMSG_SPACE(_MAX_FDS * size))
            fds = array.array("i")
            for level, kind, data in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds.frombytes(data[: len(data) - len(data) % size])
            header += self._exactly(_HEADER.size - len(header))
            return self._exactly(_HEADER.unpack(header)[0]), list(fds)
        except (EOFError, ConnectionError):
            return None

    def _exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self._socket.recv(min(count - len(parts), 1 << 20))
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._socket.fileno()

    def hang_up(self) -> None:
        """Says that nothing more will be sent."""
        with contextlib.suppress(OSError):  # the other end is gone
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Closes this end."""
        self._socket.close()
