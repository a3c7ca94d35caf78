"""Pictures of another size."""

from __future__ import annotations

import numpy as np

from envfleet.rendering import resized


def test_shrinking_takes_the_mean():
    picture = np.arange(16, dtype=np.uint8).reshape(4, 4)
    assert resized(picture, 2, 2).tolist() == [[2, 4], [10, 12]]  # 2.5, 4.5, 10.5, 12.5 to even
    assert resized(picture, 0, 0) is picture


def test_growing_repeats_and_odd_sizes_keep_the_mean():
    picture = np.array([[[0, 9, 30]], [[10, 9, 60]]], dtype=np.uint8)
    assert resized(picture, 3, 4)[..., 0].tolist() == [[0] * 3, [0] * 3, [10] * 3, [10] * 3]
    rng = np.random.default_rng(0)
    wide = rng.uniform(size=(7, 11, 3))
    small = resized(wide, 4, 3)
    assert small.shape == (3, 4, 3)
    np.testing.assert_allclose(small.mean(), wide.mean())


def test_what_is_no_picture_stays():
    assert resized("text", 3, 3) == "text"
    assert resized(None, 3, 3) is None
