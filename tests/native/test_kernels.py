"""ScreenStack against numpy and OpenCV: colours, the maximum of two screens, resizing, the stack."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from envfleet._native import ScreenStack

HEIGHT, WIDTH = 210, 160
SIZES = [(84, 84), (64, 64), (210, 160), (105, 80), (50, 33), (128, 84), (84, 8), (1, 1), (256, 256), (300, 100)]


class Console:
    """Shows one screen of palette indices after another."""

    def __init__(self, seed=0, num_screens=8, height=HEIGHT, odd=False):
        random = np.random.default_rng(seed)
        background = random.integers(128, size=(height, WIDTH)) * 2
        self.screens = []
        for _ in range(num_screens):
            # Most of a screen stays as it is, as in a game.
            top = random.integers(height - 20)
            background[top : top + 20, 30:50] = random.integers(128, size=(20, 20)) * 2
            self.screens.append((background + odd).astype(np.uint8))
        self.shown = 0

    def take(self, target):
        target[...] = self.screens[self.shown % len(self.screens)]
        self.shown += 1


def palette(num_planes, seed=1):
    colours = np.random.default_rng(seed).integers(256, size=(num_planes, 128), dtype=np.uint8)
    return np.repeat(colours, 2, axis=1)


def stack_of(console, size, colours, *, num_frames=4, is_area=True, may_use_simd=True):
    height = console.screens[0].shape[0]
    return ScreenStack(console.take, height, WIDTH, *size, num_frames, colours, is_area, may_use_simd)


def pushes(stack):
    """One of every kind; the stack after each."""
    seen = []
    for push in (stack.begin, stack.push_last, both(stack), stack.push_nothing, before(stack), both(stack)):
        push()
        seen.append(stack.stack.copy())
    return seen


def both(stack):
    return lambda: (stack.take_before(), stack.push_both())


def before(stack):
    return lambda: (stack.take_before(), stack.push_before())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("num_planes", [1, 3])
@pytest.mark.parametrize("is_area", [True, False])
def test_resizing_is_opencvs(size, num_planes, is_area):
    cv2 = pytest.importorskip("cv2")
    console, colours = Console(), palette(num_planes)
    stack = stack_of(console, size, colours, is_area=is_area)
    stack.begin()
    stack.take_before()
    stack.push_both()
    pooled = np.maximum(colours[:, console.screens[1]], colours[:, console.screens[2]])
    np.testing.assert_array_equal(stack.pooled, pooled)
    how = cv2.INTER_AREA if is_area else cv2.INTER_LINEAR
    expected = np.stack([cv2.resize(plane, size[::-1], interpolation=how) for plane in pooled])
    newest = stack.stack[-num_planes:]
    # OpenCV adds up in floats, or in whole numbers that it rounds twice.
    assert np.abs(newest.astype(np.int16) - expected).max() <= 1


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("num_planes", [1, 3])
def test_simd_and_portable_code_agree_bit_for_bit(size, num_planes):
    results = []
    for may_use_simd in (True, False):
        stack = stack_of(Console(), size, palette(num_planes), may_use_simd=may_use_simd)
        assert may_use_simd or not stack.uses_simd
        results.append(pushes(stack))
    np.testing.assert_array_equal(results[0], results[1])


def test_areas_are_exact_means():
    colours = np.arange(256, dtype=np.uint8)[None]
    console = Console()
    stack = stack_of(console, (84, 84), colours, num_frames=1)
    stack.begin()
    exact = np.repeat(np.repeat(console.screens[0].astype(np.int64), 2, axis=0), 21, axis=1)
    sums = exact.reshape(84, 5, 84, 40).sum(axis=(1, 3))
    np.testing.assert_array_equal(stack.stack[0], (sums + 100) // 200)


def test_each_kind_of_push():
    console, colours = Console(), palette(1)
    stack = stack_of(console, (HEIGHT, WIDTH), colours, num_frames=2)
    grey = [colours[0][screen] for screen in console.screens]
    stack.begin()
    np.testing.assert_array_equal(stack.stack, [grey[0], grey[0]])
    stack.push_last()
    np.testing.assert_array_equal(stack.stack, [grey[0], grey[1]])
    stack.take_before()
    stack.push_both()
    shown = np.maximum(grey[2], grey[3])
    np.testing.assert_array_equal(stack.stack, [grey[1], shown])
    stack.push_nothing()
    np.testing.assert_array_equal(stack.stack, [shown, shown])
    stack.take_before()
    stack.push_before()
    np.testing.assert_array_equal(stack.stack, [shown, np.maximum(shown, grey[4])])
    stack.pooled[...] = 7
    stack.push_pooled()
    assert (stack.stack[1] == 7).all()
    stack.pooled[...] = 9
    stack.begin_pooled()
    assert (stack.stack == 9).all()


def test_lines_that_did_not_change_are_those_that_are_kept():
    # The same frames from one stack that goes on and from fresh ones.
    console, fresh = Console(num_screens=40), Console(num_screens=40)
    stack = stack_of(console, (84, 84), palette(1), num_frames=1)
    stack.begin()
    for shown in range(1, 40):
        stack.push_last()
        alone = stack_of(fresh, (84, 84), palette(1), num_frames=1)
        fresh.shown = shown
        alone.begin()
        np.testing.assert_array_equal(stack.stack, alone.stack)


def test_a_palette_with_odd_colours_goes_the_portable_way():
    colours = np.random.default_rng(3).integers(256, size=(1, 256), dtype=np.uint8)
    console = Console(odd=True)
    stack = stack_of(console, (HEIGHT, WIDTH), colours, num_frames=1)
    assert not stack.uses_simd
    stack.begin()
    np.testing.assert_array_equal(stack.stack[0], colours[0][console.screens[0]])


def test_the_stack_in_memory_of_others():
    row = np.zeros((4, 84, 84), np.uint8)
    stack, same = stack_of(Console(), (84, 84), palette(1)), stack_of(Console(), (84, 84), palette(1))
    for own in (stack, same):
        own.begin()
        own.push_last()
    stack.move_stack(row)
    np.testing.assert_array_equal(row, same.stack)
    for own in (stack, same):
        own.push_last()
    np.testing.assert_array_equal(row, same.stack)
    assert stack.stack.ctypes.data == row.ctypes.data
    stack.move_stack(None)
    stack.push_last()
    np.testing.assert_array_equal(row, same.stack)


def test_arrays_of_a_stack_outlive_its_moves():
    stack = stack_of(Console(), (84, 84), palette(1))
    stack.begin()
    first, before = stack.stack, stack.stack.copy()
    stack.move_stack(np.zeros((4, 84, 84), np.uint8))
    stack.push_last()
    second, after = stack.stack, stack.stack.copy()
    stack.move_stack(None)  # and with it goes the array that second shows
    stack.move_stack(np.zeros((4, 84, 84), np.uint8))
    others = [np.full((4, 84, 84), 7, np.uint8) for _ in range(20)]  # where freed memory would lie
    stack.push_last()
    np.testing.assert_array_equal(second, after)
    np.testing.assert_array_equal(first, after)  # its own memory, as it was when the stack left it last
    assert not np.array_equal(before, after)
    assert all((other == 7).all() for other in others)


@pytest.mark.parametrize(
    "memory",
    [
        np.zeros((4, 84, 84), np.float32),
        np.zeros((4, 84, 84), np.int8),
        np.zeros((8, 84, 84), np.uint8)[::2],
        np.zeros((4, 84, 84), np.uint8, order="F"),
        bytes(4 * 84 * 84),
        5,
    ],
    ids=["floats", "signed", "strided", "fortran", "read-only", "number"],
)
def test_memory_that_a_stack_cannot_lie_in_is_refused(memory):
    stack = stack_of(Console(), (84, 84), palette(1))
    stack.begin()
    own = stack.stack.ctypes.data
    with pytest.raises(TypeError, match="contiguous uint8 array"):
        stack.move_stack(memory)
    assert stack.stack.ctypes.data == own


def test_other_threads_run_while_a_large_picture_is_made():
    # As an engine's pictures are made, on threads, at once: each is what one thread alone makes.
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (8, 480, 640), dtype=np.uint8)

    def made(number):
        stack = ScreenStack(
            lambda screen: np.copyto(screen, pictures[number]),
            480,
            640,
            84,
            84,
            1,
            np.arange(256, dtype=np.uint8)[None],
        )
        for _ in range(20):
            stack.begin()
        return stack.stack.copy()

    alone = [made(number) for number in range(8)]
    with ThreadPoolExecutor(4) as threads:
        for one, other in zip(alone, threads.map(made, range(8)), strict=True):
            np.testing.assert_array_equal(one, other)


def test_what_is_refused():
    take, colours = Console().take, palette(1)
    for sizes in ((0, 160, 84, 84, 4), (210, 160, -1, 84, 4), (210, 160, 84, 84, 0)):
        with pytest.raises(ValueError, match="sizes of at least 1"):
            ScreenStack(take, *sizes, colours)
    with pytest.raises(ValueError, match="palette of shape"):
        ScreenStack(take, 210, 160, 84, 84, 4, colours[:, :100].copy())
    with pytest.raises(ValueError, match="stack's size"):
        ScreenStack(take, 210, 160, 84, 84, 4, colours).move_stack(np.zeros(5, np.uint8))


def test_what_the_console_raises_comes_through():
    def take(target):
        raise RuntimeError("no signal")

    stack = ScreenStack(take, 210, 160, 84, 84, 4, palette(1))
    with pytest.raises(RuntimeError, match="no signal"):
        stack.begin()
