"""Frames: stacks the engine's screens to observations, planes first."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet import _native

Pixels = NDArray[np.uint8]
_IDENTITY = np.arange(256, dtype=np.uint8)[None]


class _Plane:
    """The plane that the kernel resizes next. The kernel refers to put(), so put() must not refer to the kernel."""

    pixels: Pixels

    def put(self, target: Pixels) -> None:
        """Copy the plane into the kernel's buffer; called by the kernel."""
        target[:] = self.pixels


class Frames:
    """A stack of the last num_frames screens of num_planes planes each, resized to height x width."""

    def __init__(
        self, raw_shape: tuple[int, int], shape: tuple[int, int], num_planes: int, num_frames: int, resize: str
    ) -> None:
        """resize: "area", "linear", or "nearest" for screens whose values are labels and not colors."""
        self._num_planes = num_planes
        self.shape = (num_planes * num_frames, *shape)
        self._stack: Pixels = np.zeros(self.shape, dtype=np.uint8)
        self._is_same = raw_shape == shape
        self._native: Any = None
        if resize == "nearest":
            self._rows, self._columns = (
                ((np.arange(new) + 0.5) * old / new).astype(np.intp) for old, new in zip(raw_shape, shape, strict=True)
            )
        elif not self._is_same:
            self._plane = _Plane()
            self._native = _native.ScreenStack(self._plane.put, *raw_shape, *shape, 1, _IDENTITY, resize == "area")
            self._resized = self._native.stack[0]

    def begin(self, screen: Pixels) -> Pixels:
        """Fill the stack with this screen."""
        stack: Pixels = np.empty_like(self._stack)
        first = stack[: self._num_planes]
        self._resize(screen, first)
        for start in range(self._num_planes, len(stack), self._num_planes):
            stack[start : start + self._num_planes] = first
        self._stack = stack
        return stack

    def push(self, screen: Pixels) -> Pixels:
        """Drop the oldest frame and append this screen. Returns a new array; the previous one does not change."""
        stack: Pixels = np.empty_like(self._stack)
        stack[: -self._num_planes] = self._stack[self._num_planes :]
        self._resize(screen, stack[-self._num_planes :])
        self._stack = stack
        return stack

    def repeat(self) -> Pixels:
        """Return a copy of the last stack, for a game that has ended and has no screen."""
        return np.array(self._stack)

    def _resize(self, screen: Pixels, target: Pixels) -> None:
        planes = screen[None] if screen.ndim == 2 else screen
        if self._is_same:
            target[:] = planes
        elif self._native is None:
            target[:] = planes[:, self._rows[:, None], self._columns]
        else:
            for self._plane.pixels, into in zip(planes, target, strict=True):
                self._native.begin()
                into[:] = self._resized
