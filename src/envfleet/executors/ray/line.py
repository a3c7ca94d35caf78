"""Line: a connection of a pool's own between its caller and an actor, on which requests and replies travel as frames.

A call through Ray costs both sides hundreds of microseconds of work, a frame about twenty. Ray places, watches and
ends the actors all the same, and where no line can be made everything goes through Ray.

caller                                actor
------                                -----
                                      door = Door(secret)           # listens, and tells where
line = dial({0: (address, secret)})   line = door.open()            # the first who proves to know the secret
line.put(number, data)                number, data = line.take()
line.pump(); line.inbox               line.give(number, sealed, columns)

A frame is its tag, a header, sealed bytes and columns. The tag covers all but the columns: those are only ever
read as numbers of a known type, and to hash megabytes of observations would cost more than to send them. No frame is
handed out, and so none unpickled, before its tag was checked.
"""

from __future__ import annotations

import contextlib
import queue
import select
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from envfleet.executors.ray.authentication import (
    CHALLENGE_BYTES,
    HELLO_BYTES,
    PROOF_BYTES,
    TAG_BYTES,
    ActorHandshake,
    AuthenticationError,
    CallerHandshake,
    FrameTags,
)

_HEADER = struct.Struct("<QQQ")  # number, sealed bytes, bytes of columns
_PREFIX_BYTES = TAG_BYTES + _HEADER.size
# More than any frame has; what claims to be longer is refused before there is memory for it.
_MAX_FRAME_BYTES = 1 << 36
# The number of a frame that asks the actor to listen to Ray again; it holds which turn that ends.
LEAVE = (1 << 64) - 1
TURN = struct.Struct("<Q")
_READ_BYTES = 1 << 17
_MAX_RUNS = 64  # that go to the system as they are
_JOINED_BYTES = 1 << 14  # up to which it is quicker to copy them into one
_OPEN_TIMEOUT_S = 10.0
# Whoever connects to an actor has so long to prove itself, and so many may be about it at once.
_HANDSHAKE_TIMEOUT_S = 5.0
_MAX_HANDSHAKES = 32

Address = tuple[str, int]
Key = TypeVar("Key")


class LineLostError(Exception):
    """The other end is gone, or cannot be reached."""


def _parsed(prefix: Any, offset: int = 0) -> tuple[int, int, int]:
    """The number of a frame that begins there, its sealed bytes, and all that follow its prefix."""
    number, num_sealed, num_columns = _HEADER.unpack_from(prefix, offset + TAG_BYTES)
    if num_sealed > _MAX_FRAME_BYTES or num_columns > _MAX_FRAME_BYTES:
        raise AuthenticationError(f"expected a frame of at most {_MAX_FRAME_BYTES} bytes, got more")
    return number, num_sealed, num_sealed + num_columns


def _buffer(num_bytes: int) -> memoryview:
    """Memory to read into. A large one takes none before something is written to it."""
    if num_bytes < _READ_BYTES:
        return memoryview(bytearray(num_bytes))
    return np.empty(num_bytes, np.uint8).data


# --- the caller's end ----------------------------------------------------------------------------


class CallerLine:
    """Never waits, but in flush(). Whatever interrupts it in the middle of a frame, Ctrl-C too, ends it.

    inbox: the frames that have come, oldest first. moved_at: when something last came, or went that had to wait.
    """

    def __init__(self, sock: socket.socket, sent: FrameTags, received: FrameTags) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._sent = sent
        self._received = received
        self._unsent: deque[memoryview] = deque()
        self._scratch = bytearray(_READ_BYTES)
        self._num_read = 0  # in the scratch
        self._large: _LargeFrame | None = None  # one that does not fit there
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
        try:
            header = _HEADER.pack(number, len(data), 0)
            prefix = self._sent.next(header, len(data), data) + header
            # Small ones as one piece: one call, one packet.
            self._unsent.extend(map(memoryview, (prefix + data,) if len(data) < _READ_BYTES else (prefix, data)))
        except BaseException:
            self.close()  # the other end expects a tag that was never sent
            raise
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
        except (LineLostError, AuthenticationError, OSError, MemoryError):
            self.close()
        except BaseException:
            self.close()  # how far it got is unknown
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
        large = self._large
        if large is not None:
            target = large.body[large.num_read :]
            count = self._received_into(target)
            large.num_read += count
            if large.num_read == len(large.body):
                sealed = large.body[: large.num_sealed]
                self._received.check(large.prefix[:TAG_BYTES], large.prefix[TAG_BYTES:], sealed)
                self.inbox.append((large.number, large.body))
                self._large = None
            return count == len(target)
        target = memoryview(self._scratch)[self._num_read :]
        count = self._received_into(target)
        self._num_read += count
        self._cut_frames()
        return count == len(target)

    def _received_into(self, target: memoryview) -> int:
        count = self._socket.recv_into(target)
        if count == 0:
            raise LineLostError
        self.moved_at = time.monotonic()
        return count

    def _cut_frames(self) -> None:
        start, end = 0, self._num_read
        while end - start >= _PREFIX_BYTES:
            number, num_sealed, size = _parsed(self._scratch, start)
            body = start + _PREFIX_BYTES
            if body + size > end:
                if _PREFIX_BYTES + size > _READ_BYTES:
                    data = _buffer(size)
                    data[: end - body] = self._scratch[body:end]
                    self._large = _LargeFrame(bytes(self._scratch[start:body]), number, num_sealed, data, end - body)
                    start = end
                break
            frame = memoryview(bytes(self._scratch[start : body + size]))
            sealed = frame[_PREFIX_BYTES : _PREFIX_BYTES + num_sealed]
            self._received.check(frame[:TAG_BYTES], frame[TAG_BYTES:_PREFIX_BYTES], sealed)
            self.inbox.append((number, frame[_PREFIX_BYTES:]))
            start = body + size
        if start < end:
            self._scratch[: end - start] = self._scratch[start:end]
        self._num_read = end - start


@dataclass
class _LargeFrame:
    """A frame of which the first num_read bytes of its body have come."""

    prefix: bytes
    number: int
    num_sealed: int
    body: memoryview
    num_read: int


def dial(doors: Mapping[Key, tuple[Address, bytes]], timeout_s: float) -> dict[Key, CallerLine]:
    """A line to each of these (address, secret) that proves itself in time, all at once."""
    lines: dict[Key, CallerLine] = {}
    deadline = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        try:
            for key, (address, secret) in doors.items():
                with contextlib.suppress(OSError):
                    selector.register(
                        (dialing := _Dialing(key, address, secret)).socket, selectors.EVENT_WRITE, dialing
                    )
            while selector.get_map() and (ready := selector.select(max(0.0, deadline - time.monotonic()))):
                for entry, _ in ready:
                    dialing = entry.data
                    try:
                        line = dialing.go_on()
                    except (OSError, AuthenticationError):  # not there, or not the actor: anything may answer there
                        selector.unregister(dialing.socket)
                        dialing.socket.close()
                        continue
                    if line is None:
                        selector.modify(dialing.socket, selectors.EVENT_READ, dialing)
                    else:
                        selector.unregister(dialing.socket)
                        lines[dialing.key] = line
        finally:
            for entry in list(selector.get_map().values()):
                entry.data.socket.close()
    return lines


class _Dialing(Generic[Key]):
    """A connection on its way to be a caller's line."""

    def __init__(self, key: Key, address: Address, secret: bytes) -> None:
        self.key = key
        self.socket = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        self.socket.connect_ex(address)
        self._handshake = CallerHandshake(secret)
        self._is_greeted = False
        self._challenge = b""

    def go_on(self) -> CallerLine | None:
        """Does what the socket is ready for; the line when all is done. Raises when it comes to nothing."""
        if not self._is_greeted:
            _tune(self.socket)
            self.socket.sendall(self._handshake.hello)  # raises when the connection was refused
            self._is_greeted = True
            return None
        part = self.socket.recv(CHALLENGE_BYTES - len(self._challenge))
        if not part:
            raise AuthenticationError("expected an actor's challenge, got the end of the connection")
        self._challenge += part
        if len(self._challenge) < CHALLENGE_BYTES:
            return None
        proof, sent, received = self._handshake.answer(self._challenge)
        self.socket.sendall(proof)
        return CallerLine(self.socket, sent, received)


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

    Others may connect as well, and say nothing, or nonsense: each has a few seconds, and of too many the oldest goes.
    """

    def __init__(self, host: str, secret: bytes) -> None:
        self._secret = secret
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family)
        self._socket.setblocking(False)
        self.address: Address = (host, self._socket.getsockname()[1])
        self._line: ActorLine | None = None
        self._stop, self._stopped = socket.socketpair()
        self._thread = threading.Thread(target=self._admit, name="envfleet-door", daemon=True)
        self._thread.start()

    def open(self) -> ActorLine:
        """The line to the first who proved to know the secret. Raises LineLostError."""
        self._thread.join()
        self.close()
        if self._line is None:
            raise LineLostError
        return self._line

    def close(self) -> None:
        """Lets nobody in any more."""
        self._stop.close()
        self._thread.join()

    def _admit(self) -> None:
        """Lets one in, and nobody after that."""
        deadline = time.monotonic() + _OPEN_TIMEOUT_S
        guests: dict[socket.socket, _Guest] = {}  # oldest first
        with self._socket, self._stopped, selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(self._stopped, selectors.EVENT_READ)
            while self._line is None and (now := time.monotonic()) < deadline:
                for guest in [own for own in guests.values() if own.deadline <= now]:
                    _dismiss(guests, guest, selector)
                until = min([deadline, *(guest.deadline for guest in guests.values())])
                for entry, _ in selector.select(max(0.0, until - now)):
                    if entry.fileobj is self._stopped:
                        deadline = now
                    elif entry.fileobj is self._socket:
                        self._greet(guests, selector)
                    elif entry.data.socket in guests and self._line is None:  # else it was one too many
                        self._hear(guests, entry.data, selector)
            for guest in list(guests.values()):
                _dismiss(guests, guest, selector)

    def _greet(self, guests: dict[socket.socket, _Guest], selector: selectors.BaseSelector) -> None:
        try:
            sock, _ = self._socket.accept()
        except OSError:  # gone already, or no descriptor is left
            num_allowed = len(guests) - 1
        else:
            sock.setblocking(False)
            guests[sock] = _Guest(sock, self._secret)
            selector.register(sock, selectors.EVENT_READ, guests[sock])
            num_allowed = _MAX_HANDSHAKES
        if len(guests) > max(0, num_allowed):
            _dismiss(guests, next(iter(guests.values())), selector)

    def _hear(self, guests: dict[socket.socket, _Guest], guest: _Guest, selector: selectors.BaseSelector) -> None:
        try:
            line = guest.go_on()
        except BlockingIOError:
            return
        except (OSError, AuthenticationError):
            _dismiss(guests, guest, selector)
            return
        if line is not None:
            selector.unregister(guest.socket)
            del guests[guest.socket]
            self._line = line


class _Guest:
    """Who has connected to an actor, and not proved anything yet."""

    def __init__(self, sock: socket.socket, secret: bytes) -> None:
        self.socket = sock
        self.deadline = time.monotonic() + _HANDSHAKE_TIMEOUT_S
        self._handshake = ActorHandshake(secret)
        self._is_challenged = False
        self._said = b""

    def go_on(self) -> ActorLine | None:
        """Takes in what came; the line when the handshake is done. Raises when it comes to nothing."""
        wanted = PROOF_BYTES if self._is_challenged else HELLO_BYTES
        # No more than that: after the proof the first frame may follow.
        part = self.socket.recv(wanted - len(self._said))
        if not part:
            raise AuthenticationError("expected a handshake, got the end of the connection")
        self._said += part
        if len(self._said) < wanted:
            return None
        said, self._said = self._said, b""
        if self._is_challenged:
            return ActorLine(self.socket, *self._handshake.finish(said))
        self.socket.sendall(self._handshake.challenge(said))
        self._is_challenged = True
        return None


def _dismiss(guests: dict[socket.socket, _Guest], guest: _Guest, selector: selectors.BaseSelector) -> None:
    selector.unregister(guest.socket)
    del guests[guest.socket]
    guest.socket.close()


class ActorLine:
    """Waits for requests. Replies never wait: an actor must come to its next request, or back to Ray, whether the
    caller listens or not.
    """

    def __init__(self, sock: socket.socket, sent: FrameTags, received: FrameTags) -> None:
        sock.setblocking(True)
        _tune(sock)
        self._socket = sock
        self._sent = sent
        self._received = received
        self._outbox: queue.SimpleQueue[Sequence[Any] | None] | None = None

    def take(self) -> tuple[int, memoryview]:
        """The next frame. Raises LineLostError."""
        try:
            prefix = self._exactly(_PREFIX_BYTES)
            number, num_sealed, size = _parsed(prefix)
            body = self._exactly(size)
            self._received.check(prefix[:TAG_BYTES], prefix[TAG_BYTES:], body[:num_sealed])
            return number, body
        except (OSError, AuthenticationError, MemoryError) as error:
            raise LineLostError from error

    def give(self, number: int, sealed: Sequence[bytes], columns: Sequence[bytes]) -> None:
        """Sends a frame, or has it sent."""
        num_sealed, num_columns = sum(map(len, sealed)), sum(map(len, columns))
        header = _HEADER.pack(number, num_sealed, num_columns)
        frame: list[Any] = [self._sent.next(header, num_sealed, *sealed), header, *sealed, *columns]
        if len(frame) > _MAX_RUNS or num_sealed + num_columns < _JOINED_BYTES:
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
        data = view = _buffer(count)
        while view:
            received = self._socket.recv_into(view)
            if received == 0:
                raise LineLostError
            view = view[received:]
        return data

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
