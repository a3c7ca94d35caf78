"""Line: a connection of a pool's own between its caller and an actor, on which requests and replies travel as frames.

A call through Ray costs both sides hundreds of microseconds of work, a frame about twenty. Ray places, watches and
ends the actors all the same, and where no line can be made everything goes through Ray.

caller                                actor
------                                -----
                                      door = Door(secret)           # listens, and tells where
line = dial({0: (address, secret)})   line = door.open()            # the first who knows the secret
line.put(number, data)                number, data = line.take()
line.pump(); line.inbox               line.give(number, runs)
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import queue
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

_HEADER = struct.Struct("<QQ")  # bytes that follow, number
# The number of a frame that asks the actor to listen to Ray again; it holds which turn that ends.
LEAVE = (1 << 64) - 1
TURN = struct.Struct("<Q")
SECRET_BYTES = 32
_READ_BYTES = 1 << 17
_MAX_RUNS = 64  # that go to the system as they are
_OPEN_TIMEOUT_S = 10.0
_SECRET_TIMEOUT_S = 2.0

Address = tuple[str, int]
Key = TypeVar("Key")


class LineLostError(Exception):
    """The other end is gone, or cannot be reached."""


# --- the caller's end ----------------------------------------------------------------------------


class CallerLine:
    """Never waits, but in flush(). Whatever interrupts it in the middle of a frame, Ctrl-C too, ends it.

    inbox: the frames that have come, oldest first. moved_at: when something last came, or went that had to wait.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._unsent: deque[memoryview] = deque()
        self._scratch = bytearray(_READ_BYTES)
        self._num_read = 0  # in the scratch
        self._large: tuple[int, bytearray, int] | None = None  # a frame that does not fit there: number, bytes, filled
        self.inbox: deque[tuple[int, memoryview]] = deque()
        self.is_lost = False
        self.moved_at = time.monotonic()

    def fileno(self) -> int:
        """The socket's descriptor; -1 when it is lost."""
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        """Whether the other end was slower than what was put."""
        return bool(self._unsent)

    def put(self, number: int, data: bytes) -> None:
        """Sends a frame, or as much of it as goes; pump() sends the rest."""
        if self.is_lost:
            return
        head = _HEADER.pack(len(data), number)
        # Small ones as one piece: one call, one packet.
        self._unsent.extend(map(memoryview, (head + data,) if len(data) < _READ_BYTES else (head, data)))
        self._do(self._send)

    def pump(self) -> None:
        """Sends and reads what goes without waiting. A loss shows in is_lost."""
        if self.has_unsent:
            self._do(self._send)
            self.moved_at = time.monotonic()
        self._do(self._read)

    def _do(self, what: Callable[[], None]) -> None:
        if self.is_lost:
            return
        try:
            what()
        except (LineLostError, OSError):
            self.close()
        except BaseException:
            self.close()  # nobody knows how far it got
            raise

    def flush(self, timeout_s: float) -> bool:
        """Waits until all is sent, and takes in what comes meanwhile: the other end may be waiting for that. False
        when nothing moved for so long.
        """
        poll = select.poll()
        if not self.is_lost:
            poll.register(self, select.POLLIN | select.POLLOUT)
        while self.has_unsent and not self.is_lost:
            if not poll.poll(timeout_s * 1000):
                return False
            self.pump()
        return True

    def close(self) -> None:
        """Ends it, for forks of this process too."""
        self.is_lost = True
        self._unsent.clear()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _send(self) -> None:
        while self._unsent:
            try:
                sent = self._socket.send(self._unsent[0])
            except BlockingIOError:
                return
            rest = self._unsent[0][sent:]
            if rest:
                self._unsent[0] = rest
            else:
                self._unsent.popleft()

    def _read(self) -> None:
        while True:
            try:
                if not self._read_some():
                    return
            except BlockingIOError:
                return

    def _read_some(self) -> bool:
        """False when there was less than asked for: there is no more."""
        if self._large is not None:
            number, data, filled = self._large
            target = memoryview(data)[filled:]
            count = self._received(target)
            filled += count
            self._large = (number, data, filled) if filled < len(data) else None
            if self._large is None:
                self.inbox.append((number, memoryview(data)))
            return count == len(target)
        target = memoryview(self._scratch)[self._num_read :]
        count = self._received(target)
        self._num_read += count
        self._cut_frames()
        return count == len(target)

    def _received(self, target: memoryview) -> int:
        count = self._socket.recv_into(target)
        if count == 0:
            raise LineLostError
        self.moved_at = time.monotonic()
        return count

    def _cut_frames(self) -> None:
        start, end = 0, self._num_read
        while end - start >= _HEADER.size:
            size, number = _HEADER.unpack_from(self._scratch, start)
            body = start + _HEADER.size
            if body + size > end:
                if _HEADER.size + size > _READ_BYTES:
                    data = bytearray(size)
                    data[: end - body] = self._scratch[body:end]
                    self._large = (number, data, end - body)
                    start = end
                break
            self.inbox.append((number, memoryview(bytes(self._scratch[body : body + size]))))
            start = body + size
        self._scratch[: end - start] = self._scratch[start:end]
        self._num_read = end - start


def dial(doors: Mapping[Key, tuple[Address, bytes]], timeout_s: float) -> dict[Key, CallerLine]:
    """A line to each of these (address, secret) that can be reached in time, all at once."""
    sockets: dict[int, tuple[Key, socket.socket]] = {}
    lines: dict[Key, CallerLine] = {}
    poll = select.poll()
    try:
        for key, (address, _) in doors.items():
            with contextlib.suppress(OSError):
                family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
                sock = socket.socket(family, socket.SOCK_STREAM)
                sockets[sock.fileno()] = (key, sock)
                sock.setblocking(False)
                sock.connect_ex(address)
                poll.register(sock, select.POLLOUT)
        deadline = time.monotonic() + timeout_s
        while len(lines) < len(sockets) and (ready := poll.poll(max(0.0, deadline - time.monotonic()) * 1000)):
            for fd, event in ready:
                key, sock = sockets[fd]
                try:
                    if event & select.POLLOUT:
                        _tune(sock)
                        sock.sendall(doors[key][1])
                        poll.modify(fd, select.POLLIN)
                        continue
                    said = sock.recv(SECRET_BYTES)
                except OSError:
                    said = b""
                poll.unregister(fd)
                # Somebody else may answer at any address.
                if hmac.compare_digest(said, _proof(doors[key][1])):
                    lines[key] = CallerLine(sock)
    finally:
        for key, sock in sockets.values():
            if key not in lines:
                sock.close()
    return lines


def _proof(secret: bytes) -> bytes:
    """What an actor answers to who knows its secret."""
    return hashlib.sha256(b"envfleet " + secret).digest()


def _tune(sock: socket.socket) -> None:
    """Frames go at once, and that an idle end vanished without a word is noticed in half a minute."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):  # each system has its own
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


# --- the actor's end -----------------------------------------------------------------------------


class Door:
    """Where an actor waits for its caller, in a thread: it may have other things to do. Raises OSError when it cannot
    listen there.
    """

    def __init__(self, host: str, secret: bytes) -> None:
        self._secret = secret
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family)
        self.address: Address = (host, self._socket.getsockname()[1])
        self._line: ActorLine | None = None
        self._thread = threading.Thread(target=self._admit, name="envfleet-door", daemon=True)
        self._thread.start()

    def open(self) -> ActorLine:
        """The line to the first who knew the secret. Raises LineLostError."""
        self._thread.join()
        if self._line is None:
            raise LineLostError
        return self._line

    def _admit(self) -> None:
        """Lets one in, and nobody after that."""
        deadline = time.monotonic() + _OPEN_TIMEOUT_S
        with contextlib.suppress(OSError), self._socket:  # closed, or nobody came in time
            while self._line is None and (left := deadline - time.monotonic()) > 0:
                self._socket.settimeout(left)
                sock, _ = self._socket.accept()
                with contextlib.suppress(OSError):
                    sock.settimeout(min(left, _SECRET_TIMEOUT_S))
                    if hmac.compare_digest(sock.recv(SECRET_BYTES, socket.MSG_WAITALL), self._secret):
                        sock.sendall(_proof(self._secret))
                        self._line = ActorLine(sock)
                        continue
                sock.close()

    def close(self) -> None:
        """Lets nobody in any more."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # closing alone would not wake who waits there
        self._thread.join()


class ActorLine:
    """Waits for requests. Replies never wait: an actor must come to its next request, or back to Ray, whether the
    caller listens or not.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        _tune(sock)
        self._socket = sock
        self._outbox: queue.SimpleQueue[Sequence[Any] | None] | None = None

    def take(self) -> tuple[int, memoryview]:
        """The next frame. Raises LineLostError."""
        size, number = _HEADER.unpack(self._exactly(_HEADER.size))
        return number, self._exactly(size)

    def give(self, number: int, runs: Sequence[bytes]) -> None:
        """Sends a frame, or has it sent."""
        frame: list[Any] = [_HEADER.pack(sum(map(len, runs)), number), *(run for run in runs if run)]
        if len(frame) > _MAX_RUNS:
            frame = [b"".join(frame)]
        if self._outbox is None:
            frame = self._send_now(frame)
            if not frame:
                return
            # The caller is slow to listen, and this is large: from now on a thread sends.
            self._outbox = queue.SimpleQueue()
            threading.Thread(target=self._send_all, name="envfleet-replies", daemon=True).start()
        self._outbox.put(frame)

    def close(self) -> None:
        """Ends it."""
        if self._outbox is not None:
            self._outbox.put(None)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _exactly(self, count: int) -> memoryview:
        data = bytearray(count)
        view = memoryview(data)
        try:
            while view:
                received = self._socket.recv_into(view)
                if received == 0:
                    raise LineLostError
                view = view[received:]
        except OSError as error:
            raise LineLostError from error
        return memoryview(data)

    def _send_now(self, frame: list[Any]) -> list[Any]:
        """Sends what goes without waiting; the rest."""
        try:
            while frame:
                frame = _after(frame, self._socket.sendmsg(frame, (), socket.MSG_DONTWAIT))
        except BlockingIOError:
            pass
        except OSError as error:
            raise LineLostError from error
        return frame

    def _send_all(self) -> None:
        assert self._outbox is not None
        # It shows in take() when the caller is gone.
        with contextlib.suppress(OSError):
            while (frame := self._outbox.get()) is not None:
                for run in frame:
                    self._socket.sendall(run)


def _after(frame: list[Any], count: int) -> list[Any]:
    """What is left of a frame after its first count bytes."""
    for position, run in enumerate(frame):
        if count < len(run):
            return [memoryview(run)[count:], *frame[position + 1 :]]
        count -= len(run)
    return []
