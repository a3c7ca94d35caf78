"""The pool's own connections against attackers on the network: nothing is accepted or unpickled unauthenticated."""

from __future__ import annotations

import contextlib
import pickle
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from envfleet.executors.ray.connection import (
    CHALLENGE_BYTES,
    HELLO_BYTES,
    SECRET_BYTES,
    TAG_BYTES,
    ActorConnection,
    ActorHandshake,
    CallerConnection,
    CallerHandshake,
    ConnectionLostError,
    Listener,
    connect_all,
)

SECRET = bytes(range(SECRET_BYTES))
PREFIX_BYTES = 24 + TAG_BYTES

# Answers whoever connects: with the proof that can be computed from what it was told (which was enough once), or with
# its own words (which would be, if both ends proved themselves alike). Then with replies that create a file.
IMPOSTOR = """
import hashlib, pickle, socket, struct, sys
class Payload:
    def __reduce__(self):
        return open, (sys.argv[1], "w")
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
answers = (
    lambda told: hashlib.sha256(b"envfleet " + told).digest(),
    lambda told: (told[-32:] * 2)[:64],
    lambda told: bytes(64),
)
heard = b""
for answer in answers:
    connection, _ = server.accept()
    connection.settimeout(60)
    told = connection.recv(4096)
    heard += told
    payload = pickle.dumps(Payload())
    try:
        connection.sendall(answer(told))
        connection.sendall(struct.pack("<QQ", len(payload), 0) + payload)
        connection.sendall(struct.pack("<16xQQQ", 0, len(payload), 0) + payload)
        while more := connection.recv(4096):
            heard += more
    except ConnectionError:
        pass
print(heard.hex(), flush=True)
"""


def test_an_impostor_learns_nothing_and_is_not_listened_to(tmp_path: Path):
    created = tmp_path / "created"
    with subprocess.Popen([sys.executable, "-c", IMPOSTOR, created], stdout=subprocess.PIPE, text=True) as impostor:
        assert impostor.stdout is not None
        port = int(impostor.stdout.readline())
        for _ in range(3):
            connections = connect_all({0: (("127.0.0.1", port), SECRET)}, 60.0)
            for connection in connections.values():  # what a pool would do with one
                while not connection.received and not connection.is_lost:
                    connection.pump()
                for _, data in connection.received:
                    pickle.loads(data)
            assert connections == {}
        heard = bytes.fromhex(impostor.stdout.readline())
    assert not created.exists()
    assert heard
    assert all(SECRET[start : start + 8] not in heard for start in range(SECRET_BYTES - 8))


def test_idle_and_hostile_connections_do_not_keep_the_caller_out():
    listener = Listener("127.0.0.1", SECRET)
    with contextlib.ExitStack() as stack:
        others = [stack.enter_context(socket.create_connection(listener.address)) for _ in range(100)]
        for number, other in enumerate(others[:90]):
            with contextlib.suppress(ConnectionError):  # it was one too many, and shown out
                if number % 3 == 1:
                    other.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
                if number % 3 == 2:
                    other.sendall(CallerHandshake(SECRET).hello[:-1])
        connection = connect_all({0: (listener.address, SECRET)}, 60.0)[0]
        actor = listener.accept()
    connection.send(1, b"request")
    assert actor.recv() == (1, b"request")
    connection.close()
    actor.close()


def test_a_handshake_may_arrive_byte_by_byte():
    listener = Listener("127.0.0.1", SECRET)
    handshake = CallerHandshake(SECRET)
    with socket.create_connection(listener.address) as sock:
        send_slowly(sock, handshake.hello)
        proof, sent, received = handshake.respond(sock.recv(CHALLENGE_BYTES, socket.MSG_WAITALL))
        send_slowly(sock, proof)
        connection, actor = CallerConnection(sock, sent, received), listener.accept()
        connection.send(7, b"request")
        assert actor.recv() == (7, b"request")
        actor.close()


def test_a_challenge_may_arrive_byte_by_byte():
    with socket.create_server(("127.0.0.1", 0)) as server:
        actors: list[ActorConnection] = []

        def serve() -> None:
            sock, _ = server.accept()
            handshake = ActorHandshake(SECRET)
            send_slowly(sock, handshake.challenge(sock.recv(HELLO_BYTES, socket.MSG_WAITALL)))
            actors.append(ActorConnection(sock, *handshake.finish(sock.recv(32, socket.MSG_WAITALL))))

        thread = threading.Thread(target=serve)
        thread.start()
        connection = connect_all({0: (server.getsockname(), SECRET)}, 60.0)[0]
        thread.join()
    connection.send(7, b"request")
    assert actors[0].recv() == (7, b"request")
    connection.close()
    actors[0].close()


def test_the_secret_is_needed_on_both_sides():
    listener = Listener("127.0.0.1", SECRET)
    assert connect_all({0: (listener.address, bytes(SECRET_BYTES))}, 60.0) == {}
    # One that has talked to the actor, but does not know the secret, cannot prove anything.
    with socket.create_connection(listener.address) as sock:
        sock.sendall(CallerHandshake(SECRET).hello)
        challenge = sock.recv(CHALLENGE_BYTES, socket.MSG_WAITALL)
        sock.sendall(challenge[-32:])
        assert sock.recv(1) == b""
    listener.close()


# --- frames --------------------------------------------------------------------------------------

AUTHENTICATED = pickle.dumps({"commands": [1, 2, 3]})
COLUMNS = bytes(1000)


class Wire:
    """Both ends of a connection, with a man in the middle who holds everything they send."""

    def __init__(self) -> None:
        handshake, other = CallerHandshake(SECRET), ActorHandshake(SECRET)
        proof, sent, received = handshake.respond(other.challenge(handshake.hello))
        near, self.to_caller = tcp_pair()
        far, self.to_actor = tcp_pair()
        self.caller = CallerConnection(near, sent, received)
        self.actor = ActorConnection(far, *other.finish(proof))

    def requests(self, *frames: bytes) -> list[bytes]:
        """These requests as they are on the wire."""
        return [self._sent(lambda number=n, data=data: self.caller.send(number, data), self.to_caller)
                for n, data in enumerate(frames)]  # fmt: skip

    def replies(self, *frames: tuple[bytes, bytes]) -> list[bytes]:
        """These replies as they are on the wire."""
        return [self._sent(lambda number=n, own=own: self.actor.send(number, [own[0]], [own[1]]), self.to_actor)
                for n, own in enumerate(frames)]  # fmt: skip

    def _sent(self, send, sock: socket.socket) -> bytes:
        send()
        prefix = sock.recv(PREFIX_BYTES, socket.MSG_WAITALL)
        _, num_authenticated, num_columns = struct.unpack_from("<QQQ", prefix, TAG_BYTES)
        return prefix + sock.recv(num_authenticated + num_columns, socket.MSG_WAITALL)

    def taken_by_actor(self, data: bytes) -> list[tuple[int, bytes]]:
        """The frames that the actor makes of this."""
        self.to_actor.sendall(data)
        self.to_actor.shutdown(socket.SHUT_WR)
        taken = []
        with contextlib.suppress(ConnectionLostError):
            while True:
                number, body = self.actor.recv()
                taken.append((number, bytes(body)))
        return taken

    def taken_by_caller(self, data: bytes) -> list[tuple[int, bytes]]:
        """The frames that the caller makes of this."""
        self.to_caller.sendall(data)
        self.to_caller.shutdown(socket.SHUT_WR)
        while not self.caller.is_lost:
            self.caller.pump()
        return [(number, bytes(body)) for number, body in self.caller.received]

    def close(self) -> None:
        for end in (self.caller, self.actor, self.to_caller, self.to_actor):
            end.close()


@pytest.fixture
def new_wire() -> Iterator[object]:
    with contextlib.ExitStack() as stack:

        def make() -> Wire:
            wire = Wire()
            stack.callback(wire.close)
            return wire

        yield make


def test_frames_arrive_as_they_were_sent(new_wire):
    wire = new_wire()
    assert wire.taken_by_actor(b"".join(wire.requests(b"one", b"", b"two"))) == [(0, b"one"), (1, b""), (2, b"two")]
    assert wire.taken_by_caller(b"".join(wire.replies((b"one", b"1"), (b"", b"")))) == [(0, b"one1"), (1, b"")]


@pytest.mark.parametrize("place", [*range(0, PREFIX_BYTES, 3), PREFIX_BYTES, PREFIX_BYTES + len(AUTHENTICATED) - 1])
def test_a_tampered_frame_is_not_handed_out(new_wire, place):
    wire = new_wire()
    (request,), (reply,) = wire.requests(AUTHENTICATED), wire.replies((AUTHENTICATED, COLUMNS))
    assert wire.taken_by_actor(flipped(request, place)) == []
    assert wire.taken_by_caller(flipped(reply, place)) == []


def test_a_large_tampered_frame_is_not_handed_out(new_wire):
    wire = new_wire()
    (reply,) = wire.replies((AUTHENTICATED * 10_000, COLUMNS * 1000))
    assert wire.taken_by_caller(flipped(reply, PREFIX_BYTES + 100_000)) == []


def test_frames_that_are_repeated_left_out_or_turned_back_are_not_handed_out(new_wire):
    wire = new_wire()
    one, two = wire.requests(b"one", b"two")
    assert wire.taken_by_actor(one + one) == [(0, b"one")]
    wire = new_wire()
    one, two = wire.requests(b"one", b"two")
    assert wire.taken_by_actor(two) == []
    wire = new_wire()
    (one,) = wire.requests(b"one")
    assert wire.taken_by_caller(one) == []
    assert new_wire().taken_by_actor(one) == []  # of another connection with the same secret


def test_a_length_that_no_frame_has_is_refused_before_there_is_memory_for_it(new_wire):
    for sizes in ((1 << 60, 0), (0, 1 << 60), ((1 << 64) - 1, (1 << 64) - 1)):
        wire = new_wire()
        header = bytes(TAG_BYTES) + struct.pack("<QQQ", 0, *sizes)
        assert wire.taken_by_actor(header) == []
        assert wire.taken_by_caller(header) == []


def send_slowly(sock: socket.socket, data: bytes) -> None:
    """A segment for each byte."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for position in range(len(data)):
        sock.sendall(data[position : position + 1])


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        return one, server.accept()[0]


def flipped(frame: bytes, place: int) -> bytes:
    """The frame with one bit changed."""
    changed = bytearray(frame)
    changed[place] ^= 1
    return bytes(changed)
