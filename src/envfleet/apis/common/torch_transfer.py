"""Arrays as torch tensors on a device, and tensors as arrays on the host.

On a GPU, both are copied through page-locked memory. The user's stream waits for the copy, the host does not. On the
CPU, tensors share the memory of the arrays.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envfleet import _native
from envfleet.core.errors import ActionError, MissingExtraError

try:
    import torch
except ImportError as error:
    raise MissingExtraError("torch", "torch", "the torch api") from error

Tensors = Any  # a tensor, or a dict or tuple of Tensors, in the structure of a space

# By dtype and not by its char: long and long long are two chars for one, and other byte orders have the same chars.
TORCH_DTYPES = {np.dtype(char): torch.from_numpy(np.empty(0, char)).dtype for char in "?bBhHiIlLefd"}


class DeviceTransfer:
    """Copies the arrays of batches to a GPU, and actions back. Both through page-locked memory.

    A batch is copied on a stream of its own, so that work of the user's stream runs meanwhile. Its device memory is
    allocated ahead, on the user's stream: whatever that stream still did with the memory has long been done when the
    copy writes to it, so the copy waits for nothing, and the allocator needs to know of one stream only.
    If the user's stream was idle, the copy goes there, which saves the events.

    Making tensors takes the host longer than anything else here. It makes those of the next batch while it waits for
    the actions.
    """

    def __init__(self, device: torch.device | str) -> None:
        self._device = torch.empty(0, device=device).device  # with its index
        with torch.cuda.device(self._device) if self._device.type == "cuda" else contextlib.nullcontext():
            self._uploads = _native.BatchUploader()
        # The layout of the last batch, and what Tensor.set_() takes for each of its arrays.
        self._layout: tuple[int, tuple[int, ...]] | None = None
        self._columns: list[tuple[torch.dtype, int, tuple[int, ...], tuple[int, ...]]] = []
        self._next: _DeviceBatch | None = None
        self._actions: dict[int, tuple[torch.dtype, NDArray[Any], _native.PageLock]] = {}

    def to_device(self, arrays: Sequence[NDArray[Any]], batch: object, is_idle: bool = False) -> list[torch.Tensor]:
        """Start the copy of these arrays and return their tensors. batch: what keeps the arrays' memory alive.

        is_idle: the current stream had nothing to do just now.
        """
        if not self._is_current():
            with torch.cuda.device(self._device):
                return self.to_device(arrays, batch, is_idle)
        stream = _current_stream(self._device)
        layout = self._uploads.plan(tuple(arrays))
        if layout is not self._layout:
            self._layout, self._columns = layout, _device_columns(arrays, layout[1])
        following = self._next
        if following is None or following.layout is not layout or following.stream != stream:
            following = self._allocate(stream)
        self._next = None
        self._uploads.start(stream, following.memory.data_ptr(), is_idle, batch)
        if not is_idle:  # otherwise when the host waits for the next actions
            self._next = self._allocate(stream)
        return following.tensors

    def _is_current(self) -> bool:
        return self._device.type != "cuda" or bool(torch._C._cuda_getDevice() == self._device.index)

    def _allocate(self, stream: int) -> _DeviceBatch:
        """Make the tensors of a batch like the last one."""
        assert self._layout is not None, "a batch was planned"
        device = self._device
        memory = torch.empty(self._layout[0], dtype=torch.uint8, device=device)
        self._uploads.mark_allocated(stream)
        storage = memory.untyped_storage()
        # Not views of one tensor: those would share its version counter, and autograd would take a change of one
        # column for a change of all.
        tensors = [
            torch.empty(0, dtype=dtype, device=device).set_(storage, offset, shape, strides)
            for dtype, offset, shape, strides in self._columns
        ]
        return _DeviceBatch(self._layout, stream, memory, tensors)

    def to_host(self, actions: Tensors, envs_run: bool = False) -> tuple[Any, bool]:
        """Return the actions as arrays, and whether the current stream was waited for.

        The next call overwrites the arrays. envs_run: envs may run meanwhile, which need the cores.
        """
        if not self._is_current():
            with torch.cuda.device(self._device):
                return self.to_host(actions, envs_run)
        stream = _current_stream(self._device)
        num_copies = 0

        def start(leaf: Any) -> Any:
            nonlocal num_copies
            if not isinstance(leaf, torch.Tensor) or leaf.device != self._device:
                return _leaf_to_numpy(leaf)
            leaf = _numpy_compatible(leaf)
            if not leaf.is_contiguous() or leaf.is_neg():
                leaf = leaf.clone(memory_format=torch.contiguous_format).resolve_neg()
            sources.append(leaf)
            array = self._action_array(num_copies, leaf)
            _native.copy_to_host(stream, array, leaf.data_ptr())
            num_copies += 1
            return array

        sources: list[torch.Tensor] = []  # alive until they are copied
        host = _map(start, actions)
        if num_copies:
            if self._next is None and self._layout is not None:
                self._next = self._allocate(stream)
            # The one wait of a step: the envs need their actions.
            if envs_run:
                self._uploads.wait_for_stream(stream)
            else:
                _native.synchronize_stream(stream)
        return host, num_copies > 0

    def _action_array(self, position: int, leaf: torch.Tensor) -> NDArray[Any]:
        known = self._actions.get(position)
        if known is not None and known[0] is leaf.dtype and known[1].shape == leaf.shape:
            return known[1]
        dtype = torch.empty(0, dtype=leaf.dtype).numpy().dtype
        # Memory of its own pages: two page-locked ranges may not share one.
        pages = np.frombuffer(mmap.mmap(-1, max(leaf.numel() * dtype.itemsize, 1)), np.uint8)
        array: NDArray[Any] = np.frombuffer(pages, dtype, leaf.numel()).reshape(tuple(leaf.shape))
        self._actions[position] = (leaf.dtype, array, _native.PageLock(pages))
        return array

    def wait_for_shared_rows(self) -> None:
        """Wait until no copy reads where workers write their next rows; the others give their batches back."""
        self._uploads.wait_for_shared_rows()

    def close(self) -> None:
        """Wait for the copies and unlock the memory."""
        self._uploads.close()
        self._actions.clear()


class _DeviceBatch(NamedTuple):
    """Device memory for a batch of this layout, allocated on this stream, and its tensors."""

    layout: object
    stream: int
    memory: torch.Tensor
    tensors: list[torch.Tensor]


def _current_stream(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    # A tenth of what torch.cuda.current_stream() costs, which makes an object; torch's own compiler uses it too.
    raw: int = torch._C._cuda_getCurrentRawStream(device.index)
    return raw


def _device_columns(
    arrays: Sequence[NDArray[Any]], offsets: Sequence[int]
) -> list[tuple[torch.dtype, int, tuple[int, ...], tuple[int, ...]]]:
    """Return what Tensor.set_() takes for each array: its dtype, offset, shape and strides."""
    columns = []
    for array, offset in zip(arrays, offsets, strict=True):
        strides = np.cumprod([1, *array.shape[:0:-1]], dtype=np.int64)[::-1].tolist() if array.ndim else []
        dtype = TORCH_DTYPES[array.dtype]
        columns.append((dtype, offset // array.itemsize, array.shape, tuple(strides)))
    return columns


class _SharedMemory:
    """The same on the CPU: tensors share the memory of the arrays."""

    def to_device(self, arrays: Sequence[NDArray[Any]], batch: object, is_idle: bool = False) -> list[torch.Tensor]:
        # torch has no read-only tensors; the ids of a whole batch are one read-only array.
        return [torch.from_numpy(array if array.flags.writeable else array.copy()) for array in arrays]

    def to_host(self, actions: Tensors, envs_run: bool = False) -> tuple[Any, bool]:
        return _map(_leaf_to_numpy, actions), False

    def wait_for_shared_rows(self) -> None:
        """Do nothing: no copy runs."""

    def close(self) -> None:
        """Do nothing."""


Transfer = DeviceTransfer | _SharedMemory


def transfer_for(device: torch.device | str | None) -> Transfer:
    """Return what brings arrays to this device as tensors, and tensors back."""
    if device is None or torch.device(device).type != "cuda":
        return _SharedMemory()
    return DeviceTransfer(device)


def _leaf_to_numpy(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    try:
        return _numpy_compatible(leaf).cpu().resolve_conj().resolve_neg().numpy()
    except (RuntimeError, TypeError) as error:
        raise ActionError(
            f"expected actions in a dense tensor that has values, got {leaf.dtype} with layout {leaf.layout} on "
            f"{leaf.device}: {error}; pass such a tensor, outside torch.func's transforms"
        ) from error


def _numpy_compatible(leaf: torch.Tensor) -> torch.Tensor:
    """Return the tensor without its graph, in a dtype that numpy has: float32 holds every bfloat16 and float8."""
    leaf = leaf.detach()
    is_float_without_numpy = leaf.is_floating_point() and leaf.dtype not in (
        torch.float16,
        torch.float32,
        torch.float64,
    )
    return leaf.to(torch.float32) if is_float_without_numpy else leaf


def _map(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to the leaves of dicts and tuples."""
    if isinstance(value, dict):
        return {key: _map(function, own) for key, own in value.items()}
    if isinstance(value, tuple) and not (value and isinstance(value[0], str)):
        return tuple(_map(function, own) for own in value)
    return function(value)
