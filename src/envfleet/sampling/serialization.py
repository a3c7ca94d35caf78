"""Objects between processes, with their arrays in shared memory.

    ObjectPickler.pickle(object) -> PickledObject.to_message(): a header and a descriptor
                                 -> ReceivedObject(header, descriptor).load(): the object

An object is pickled once, with protocol 5: large buffers (arrays, torch tensors) are written unchanged into a file of
shared memory, and the receiver builds its arrays on that memory. The file has no name and belongs to this one object:
it is freed with the last array on it, and is never written to again.
"""

from __future__ import annotations

import copyreg
import io
import mmap
import os
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from envfleet import _native
from envfleet.core.errors import ConfigError, EnvfleetError
from envfleet.core.tracebacks import message_of
from envfleet.executors.processes.memory_file import memory_file
from envfleet.sampling.generators import GeneratorFactory

_OUT_OF_BAND_BYTES = 512  # a buffer of at least this size is stored outside the pickle
_INLINE_BYTES = 1 << 15  # an object up to this size travels inside the message
# From this size on, the file is mapped instead of copied. Mapping every small one would soon exceed the number of
# mappings that the system allows per process (65,530).
_MAPPED_BYTES = 1 << 20
_ALIGNMENT = 64
_MAX_BUFFERS = 512  # per write; the system's own limit is 1024

# The part of an object that is inside the message: the sizes of its parts, and the parts themselves if they are small.
Header = tuple[tuple[int, ...], tuple[bytes, ...]]


class PickledObject:
    """A pickle and its out-of-band buffers."""

    def __init__(self, parts: Sequence[memoryview]) -> None:
        self._parts = parts
        self._sizes = tuple(part.nbytes for part in parts)
        self.num_bytes = _offsets(self._sizes)[-1]

    def to_message(self) -> tuple[Header, int | None]:
        """Return the header and the file's descriptor, which the caller must close; None if there is no file."""
        if self.num_bytes <= _INLINE_BYTES:
            return (self._sizes, tuple(bytes(part) for part in self._parts)), None
        return (self._sizes, ()), self._to_file()

    def _to_file(self) -> int:
        fd = memory_file(self.num_bytes)
        try:
            # Written, not copied into a mapping: if memory is full this raises OSError instead of SIGBUS.
            buffers: list[memoryview] = []
            end = 0
            for start, part in zip(_offsets(self._sizes), self._parts, strict=False):
                buffers += [memoryview(bytes(start - end)), part]
                end = start + part.nbytes
            _write_all(fd, [buffer for buffer in buffers if buffer.nbytes])
        except BaseException:
            os.close(fd)
            raise
        return fd


class ReceivedObject:
    """A pickled object on the receiving side. load() may be called repeatedly; the arrays share its memory."""

    def __init__(self, header: Header, fd: int | None, *, is_private: bool = False) -> None:
        """fd: is closed here. is_private: writes into the arrays stay in this process."""
        sizes, inline = header
        self.num_bytes = _offsets(sizes)[-1]
        if inline:
            self._parts: list[Any] = [bytearray(part) for part in inline]
            return
        if fd is None:
            raise EnvfleetError(
                "an object arrived without its shared memory: this process has too many open files; "
                "close some, or raise the limit (ulimit -n)"
            )
        try:
            memory = _memory_of(fd, self.num_bytes, is_private)
        finally:
            os.close(fd)
        self._parts = [memory[start : start + size] for start, size in zip(_offsets(sizes), sizes, strict=False)]

    def load(self) -> Any:
        """Return the object."""
        return pickle.loads(self._parts[0], buffers=self._parts[1:])


class ObjectPickler:
    """Pickles objects. After plain pickle has failed once, it uses cloudpickle, which is slower and knows __main__."""

    def __init__(self, use_cloudpickle: bool = False) -> None:
        self._use_cloudpickle = use_cloudpickle

    def pickle(self, content: Any) -> PickledObject:
        """Pickle an object. The buffers are the object's own: send them before it changes."""
        if not self._use_cloudpickle:
            try:
                return _pickle(_PlainPickler, content)
            except Exception:
                self._use_cloudpickle = True
        return _pickle(_CloudPickler, content)


def pickle_factory(dumps: Callable[[Any], bytes], factory: GeneratorFactory, generator: int, backend: str) -> bytes:
    """Pickle what creates a generator. Raises ConfigError if it cannot be pickled."""
    try:
        return dumps(factory)
    except Exception as error:
        raise ConfigError(
            f"backend={backend!r} expected a gen_fn and arguments that cloudpickle can pickle, got some at position "
            f"{generator} that it cannot: {message_of(error)}; create what cannot be pickled (locks, sockets, open "
            "files) inside the generator, or use backend='serial'"
        ) from error


def pickle_argument(content: Any, call: str) -> tuple[Header, int | None]:
    """Pickle a request or weights into a message. Raises ConfigError if it cannot be pickled."""
    try:
        return ObjectPickler(use_cloudpickle=True).pickle(content).to_message()
    except OSError:  # no memory left: not the fault of the content
        raise
    except Exception as error:
        raise _not_picklable(call, error) from error


def pickle_request(request: Any) -> bytes:
    """Pickle a request with all of its arrays, so that each load is a copy. Raises ConfigError if it cannot."""
    try:
        data: bytes = cloudpickle.dumps(request)
        return data
    except Exception as error:
        raise _not_picklable("trajs()", error) from error


def _not_picklable(call: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"{call} expected an argument that cloudpickle can pickle, got one that it cannot: {message_of(error)}"
    )


class _PlainPickler(pickle.Pickler):
    pass


class _CloudPickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    pass


def _pickle(pickler_class: type[pickle.Pickler], content: Any) -> PickledObject:
    buffers: list[memoryview] = []

    def stays_in_band(buffer: pickle.PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:  # not contiguous
            return True
        if raw.nbytes < _OUT_OF_BAND_BYTES:
            return True
        buffers.append(raw)
        return False

    file = io.BytesIO()
    pickler = pickler_class(file, protocol=5, buffer_callback=stays_in_band)
    if "torch" in sys.modules:
        known = getattr(pickler_class, "dispatch_table", copyreg.dispatch_table)
        pickler.dispatch_table = ChainMap({sys.modules["torch"].Tensor: _reduce_tensor}, known)
    pickler.dump(content)
    return PickledObject([file.getbuffer(), *buffers])


def _reduce_tensor(tensor: Any) -> Any:
    """Reduce a CPU tensor to its bytes, which then travel like those of an array."""
    torch = sys.modules["torch"]
    is_plain = tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.is_quantized
    if not is_plain or tensor.requires_grad:
        return tensor.__reduce_ex__(5)
    flat = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy()
    return _restore_tensor, (flat, tensor.dtype, tuple(tensor.shape))


def _restore_tensor(flat: NDArray[np.uint8], dtype: Any, shape: tuple[int, ...]) -> Any:
    import torch

    return torch.from_numpy(flat).view(dtype).reshape(shape)


def _offsets(sizes: Sequence[int]) -> list[int]:
    """Return where each part begins, and where the last one ends."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(-(-end // _ALIGNMENT) * _ALIGNMENT)
        end = offsets[-1] + size
    return [*offsets, end]


def _write_all(fd: int, buffers: list[memoryview]) -> None:
    while buffers:
        written = os.writev(fd, buffers[:_MAX_BUFFERS])
        while buffers and written >= buffers[0].nbytes:
            written -= buffers.pop(0).nbytes
        if written:
            buffers[0] = buffers[0][written:]


def _memory_of(fd: int, num_bytes: int, is_private: bool) -> NDArray[np.uint8]:
    if is_private:
        # Shared by all readers; a page is copied when it is written to.
        return np.frombuffer(mmap.mmap(fd, num_bytes, access=mmap.ACCESS_COPY), np.uint8)
    if num_bytes >= _MAPPED_BYTES:
        # Not mmap.mmap, which keeps a descriptor for each mapping.
        mapped: NDArray[np.uint8] = _native.map_file(fd, num_bytes)
        return mapped
    memory = np.empty(num_bytes, np.uint8)
    view, read = memory.data, 0
    while read < num_bytes:
        count = os.preadv(fd, [view[read:]], read)
        if count == 0:
            raise EOFError(f"expected an object of {num_bytes} bytes in shared memory, got {read}")
        read += count
    return memory
