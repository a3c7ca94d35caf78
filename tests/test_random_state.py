"""The SDK's legacy generator draws the stream of np.random.RandomState, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from envfleet import _native
from envfleet.core.seeding import to_words

SEEDS = [0, 1, 42, 5489, 2**31, 2**32 - 1]
PROBABILITIES = [0.1, 0.1, 0.8]


def pair(seed: int) -> tuple[_native.RandomState, np.random.RandomState]:
    own = seed if seed < 2**32 else int(np.random.SeedSequence(seed).generate_state(1)[0])
    return _native.RandomState(to_words([seed])[0].tolist()), np.random.RandomState(own)


@pytest.mark.parametrize("seed", [*SEEDS, 2**32, 2**64 + 3, 2**128 - 1])
def test_mixed_draws(seed: int) -> None:
    # Mixed: an odd number of normal draws keeps one back, whatever is drawn in between.
    ours, numpys = pair(seed)
    draws = np.random.default_rng(0)
    for _ in range(3000):
        kind = draws.integers(0, 6)
        if kind == 0:
            assert ours.random_sample() == numpys.random_sample()
        elif kind == 1:
            low, high = np.sort(draws.normal(size=2) * 10)
            assert ours.uniform(low, high) == numpys.uniform(low, high)
        elif kind == 2:
            assert ours.randn() == numpys.randn()
        elif kind == 3:
            low = int(draws.integers(-(2**62), 2**62))
            high = low + int(2 ** draws.uniform(0, 61)) + 1
            assert ours.randint(low, high) == numpys.randint(low, high)
        elif kind == 4:
            assert ours.choice(PROBABILITIES) == numpys.choice(3, p=PROBABILITIES)
        else:
            size = int(draws.integers(0, 20))
            assert ours.permutation(size) == numpys.permutation(size).tolist()


@pytest.mark.parametrize("span", [1, 2, 3, 2**32 - 1, 2**32, 2**32 + 1, 2**63])
def test_randint_at_the_borders_of_the_ranges(span: int) -> None:
    ours, numpys = pair(7)
    for _ in range(200):
        assert ours.randint(-5, span - 5) == numpys.randint(-5, span - 5)
        assert ours.random_sample() == numpys.random_sample()


@pytest.mark.parametrize("values", [[1], [1, 2, 3], list(range(700)), [2**32 - 1] * 624])
def test_seeds_from_an_array(values: list[int]) -> None:
    ours, numpys = _native.RandomState([0, 0, 0, 0]), np.random.RandomState(values)
    ours.seed_by_array(values)
    assert [ours.randn() for _ in range(2000)] == numpys.randn(2000).tolist()


def test_a_generator_is_fresh_until_the_first_draw() -> None:
    ours, _ = pair(3)
    assert ours.is_fresh()
    for _ in range(3 * 312):  # past the ends of several blocks
        ours.random_sample()
        assert not ours.is_fresh()
    ours.seed_by_array([1])
    assert ours.is_fresh()


def test_an_empty_range_is_refused() -> None:
    with pytest.raises(ValueError, match="low < high"):
        _native.RandomState([0, 0, 0, 0]).randint(3, 3)
