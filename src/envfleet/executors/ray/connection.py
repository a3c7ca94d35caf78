"""Authenticated connections between the caller and an actor, which carry requests and responses as frames.

A call through Ray costs both sides hundreds of microseconds, a frame about twenty. Ray still places, watches and ends
the actors, and carries the messages wherever no connection can be made.

caller                                            actor
------                                            -----
                                                  listener = Listener(host, secret)
connection = connect_all({0: (address, secret)})  connection = listener.accept()   # the first who knows the secret
connection.send(number, data)                     number, data = connection.recv()
connection.pump(); connection.received            connection.send(number, authenticated, columns)

Handshake. Both ends know a secret that travelled through Ray and never crosses the connection. Each proves with an
HMAC over both nonces that it knows the secret; the actor goes first, so a caller never helps an impostor.

caller                                            actor
hello = magic + caller_nonce               ->
                                           <-     actor_nonce + HMAC(secret, "actor" + both nonces)
HMAC(secret, "caller" + both nonces)       ->

Frames. A frame is a tag, a header, authenticated bytes, and columns. Each direction has its own key, derived from the
secret and both nonces. The tag covers the frame's position in the sequence, its header and the authenticated bytes, so
frames cannot be altered, dropped, repeated or reordered. The columns of a response are not covered: they are only ever
read as numbers of a known dtype, and hashing megabytes of observations costs more than sending them. No frame is
returned, and so none is unpickled, before its tag was checked.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
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

SECRET_BYTES = 32
PROOF_BYTES = 32
TAG_BYTES = 16
_MAGIC = b"envfleet-ray/2\n"
_NONCE_BYTES = 32
_SHA256_BYTES = 1 << 12  # from this size on, a tag covers the SHA-256 of the content
HELLO_BYTES = len(_MAGIC) + _NONCE_BYTES
CHALLENGE_BYTES = _NONCE_BYTES + PROOF_BYTES

_HEADER = struct.Struct("<QQQ")  # number, authenticated bytes, bytes of columns
_PREFIX_BYTES = TAG_BYTES + _HEADER.size
# Larger than any frame. A header that claims more is rejected before memory is allocated for it.
_MAX_FRAME_BYTES = 1 << 36
# The number of a frame that makes the actor return to Ray's own calls; it holds the id of the serve() call to end.
STOP_SERVING = (1 << 64) - 1
SERVE_ID = struct.Struct("<Q")
_READ_BYTES = 1 << 17
_MAX_BUFFERS = 64  # per sendmsg()
_JOINED_BYTES = 1 << 14  # up to this size, one copy is cheaper than several buffers
_ACCEPT_TIMEOUT_S = 10.0
# The time that each client has to prove itself, and how many may be doing so at once.
_HANDSHAKE_TIMEOUT_S = 5.0
_MAX_HANDSHAKES = 32

Address = tuple[str, int]
Key = TypeVar("Key")


class ConnectionLostError(Exception):
    """The other end is gone, or cannot be reached."""


class AuthenticationError(Exception):
    """The other end does not know the secret, or a frame is not the one it sent."""


# --- authentication ------------------------------------------------------------------------------


class FrameTags:
    """The tags of the frames of one direction, in order. Each end has one for sending and one for receiving.

    Keyed BLAKE2b: of the standard library's keyed hashes it is the cheapest for a frame of a few hundred bytes. For
    large content the tag covers the SHA-256, for which processors have instructions.
    """

    def __init__(self, key: bytes) -> None:
        self._start = hashlib.blake2b(key=key, digest_size=TAG_BYTES)
        self._num_frames = 0

    def next(self, header: Any, num_bytes: int, *parts: Any) -> bytes:
        """Return the tag of the next frame, over its header and these parts of num_bytes in total."""
        tag = self._start.copy()
        tag.update(self._num_frames.to_bytes(8, "little"))
        tag.update(header)
        content = tag if num_bytes < _SHA256_BYTES else hashlib.sha256()
        for part in parts:
            content.update(part)
        if content is not tag:
            tag.update(content.digest())
        self._num_frames += 1
        return tag.digest()

    def check(self, tag: Any, header: Any, part: memoryview) -> None:
        """Raise AuthenticationError unless this is the tag of the next frame."""
        if not hmac.compare_digest(tag, self.next(header, len(part), part)):
            raise AuthenticationError("expected the tag that the sender computes for this frame, got another")


class CallerHandshake:
    """The caller's side of the handshake."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._nonce = os.urandom(_NONCE_BYTES)
        self.hello = _MAGIC + self._nonce

    def respond(self, challenge: bytes) -> tuple[bytes, FrameTags, FrameTags]:
        """Check the actor's proof; return the caller's proof and the tags for sending and for receiving."""
        nonces = self._nonce + challenge[:_NONCE_BYTES]
        if not hmac.compare_digest(challenge[_NONCE_BYTES:], _hmac(self._secret, b"actor", nonces)):
            raise AuthenticationError("expected the proof of the actor at this address, got another")
        to_actor, to_caller = _frame_keys(self._secret, nonces)
        return _hmac(self._secret, b"caller", nonces), FrameTags(to_actor), FrameTags(to_caller)


class ActorHandshake:
    """The actor's side of the handshake with one client."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._nonces = b""

    def challenge(self, hello: bytes) -> bytes:
        """Return the challenge for a client that sent this hello."""
        if hello[: len(_MAGIC)] != _MAGIC:
            raise AuthenticationError("expected the hello of a pool of this version")
        nonce = os.urandom(_NONCE_BYTES)
        self._nonces = hello[len(_MAGIC) :] + nonce
        return nonce + _hmac(self._secret, b"actor", self._nonces)

    def finish(self, proof: bytes) -> tuple[FrameTags, FrameTags]:
        """Check the caller's proof; return the tags for sending and for receiving."""
        if not hmac.compare_digest(proof, _hmac(self._secret, b"caller", self._nonces)):
            raise AuthenticationError("expected the proof of the caller")
        to_actor, to_caller = _frame_keys(self._secret, self._nonces)
        return FrameTags(to_caller), FrameTags(to_actor)


def _frame_keys(secret: bytes, nonces: bytes) -> tuple[bytes, bytes]:
    """Return the keys of frames to the actor and of frames to the caller."""
    return _hmac(secret, b"frames to the actor", nonces), _hmac(secret, b"frames to the caller", nonces)


def _hmac(secret: bytes, role: bytes, nonces: bytes) -> bytes:
    # Nonces have a fixed length, so one role's input cannot be read as another role with other nonces.
    return hmac.digest(secret, role + nonces, "sha256")


# --- frames --------------------------------------------------------------------------------------


def _parse_prefix(prefix: Any, offset: int = 0) -> tuple[int, int, int]:
    """Return a frame's number, its authenticated bytes, and all bytes after the prefix."""
    number, num_authenticated, num_columns = _HEADER.unpack_from(prefix, offset + TAG_BYTES)
    if num_authenticated > _MAX_FRAME_BYTES or num_columns > _MAX_FRAME_BYTES:
        raise AuthenticationError(f"expected a frame of at most {_MAX_FRAME_BYTES} bytes, got more")
    return number, num_authenticated, num_authenticated + num_columns


def _allocate(num_bytes: int) -> memoryview:
    """Return memory to read into. A large block occupies no memory until it is written to."""
    if num_bytes < _READ_BYTES:
        return memoryview(bytearray(num_bytes))
    return np.empty(num_bytes, np.uint8).data


# --- the caller's end ----------------------------------------------------------------------------


class CallerConnection:
    """The caller's end. Only flush() blocks.

    received: the frames that have arrived, oldest first. last_activity: when bytes last arrived, or when bytes that
    had been waiting were last sent.
    """

    def __init__(self, sock: socket.socket, send_tags: FrameTags, recv_tags: FrameTags) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._send_tags = send_tags
        self._recv_tags = recv_tags
        self._unsent: deque[memoryview] = deque()
        self._buffer = bytearray(_READ_BYTES)
        self._num_buffered = 0
        self._large: _LargeFrame | None = None  # a frame that does not fit into the buffer
        self.received: deque[tuple[int, memoryview]] = deque()
        self.is_lost = False
        self.last_activity = time.monotonic()

    def fileno(self) -> int:
        """Return the socket's descriptor; -1 after close()."""
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        """Whether the other end has not yet taken everything that was sent."""
        return bool(self._unsent)

    def send(self, number: int, data: bytes) -> None:
        """Send a frame, or as much of it as the socket takes; pump() sends the rest."""
        if self.is_lost:
            return
        header = _HEADER.pack(number, len(data), 0)
        prefix = self._send_tags.next(header, len(data), data) + header
        # A small frame as one buffer: one system call, one packet.
        self._unsent.extend(map(memoryview, (prefix + data,) if len(data) < _READ_BYTES else (prefix, data)))
        self._attempt(self._send)

    def pump(self) -> None:
        """Send and read as much as possible without blocking. A loss shows in is_lost."""
        if self.has_unsent:
            self._attempt(self._send)
            self.last_activity = time.monotonic()
        self._attempt(self._read)

    def _attempt(self, transfer: Callable[[], None]) -> None:
        if self.is_lost:
            return
        try:
            transfer()
        except (ConnectionLostError, AuthenticationError, OSError, MemoryError):
            self.close()

    def flush(self, timeout_s: float) -> bool:
        """Block until everything is sent, reading meanwhile: the other end may be waiting for that.

        Returns False if nothing moved for timeout_s.
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
        """Close the connection, for forks of this process too."""
        self.is_lost = True
        self._unsent.clear()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _send(self) -> None:
        while self._unsent:
            try:
                num_sent = self._socket.send(self._unsent[0])
            except BlockingIOError:
                return
            rest = self._unsent[0][num_sent:]
            if rest:
                self._unsent[0] = rest
            else:
                self._unsent.popleft()

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._read_some():
                pass

    def _read_some(self) -> bool:
        """Read once. False if less arrived than was asked for: then nothing is left to read."""
        large = self._large
        if large is not None:
            target = large.body[large.num_read :]
            count = self._recv_into(target)
            large.num_read += count
            if large.num_read == len(large.body):
                authenticated = large.body[: large.num_authenticated]
                self._recv_tags.check(large.prefix[:TAG_BYTES], large.prefix[TAG_BYTES:], authenticated)
                self.received.append((large.number, large.body))
                self._large = None
            return count == len(target)
        target = memoryview(self._buffer)[self._num_buffered :]
        count = self._recv_into(target)
        self._num_buffered += count
        self._split_frames()
        return count == len(target)

    def _recv_into(self, target: memoryview) -> int:
        count = self._socket.recv_into(target)
        if count == 0:
            raise ConnectionLostError
        self.last_activity = time.monotonic()
        return count

    def _split_frames(self) -> None:
        start, end = 0, self._num_buffered
        while end - start >= _PREFIX_BYTES:
            number, num_authenticated, size = _parse_prefix(self._buffer, start)
            body = start + _PREFIX_BYTES
            if body + size > end:
                if _PREFIX_BYTES + size > _READ_BYTES:
                    data = _allocate(size)
                    data[: end - body] = self._buffer[body:end]
                    prefix = bytes(self._buffer[start:body])
                    self._large = _LargeFrame(prefix, number, num_authenticated, data, end - body)
                    start = end
                break
            frame = memoryview(bytes(self._buffer[start : body + size]))
            authenticated = frame[_PREFIX_BYTES : _PREFIX_BYTES + num_authenticated]
            self._recv_tags.check(frame[:TAG_BYTES], frame[TAG_BYTES:_PREFIX_BYTES], authenticated)
            self.received.append((number, frame[_PREFIX_BYTES:]))
            start = body + size
        if start < end:
            self._buffer[: end - start] = self._buffer[start:end]
        self._num_buffered = end - start


@dataclass
class _LargeFrame:
    """A frame of which the first num_read bytes of the body have arrived."""

    prefix: bytes
    number: int
    num_authenticated: int
    body: memoryview
    num_read: int


def connect_all(endpoints: Mapping[Key, tuple[Address, bytes]], timeout_s: float) -> dict[Key, CallerConnection]:
    """Connect to all these (address, secret) at once; return the connections that were authenticated in time."""
    connections: dict[Key, CallerConnection] = {}
    deadline = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        try:
            for key, (address, secret) in endpoints.items():
                with contextlib.suppress(OSError):
                    attempt = _ConnectionAttempt(key, address, secret)
                    selector.register(attempt.socket, selectors.EVENT_WRITE, attempt)
            while selector.get_map() and (ready := selector.select(max(0.0, deadline - time.monotonic()))):
                for entry, _ in ready:
                    connection = _advance_attempt(entry.data, selector)
                    if connection is not None:
                        connections[entry.data.key] = connection
        finally:
            for entry in list(selector.get_map().values()):
                entry.data.socket.close()
    return connections


def _advance_attempt(attempt: _ConnectionAttempt[Any], selector: selectors.BaseSelector) -> CallerConnection | None:
    """Continue a handshake and return the connection once it is complete. A failed attempt is dropped."""
    try:
        connection = attempt.advance()
    except (OSError, AuthenticationError):  # nothing there, or something that is not the actor
        selector.unregister(attempt.socket)
        attempt.socket.close()
        return None
    if connection is None:
        selector.modify(attempt.socket, selectors.EVENT_READ, attempt)
    else:
        selector.unregister(attempt.socket)
    return connection


class _ConnectionAttempt(Generic[Key]):
    """A caller's connection during its handshake."""

    def __init__(self, key: Key, address: Address, secret: bytes) -> None:
        self.key = key
        self.socket = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        self.socket.connect_ex(address)
        self._handshake = CallerHandshake(secret)
        self._has_sent_hello = False
        self._challenge = b""

    def advance(self) -> CallerConnection | None:
        """Do what the socket is ready for; return the connection once the handshake is complete."""
        if not self._has_sent_hello:
            _set_tcp_options(self.socket)
            self.socket.sendall(self._handshake.hello)  # raises if the connection was refused
            self._has_sent_hello = True
            return None
        part = self.socket.recv(CHALLENGE_BYTES - len(self._challenge))
        if not part:
            raise AuthenticationError("expected an actor's challenge, got the end of the connection")
        self._challenge += part
        if len(self._challenge) < CHALLENGE_BYTES:
            return None
        proof, send_tags, recv_tags = self._handshake.respond(self._challenge)
        self.socket.sendall(proof)
        return CallerConnection(self.socket, send_tags, recv_tags)


def _set_tcp_options(sock: socket.socket) -> None:
    """Send frames without delay, and detect within half a minute that an idle peer's machine is gone."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):  # not every system has all of them
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


# --- the actor's end -----------------------------------------------------------------------------


class Listener:
    """The port where an actor waits for its caller, in a thread of its own: the actor may be busy.

    Raises OSError if it cannot listen there. Other clients may connect and send nothing, or garbage: each has a few
    seconds, and when there are too many the oldest is dropped.
    """

    def __init__(self, host: str, secret: bytes) -> None:
        self._secret = secret
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family)
        self._socket.setblocking(False)
        self.address: Address = (host, self._socket.getsockname()[1])
        self._connection: ActorConnection | None = None
        self._stop, self._stopped = socket.socketpair()
        self._clients: dict[socket.socket, _Client] = {}  # oldest first
        self._thread = threading.Thread(target=self._run, name="envfleet-listener", daemon=True)
        self._thread.start()

    def accept(self) -> ActorConnection:
        """Return the connection to the first client that proved to know the secret. Raises ConnectionLostError."""
        self._thread.join()
        self.close()
        if self._connection is None:
            raise ConnectionLostError
        return self._connection

    def close(self) -> None:
        """Stop listening."""
        self._stop.close()
        self._thread.join()

    def _run(self) -> None:
        """Accept clients until one has authenticated."""
        deadline = time.monotonic() + _ACCEPT_TIMEOUT_S
        clients = self._clients
        with self._socket, self._stopped, selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(self._stopped, selectors.EVENT_READ)
            while self._connection is None and (now := time.monotonic()) < deadline:
                for client in [client for client in clients.values() if client.deadline <= now]:
                    self._drop(client, selector)
                until = min([deadline, *(client.deadline for client in clients.values())])
                for entry, _ in selector.select(max(0.0, until - now)):
                    if entry.fileobj is self._stopped:
                        deadline = now
                    else:
                        self._on_ready(entry, selector)
            for client in list(clients.values()):
                self._drop(client, selector)

    def _on_ready(self, entry: selectors.SelectorKey, selector: selectors.BaseSelector) -> None:
        if entry.fileobj is self._socket:
            self._add_client(selector)
        elif entry.data.socket in self._clients and self._connection is None:  # else it was just dropped
            self._advance(entry.data, selector)

    def _add_client(self, selector: selectors.BaseSelector) -> None:
        try:
            sock, _ = self._socket.accept()
        except OSError:  # already gone, or no descriptor is left
            num_allowed = len(self._clients) - 1
        else:
            sock.setblocking(False)
            self._clients[sock] = _Client(sock, self._secret)
            selector.register(sock, selectors.EVENT_READ, self._clients[sock])
            num_allowed = _MAX_HANDSHAKES
        if len(self._clients) > max(0, num_allowed):
            self._drop(next(iter(self._clients.values())), selector)

    def _advance(self, client: _Client, selector: selectors.BaseSelector) -> None:
        try:
            connection = client.advance()
        except BlockingIOError:
            return
        except (OSError, AuthenticationError):
            self._drop(client, selector)
            return
        if connection is not None:
            selector.unregister(client.socket)
            del self._clients[client.socket]
            self._connection = connection

    def _drop(self, client: _Client, selector: selectors.BaseSelector) -> None:
        selector.unregister(client.socket)
        del self._clients[client.socket]
        client.socket.close()


class _Client:
    """A client that has connected to an actor and not authenticated yet."""

    def __init__(self, sock: socket.socket, secret: bytes) -> None:
        self.socket = sock
        self.deadline = time.monotonic() + _HANDSHAKE_TIMEOUT_S
        self._handshake = ActorHandshake(secret)
        self._is_challenged = False
        self._received = b""

    def advance(self) -> ActorConnection | None:
        """Read what has arrived; return the connection once the handshake is complete."""
        expected = PROOF_BYTES if self._is_challenged else HELLO_BYTES
        # Not more than that: the first frame may follow the proof.
        part = self.socket.recv(expected - len(self._received))
        if not part:
            raise AuthenticationError("expected a handshake, got the end of the connection")
        self._received += part
        if len(self._received) < expected:
            return None
        message, self._received = self._received, b""
        if self._is_challenged:
            return ActorConnection(self.socket, *self._handshake.finish(message))
        self.socket.sendall(self._handshake.challenge(message))
        self._is_challenged = True
        return None


class ActorConnection:
    """The actor's end. recv() blocks; send() never does.

    An actor must reach its next request, or return to Ray, whether or not the caller is reading.
    """

    def __init__(self, sock: socket.socket, send_tags: FrameTags, recv_tags: FrameTags) -> None:
        sock.setblocking(True)
        _set_tcp_options(sock)
        self._socket = sock
        self._send_tags = send_tags
        self._recv_tags = recv_tags
        self._send_queue: queue.SimpleQueue[Sequence[Any] | None] | None = None

    def recv(self) -> tuple[int, memoryview]:
        """Block for the next frame. Raises ConnectionLostError."""
        try:
            prefix = self._recv_exactly(_PREFIX_BYTES)
            number, num_authenticated, size = _parse_prefix(prefix)
            body = self._recv_exactly(size)
            self._recv_tags.check(prefix[:TAG_BYTES], prefix[TAG_BYTES:], body[:num_authenticated])
            return number, body
        except (OSError, AuthenticationError, MemoryError) as error:
            raise ConnectionLostError from error

    def send(self, number: int, authenticated: Sequence[bytes], columns: Sequence[bytes]) -> None:
        """Send a frame, or hand it to the sending thread."""
        num_authenticated, num_columns = sum(map(len, authenticated)), sum(map(len, columns))
        header = _HEADER.pack(number, num_authenticated, num_columns)
        tag = self._send_tags.next(header, num_authenticated, *authenticated)
        frame: list[Any] = [tag, header, *authenticated, *columns]
        if len(frame) > _MAX_BUFFERS or num_authenticated + num_columns < _JOINED_BYTES:
            frame = [b"".join(frame)]
        if self._send_queue is None:
            frame = self._send_now(frame)
            if not frame:
                return
            # The caller reads slowly and this frame is large: from now on a thread sends.
            self._send_queue = queue.SimpleQueue()
            threading.Thread(target=self._send_queued, name="envfleet-responses", daemon=True).start()
        self._send_queue.put(frame)

    def close(self) -> None:
        """Close the connection."""
        if self._send_queue is not None:
            self._send_queue.put(None)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _recv_exactly(self, count: int) -> memoryview:
        data = view = _allocate(count)
        while view:
            received = self._socket.recv_into(view)
            if received == 0:
                raise ConnectionLostError
            view = view[received:]
        return data

    def _send_now(self, frame: list[Any]) -> list[Any]:
        """Send what goes without blocking; return the rest."""
        try:
            while frame:
                frame = _skip_bytes(frame, self._socket.sendmsg(frame, (), socket.MSG_DONTWAIT))
        except BlockingIOError:
            pass
        except OSError as error:
            raise ConnectionLostError from error
        return frame

    def _send_queued(self) -> None:
        assert self._send_queue is not None
        # recv() reports it when the caller is gone.
        with contextlib.suppress(OSError):
            while (frame := self._send_queue.get()) is not None:
                for buffer in frame:
                    self._socket.sendall(buffer)


def _skip_bytes(frame: list[Any], count: int) -> list[Any]:
    """Return what is left of a frame after its first count bytes."""
    for position, buffer in enumerate(frame):
        if count < len(buffer):
            return [memoryview(buffer)[count:], *frame[position + 1 :]]
        count -= len(buffer)
    return []
