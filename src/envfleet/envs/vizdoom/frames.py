"""Frames: from the engine's screens to the stack that an agent sees, planes first."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet import _native

Pixels = NDArray[np.uint8]
_AS_THEY_ARE = np.arange(256, dtype=np.uint8)[None]


class _Plane:
    """What the kernel resizes next. It holds on to put(), which therefore must not hold on to the kernel."""

    pixels: Pixels

    def put(self, screen: Pixels) -> None:
        """Called by the kernel."""
        screen[:] = self.pixels


class Frames:
    """A stack of the last num_frames pictures of num_planes planes each, resized to height x width."""

    def __init__(
        self, raw_shape: tuple[int, int], shape: tuple[int, int], num_planes: int, num_frames: int, resize: str
    ) -> None:
        """resize: "area", "linear", or "nearest" for pictures whose values are names and not colours."""
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
            self._native = _native.ScreenStack(self._plane.put, *raw_shape, *shape, 1, _AS_THEY_ARE, resize == "area")
            self._resized = self._native.stack[0]

    def begin(self, picture: Pixels) -> Pixels:
        """All frames are this picture."""
        stack: Pixels = np.empty_like(self._stack)
        first = stack[: self._num_planes]
        self._shrink(picture, first)
        for start in range(self._num_planes, len(stack), self._num_planes):
            stack[start : start + self._num_planes] = first
        self._stack = stack
        return stack

    def push(self, picture: Pixels) -> Pixels:
        """The oldest frame goes, this picture comes last. A new array: the one before stays as it is."""
        stack: Pixels = np.empty_like(self._stack)
        stack[: -self._num_planes] = self._stack[self._num_planes :]
        self._shrink(picture, stack[-self._num_planes :])
        self._stack = stack
        return stack

    def repeat(self) -> Pixels:
        """The stack as it was: the game has ended and shows nothing."""
        return np.array(self._stack)

    def _shrink(self, picture: Pixels, target: Pixels) -> None:
        planes = picture[None] if picture.ndim == 2 else picture
        if self._is_same:
            target[:] = planes
        elif self._native is None:
            target[:] = planes[:, self._rows[:, None], self._columns]
        else:
            for self._plane.pixels, into in zip(planes, target, strict=True):
                self._native.begin()
                into[:] = self._resized
