"""Frames of another size, and grids of frames."""

from __future__ import annotations

import numpy as np
import pytest

from envfleet.core.errors import ConfigError
from envfleet.core.rendering import resized, shrink, tile


def test_shrinking_takes_the_mean():
    frame = np.arange(16, dtype=np.uint8).reshape(4, 4)
    assert resized(frame, 2, 2).tolist() == [[2, 4], [10, 12]]  # 2.5, 4.5, 10.5, 12.5 to even
    assert resized(frame, 0, 0) is frame


def test_growing_repeats_and_odd_sizes_keep_the_mean():
    frame = np.array([[[0, 9, 30]], [[10, 9, 60]]], dtype=np.uint8)
    assert resized(frame, 3, 4)[..., 0].tolist() == [[0] * 3, [0] * 3, [10] * 3, [10] * 3]
    rng = np.random.default_rng(0)
    wide = rng.uniform(size=(7, 11, 3))
    small = resized(wide, 4, 3)
    assert small.shape == (3, 4, 3)
    np.testing.assert_allclose(small.mean(), wide.mean())


def test_what_is_not_a_frame_is_unchanged():
    assert resized("text", 3, 3) == "text"
    assert resized(None, 3, 3) is None


def test_a_grid_has_room_for_its_largest_frame():
    frames = [np.full((1 + size, 2, 3), 200, np.uint8) for size in range(3)]
    assert tile(frames)[..., 0].tolist() == [[200] * 4, [0, 0, 200, 200], [0] * 4, *[[200, 200, 0, 0]] * 3]
    assert tile(frames[:2], gap=1)[..., 0].tolist() == [[200, 200, 64, 200, 200], [64, 64, 64, 200, 200]]


def test_what_cannot_be_tiled_names_the_env():
    frame = np.zeros((2, 2, 3), np.uint8)
    with pytest.raises(ConfigError, match=r"render\(\) of env 1 expected .*, got NoneType; fix its render\(\)"):
        tile([frame, None])
    with pytest.raises(ConfigError, match=r"env 7 .*, got float64 of shape \(2, 2, 3\)"):
        tile([frame.astype(float), frame], env_ids=[7, 0])
    with pytest.raises(ConfigError, match=r"env 0 .*, got str; make the pool with render_mode='rgb_array'"):
        tile(["text"], render_mode="ansi")


def test_a_frame_is_shrunk_by_a_whole_number():
    frame = np.repeat(np.arange(24, dtype=np.uint8).reshape(4, 6, 1), 3, axis=2)
    assert shrink(frame, 6) is frame
    assert shrink(frame, 5)[..., 0].tolist() == [[4, 6, 8], [16, 18, 20]]  # 3.5, 5.5 ... to even
