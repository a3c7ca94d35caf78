"""Observers: convert the console's screens to observations.

Every observer has the same methods: `take_before` keeps the last screen but one of a step, `whole` returns the
observation of a complete step, `alone` that of a step of a single frame, `cut` that of a step in which the episode
ended, `begin` that of a new game.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cache

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet import _native
from envfleet.families.atari.emulator import Emulator
from envfleet.families.atari.options import AtariOptions

# The emulator's colors of an NTSC console, as red, green and blue; palette indices are even numbers.
_NTSC = (
    "000000 4a4a4a 6f6f6f 8e8e8e aaaaaa c0c0c0 d6d6d6 ececec 484800 69690f 86861d a2a22a bbbb35 d2d240 e8e84a fcfc54 "
    "7c2c00 904811 a26221 b47a30 c3903d d2a44a dfb755 ecc860 901c00 a33915 b55328 c66c3a d5824a e39759 f0aa67 fcbc74 "
    "940000 a71a1a b83232 c84848 d65c5c e46f6f f08080 fc9090 840064 97197a a8308f b846a2 c659b3 d46cc3 e07cd2 ec8ce0 "
    "500084 68199a 7d30ad 9246c0 a459d0 b56ce0 c57cee d48cfc 140090 331aa3 4e32b5 6848c6 7f5cd5 956fe3 a980f0 bc90fc "
    "000094 181aa7 2d32b8 4248c8 545cd6 656fe4 7580f0 8490fc 001c88 183b9d 2d57b0 4272c2 548ad2 65a0e1 75b5ef 84c8fc "
    "003064 185080 2d6d98 4288b0 54a0c5 65b7d9 75cceb 84e0fc 004030 18624e 2d8169 429e82 54b899 65d1ae 75e7c2 84fcd4 "
    "004400 1a661a 328432 48a048 5cba5c 6fd26f 80e880 90fc90 143c00 355f18 527e2d 6e9c42 87b754 9ed065 b4e775 c8fc84 "
    "303800 505916 6d762b 88923e a0ab4f b7c25f ccd86e e0ec7c 482c00 694d14 866a26 a28638 bb9f47 d2b656 e8cc63 fce070"
)
_PAL_HEIGHT = 250  # PAL consoles have other colors, some of which depend on the line


@cache
def palette(is_gray: bool) -> NDArray[np.uint8]:
    """Return 256 values per plane: one plane of gray, or three of red, green and blue."""
    colors = np.array([list(bytes.fromhex(color)) for color in _NTSC.split()], dtype=np.uint8)
    if is_gray:
        # The emulator's own weights.
        colors = np.round(colors @ np.array([0.2989, 0.5870, 0.1140])).astype(np.uint8)[:, None]
    planes: NDArray[np.uint8] = np.ascontiguousarray(np.repeat(colors, 2, axis=0).T)
    return planes


class Observer(ABC):
    """Base class of the observers. The next observation overwrites the array of the last one."""

    observation_space: spaces.Box

    def take_before(self) -> None:  # noqa: B027 (optional: not every observer needs it)
        """Keep the last screen but one of a step."""

    @abstractmethod
    def whole(self) -> NDArray[np.uint8]:
        """Return the observation after the last frame of a step."""

    def cut(self, has_before: bool) -> NDArray[np.uint8]:
        """Return the observation of a step in which an episode ended; has_before: take_before() was called."""
        return self.whole()

    def begin(self) -> NDArray[np.uint8]:
        """Return the first observation of a game."""
        return self.whole()

    def alone(self) -> NDArray[np.uint8]:
        """Return the observation of the last screen alone: after a step of one frame, or for another life in a game."""
        return self.whole()

    @abstractmethod
    def observe_into(self, row: NDArray[np.uint8]) -> None:
        """Move the current observation, and all later ones, into this row."""

    def save(self) -> list[NDArray[np.uint8]]:
        """Return the state that later observations depend on."""
        return [array.copy() for array in self._state()]

    def load(self, saved: list[NDArray[np.uint8]]) -> None:
        """Restore a state that save() returned."""
        for array, own in zip(self._state(), saved, strict=True):
            array[...] = own

    def _state(self) -> list[NDArray[np.uint8]]:
        return []


class RawObserver(Observer):
    """The console's RAM, or its screen unprocessed."""

    def __init__(self, emulator: Emulator, options: AtariOptions) -> None:
        rom, console = emulator.rom_info, emulator.console
        shape: tuple[int, ...]
        if options.obs_type == "ram":
            self._take, shape = console.getRAM, (rom.ram_bytes,)
        elif options.gray_scale:
            self._take, shape = console.getScreenGrayscale, (rom.height, rom.width)
        else:
            self._take, shape = console.getScreenRGB, (rom.height, rom.width, 3)
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        self._obs = np.zeros(shape, np.uint8)

    def whole(self) -> NDArray[np.uint8]:
        """Return the current RAM or screen."""
        self._take(self._obs)
        return self._obs

    def observe_into(self, row: NDArray[np.uint8]) -> None:
        """Copy the observation, and write later ones there."""
        row[...] = self._obs
        self._obs = row

    def _state(self) -> list[NDArray[np.uint8]]:
        return [self._obs]


class StackObserver(Observer):
    """Screens of palette indices, pooled, resized and stacked by one native kernel."""

    def __init__(self, emulator: Emulator, options: AtariOptions) -> None:
        rom = emulator.rom_info
        height, width = options.img_height or rom.height, options.img_width or rom.width
        self._kernel = _native.ScreenStack(
            emulator.console.getScreen,
            rom.height,
            rom.width,
            height,
            width,
            options.stack_num or 1,
            palette(options.gray_scale),
            options.use_inter_area_resize,
        )
        self.take_before = self._kernel.take_before  # type: ignore[method-assign]  # one call less per step
        self._is_pooled = options.max_pool and options.frame_skip != 1
        self._hides_end = options.max_pool
        self._push = self._kernel.push_both if self._is_pooled else self._kernel.push_last
        # Without a stack the colors are the last axis, as in Gymnasium.
        self._colors_last = options.stack_num is None and not options.gray_scale
        self._is_flat = options.stack_num is None and options.gray_scale
        self._obs = self._view()
        self.observation_space = spaces.Box(0, 255, self._obs.shape, np.uint8)

    def whole(self) -> NDArray[np.uint8]:
        """Return the stack with the maximum of the last two screens, or the last one."""
        self._push()
        return self._shown()

    def cut(self, has_before: bool) -> NDArray[np.uint8]:
        """Return what Gymnasium's AtariPreprocessing returns: without the last screen, and often the one before."""
        if not self._hides_end:
            return self.whole()
        if has_before and self._is_pooled:
            self._kernel.push_before()
        else:
            self._kernel.push_nothing()
        return self._shown()

    def begin(self) -> NDArray[np.uint8]:
        """Fill the stack with the first screen."""
        self._kernel.begin()
        return self._shown()

    def alone(self) -> NDArray[np.uint8]:
        """Append the last screen to the stack."""
        self._kernel.push_last()
        return self._shown()

    def observe_into(self, row: NDArray[np.uint8]) -> None:
        """Move the stack there, if it is itself the observation."""
        if not self._colors_last:
            self._kernel.move_stack(row)
            self._obs = self._view()

    def _view(self) -> NDArray[np.uint8]:
        stack = self._kernel.stack
        if self._colors_last:
            return np.moveaxis(stack, 0, -1)
        return stack[0] if self._is_flat else stack

    def _shown(self) -> NDArray[np.uint8]:
        return np.ascontiguousarray(self._obs) if self._colors_last else self._obs

    def _state(self) -> list[NDArray[np.uint8]]:
        return [self._kernel.stack, self._kernel.pooled]


class PalStackObserver(StackObserver):
    """A StackObserver for consoles whose colors are not in the palette: the emulator colors the screens, slower."""

    def __init__(self, emulator: Emulator, options: AtariOptions) -> None:
        super().__init__(emulator, options)
        console, rom = emulator.console, emulator.rom_info
        self._take = console.getScreenGrayscale if options.gray_scale else console.getScreenRGB
        shape = (rom.height, rom.width) if options.gray_scale else (rom.height, rom.width, 3)
        self._last, self._before = np.zeros(shape, np.uint8), np.zeros(shape, np.uint8)
        self._pooled = self._kernel.pooled
        self.take_before = self._keep_before  # type: ignore[method-assign]

    def _keep_before(self) -> None:
        self._take(self._before)

    def whole(self) -> NDArray[np.uint8]:
        """See StackObserver."""
        self._take(self._last)
        self._pooled[...] = self._planes(np.maximum(self._last, self._before) if self._is_pooled else self._last)
        self._kernel.push_pooled()
        return self._shown()

    def cut(self, has_before: bool) -> NDArray[np.uint8]:
        """See StackObserver."""
        if not self._hides_end:
            return self.whole()
        if has_before and self._is_pooled:
            np.maximum(self._pooled, self._planes(self._before), out=self._pooled)
        self._kernel.push_pooled()
        return self._shown()

    def begin(self) -> NDArray[np.uint8]:
        """See StackObserver."""
        self._take(self._last)
        self._pooled[...] = self._planes(self._last)
        self._kernel.begin_pooled()
        return self._shown()

    def alone(self) -> NDArray[np.uint8]:
        """See StackObserver."""
        self._take(self._last)
        self._pooled[...] = self._planes(self._last)
        self._kernel.push_pooled()
        return self._shown()

    def _planes(self, colors: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return colors[None] if colors.ndim == 2 else np.moveaxis(colors, -1, 0)


def observer_for(emulator: Emulator, options: AtariOptions) -> Observer:
    """Return the observer for these options."""
    is_raw = options.stack_num is None and options.img_height is None and options.img_width is None
    if options.obs_type == "ram" or (is_raw and not options.max_pool):
        return RawObserver(emulator, options)
    return (PalStackObserver if emulator.rom_info.height >= _PAL_HEIGHT else StackObserver)(emulator, options)
