"""Parcels: any object between processes, its arrays through shared memory.

    pack(object) -> Parcel -> to_message(): a few bytes and a descriptor -> Arrived -> open(): the object

Pickled once, by protocol 5: what is large (arrays, tensors of torch) is written as it is into a file of shared
memory, and the other side builds its arrays on that very memory. The file has no name and belongs to this one
parcel: it goes when the last array on it dies, and nobody writes into it again.
"""

from __future__ import annotations

import copyreg
import io
import mmap
import os
import pickle
import sys
from collections import ChainMap
from collections.abc import Sequence
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from envfleet import _native
from envfleet.errors import EnvfleetError
from envfleet.executors.processes.memory_file import memory_file

_OWN_BYTES = 512  # a buffer from here on travels beside the pickle
_INLINE_BYTES = 1 << 15  # a parcel up to here travels in the message itself
# A parcel from here on is mapped, not copied. A mapping each for what is small would soon be more than the
# system grants a process (65,530).
_MAPPED_BYTES = 1 << 20
_ALIGNMENT = 64
_MAX_PARTS = 512  # of one write; the system's own limit is 1024

# What a message holds of a parcel: the sizes of its parts, and the parts themselves where they are small.
Label = tuple[tuple[int, ...], tuple[bytes, ...]]


class Parcel:
    """A pickle and the buffers beside it."""

    def __init__(self, parts: Sequence[memoryview]) -> None:
        self._parts = parts
        self._sizes = tuple(part.nbytes for part in parts)
        self.num_bytes = _starts_of(self._sizes)[-1]

    def to_message(self) -> tuple[Label, int | None]:
        """The label, and the descriptor of the file, which is the caller's to close; None where there is no file."""
        if self.num_bytes <= _INLINE_BYTES:
            return (self._sizes, tuple(bytes(part) for part in self._parts)), None
        return (self._sizes, ()), self._to_file()

    def _to_file(self) -> int:
        fd = memory_file(self.num_bytes)
        try:
            # Written, not mapped and copied: where memory is full this is an OSError, the other a SIGBUS.
            pieces: list[memoryview] = []
            end = 0
            for start, part in zip(_starts_of(self._sizes), self._parts, strict=False):
                pieces += [memoryview(bytes(start - end)), part]
                end = start + part.nbytes
            _write_all(fd, [piece for piece in pieces if piece.nbytes])
        except BaseException:
            os.close(fd)
            raise
        return fd


class Arrived:
    """A parcel on the other side. open() may be called any number of times; the arrays share its memory."""

    def __init__(self, label: Label, fd: int | None, *, is_private: bool = False) -> None:
        """fd: closed here. is_private: what is written into the arrays stays in this process."""
        sizes, inline = label
        self.num_bytes = _starts_of(sizes)[-1]
        if inline:
            self._parts: list[Any] = [bytearray(part) for part in inline]
            return
        if fd is None:
            raise EnvfleetError(
                "a parcel came without its memory: this process has too many open files; "
                "close some, or raise the limit (ulimit -n)"
            )
        try:
            memory = _memory_of(fd, self.num_bytes, is_private)
        finally:
            os.close(fd)
        starts = _starts_of(sizes)
        self._parts = [memory[start : start + size] for start, size in zip(starts, sizes, strict=False)]

    def open(self) -> Any:
        """The object."""
        return pickle.loads(self._parts[0], buffers=self._parts[1:])


class Packer:
    """Packs. By cloudpickle, from then on, where plain pickle cannot: it is slower, and knows the main module."""

    def __init__(self, by_cloudpickle: bool = False) -> None:
        self._by_cloudpickle = by_cloudpickle

    def pack(self, content: Any) -> Parcel:
        """A parcel of it, whose buffers are the object's own: to be sent before it changes."""
        if not self._by_cloudpickle:
            try:
                return _packed(_PlainPickler, content)
            except Exception:
                self._by_cloudpickle = True
        return _packed(_CloudPickler, content)


class _PlainPickler(pickle.Pickler):
    pass


class _CloudPickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    pass


def _packed(pickler: type[pickle.Pickler], content: Any) -> Parcel:
    buffers: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:  # not contiguous
            return True
        if raw.nbytes < _OWN_BYTES:
            return True
        buffers.append(raw)
        return False

    file = io.BytesIO()
    own = pickler(file, protocol=5, buffer_callback=keep)
    if "torch" in sys.modules:
        known = getattr(pickler, "dispatch_table", copyreg.dispatch_table)
        own.dispatch_table = ChainMap({sys.modules["torch"].Tensor: _reduced_tensor}, known)
    own.dump(content)
    return Parcel([file.getbuffer(), *buffers])


def _reduced_tensor(tensor: Any) -> Any:
    """A tensor of the CPU as its bytes, which then travel as an array's do."""
    torch = sys.modules["torch"]
    is_plain = tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.is_quantized
    if not is_plain or tensor.requires_grad:
        return tensor.__reduce_ex__(5)
    flat = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy()
    return _tensor_of, (flat, tensor.dtype, tuple(tensor.shape))


def _tensor_of(flat: NDArray[np.uint8], dtype: Any, shape: tuple[int, ...]) -> Any:
    import torch

    return torch.from_numpy(flat).view(dtype).reshape(shape)


def _starts_of(sizes: Sequence[int]) -> list[int]:
    """Where each part begins, and where the last one ends."""
    starts, end = [], 0
    for size in sizes:
        starts.append(-(-end // _ALIGNMENT) * _ALIGNMENT)
        end = starts[-1] + size
    return [*starts, end]


def _write_all(fd: int, pieces: list[memoryview]) -> None:
    while pieces:
        written = os.writev(fd, pieces[:_MAX_PARTS])
        while pieces and written >= pieces[0].nbytes:
            written -= pieces.pop(0).nbytes
        if written:
            pieces[0] = pieces[0][written:]


def _memory_of(fd: int, num_bytes: int, is_private: bool) -> NDArray[np.uint8]:
    if is_private:
        # Shared by all who read, copied page by page for who writes.
        return np.frombuffer(mmap.mmap(fd, num_bytes, access=mmap.ACCESS_COPY), np.uint8)
    if num_bytes >= _MAPPED_BYTES:
        # Not mmap.mmap: it keeps a descriptor for each mapping.
        mapped: NDArray[np.uint8] = _native.map_file(fd, num_bytes)
        return mapped
    memory = np.empty(num_bytes, np.uint8)
    view, read = memory.data, 0
    while read < num_bytes:
        count = os.preadv(fd, [view[read:]], read)
        if count == 0:
            raise EOFError(f"a parcel of {num_bytes} bytes ends after {read}")
        read += count
    return memory
