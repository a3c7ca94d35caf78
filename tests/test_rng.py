"""The SDK's generator draws numpy's stream, bit for bit."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from envfleet import _native
from envfleet.core.seeding import fresh_seeds, restart_seed, seeds_for, to_words

SEEDS = [0, 1, 42, 2**32 - 1, 2**32, 2**64 - 1, 2**64, 2**127 + 3, 2**128 - 1]


def pair(seed):
    return _native.Rng(to_words([seed])[0].tolist()), np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))


@pytest.mark.parametrize("seed", SEEDS)
def test_uniform_and_integers(seed):
    ours, numpys = pair(seed)
    draws = np.random.default_rng(0)
    for _ in range(2000):
        kind = draws.integers(0, 3)
        if kind == 0:
            assert ours.random() == numpys.random()
        elif kind == 1:
            assert ours.uniform(-3.0, 0.25) == numpys.uniform(-3.0, 0.25)
        else:
            # Odd numbers of 32-bit draws leave half a draw behind, which the next one must use.
            low = int(draws.integers(-(2**62), 2**62))
            high = low + int(2 ** draws.uniform(0, 61)) + 1
            assert ours.integers(low, high) == numpys.integers(low, high)


@pytest.mark.parametrize("span", [1, 2, 3, 2**32 - 1, 2**32, 2**32 + 1, 2**63])
def test_integers_at_the_borders_of_the_ranges(span):
    ours, numpys = pair(7)
    for _ in range(200):
        assert ours.integers(-5, span - 5) == numpys.integers(-5, span - 5)


def test_distributions_of_numpys_library():
    ours, numpys = pair(3)
    for _ in range(2000):
        assert ours.normal() == numpys.standard_normal()
        assert ours.exponential() == numpys.standard_exponential()
        assert ours.gamma(2.5) == numpys.standard_gamma(2.5)
        assert ours.beta(0.5, 2.0) == numpys.beta(0.5, 2.0)
        assert ours.poisson(3.5) == numpys.poisson(3.5)


NUMBERS = [-math.inf, -1e308, -1.0, -0.0, 0.0, 0.5, 1.0, 1e308, 9.223372006484771e18, 9.3e18, math.inf, math.nan]


@pytest.mark.parametrize(
    ("name", "num_parameters"),
    [("uniform", 2), ("normal", 2), ("exponential", 1), ("gamma", 2), ("beta", 2), ("poisson", 1)],
)
def test_parameters_are_refused_where_numpy_refuses_them(name, num_parameters):
    for parameters in itertools.product(NUMBERS, repeat=num_parameters):
        ours, numpys = pair(5)
        try:
            with np.errstate(all="ignore"):
                expected = getattr(numpys, name)(*parameters)
        except (ValueError, OverflowError):
            with pytest.raises(ValueError, match=rf"Rng::{name} expected .*, got"):
                getattr(ours, name)(*parameters)
            continue
        got = getattr(ours, name)(*parameters)
        assert got == expected or (math.isnan(got) and math.isnan(expected)), parameters


@pytest.mark.parametrize(("low", "high"), [(1, 0), (0, 0), (2**63 - 1, -(2**63))])
def test_empty_ranges_of_integers_are_refused(low, high):
    ours, numpys = pair(5)
    with pytest.raises(ValueError, match=r"low >= high|high <= 0"):
        numpys.integers(low, high)
    with pytest.raises(ValueError, match="Rng::integers expected low < high, got"):
        ours.integers(low, high)


def test_which_env_gets_which_seed():
    ids = np.array([3, 1], dtype=np.int32)
    assert seeds_for(10, ids, 4) == [13, 11]
    assert seeds_for([7, 8], ids, 4) == [7, 8]
    assert seeds_for([0, 1, 2, 3], ids, 4) == [3, 1]
    assert seeds_for(np.arange(4), ids, 4) == [3, 1]
    assert seeds_for(None, ids, 4) == [None, None]
    assert len(set(fresh_seeds(1000))) == 1000
    assert len({restart_seed(seed, count) for seed in range(20) for count in range(20)}) == 400
