"""Authentication of a pool's own connections: the handshake, and the tags of frames.

Both ends know a secret that travelled through Ray and never travels here. Each proves with an HMAC over both nonces
that it knows it, the actor first: a caller tells an impostor nothing that helps it anywhere.

caller                                          actor
hello = magic + caller_nonce             ->
                                         <-     actor_nonce + HMAC(secret, "actor" + both nonces)
HMAC(secret, "caller" + both nonces)     ->

Each direction then has a key of its own, derived from the secret and both nonces. The tag of a frame covers its place
in the sequence of frames, so that none can be altered, left out, repeated or moved.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from typing import Any

SECRET_BYTES = 32
PROOF_BYTES = 32
TAG_BYTES = 16
_MAGIC = b"envfleet-ray/2\n"
_NONCE_BYTES = 32
_LARGE_BYTES = 1 << 12
HELLO_BYTES = len(_MAGIC) + _NONCE_BYTES
CHALLENGE_BYTES = _NONCE_BYTES + PROOF_BYTES


class AuthenticationError(Exception):
    """The other end does not know the secret, or a frame is not what it sent."""


class FrameTags:
    """The tags of the frames of one direction, in their order. Each end has one for sending and one for receiving.

    Keyed BLAKE2b: of the keyed hashes in the standard library it costs least for a frame of a few hundred bytes. Of
    many bytes it covers the SHA-256, which processors have instructions for.
    """

    def __init__(self, key: bytes) -> None:
        self._start = hashlib.blake2b(key=key, digest_size=TAG_BYTES)
        self._num_frames = 0

    def next(self, header: Any, num_bytes: int, *parts: Any) -> bytes:
        """The tag of the next frame: over its header, which says how many bytes these parts have, and over them."""
        tag = self._start.copy()
        tag.update(self._num_frames.to_bytes(8, "little"))
        tag.update(header)
        content = tag if num_bytes < _LARGE_BYTES else hashlib.sha256()
        for part in parts:
            content.update(part)
        if content is not tag:
            tag.update(content.digest())
        self._num_frames += 1
        return tag.digest()

    def check(self, tag: Any, header: Any, part: memoryview) -> None:
        """Raises AuthenticationError unless this is the tag of the next frame."""
        if not hmac.compare_digest(tag, self.next(header, len(part), part)):
            raise AuthenticationError("a frame does not carry the tag that its sender would have given it")


class CallerHandshake:
    """The caller's part."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._nonce = os.urandom(_NONCE_BYTES)
        self.hello = _MAGIC + self._nonce

    def answer(self, challenge: bytes) -> tuple[bytes, FrameTags, FrameTags]:
        """The proof for an actor that has proved itself, and the tags of what is sent and of what is received."""
        nonces = self._nonce + challenge[:_NONCE_BYTES]
        if not hmac.compare_digest(challenge[_NONCE_BYTES:], _hmac(self._secret, b"actor", nonces)):
            raise AuthenticationError("expected the actor at this address, got an answer without its proof")
        to_actor, to_caller = _keys(self._secret, nonces)
        return _hmac(self._secret, b"caller", nonces), FrameTags(to_actor), FrameTags(to_caller)


class ActorHandshake:
    """The actor's part, with one of those who connect to it."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._nonces = b""

    def challenge(self, hello: bytes) -> bytes:
        """What to send to who said this."""
        if hello[: len(_MAGIC)] != _MAGIC:
            raise AuthenticationError("expected the hello of a pool of this version")
        nonce = os.urandom(_NONCE_BYTES)
        self._nonces = hello[len(_MAGIC) :] + nonce
        return nonce + _hmac(self._secret, b"actor", self._nonces)

    def finish(self, proof: bytes) -> tuple[FrameTags, FrameTags]:
        """The tags of what is sent and of what is received, if this proves that it is the caller."""
        if not hmac.compare_digest(proof, _hmac(self._secret, b"caller", self._nonces)):
            raise AuthenticationError("expected the proof of the caller")
        to_actor, to_caller = _keys(self._secret, self._nonces)
        return FrameTags(to_caller), FrameTags(to_actor)


def _keys(secret: bytes, nonces: bytes) -> tuple[bytes, bytes]:
    """The keys of frames to the actor and to the caller."""
    return _hmac(secret, b"frames to the actor", nonces), _hmac(secret, b"frames to the caller", nonces)


def _hmac(secret: bytes, role: bytes, nonces: bytes) -> bytes:
    # Nonces are always of the same length, so that none of this can be read as another role with other nonces.
    return hmac.digest(secret, role + nonces, "sha256")
