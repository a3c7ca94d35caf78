"""Dict and Tuple observations: what is plain is written natively, the rest in Python, with the same rows and faults."""

from __future__ import annotations

import collections

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import envfleet

SPACE = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (2, 3), np.uint8),
        "number": spaces.Discrete(10**9),
        "text": spaces.Text(6, charset=frozenset("aé世😀\ud800")),
        "nested": spaces.Tuple([spaces.Dict({"flags": spaces.MultiBinary(2)}), spaces.Discrete(5)]),
    }
)
PLAIN = {
    "image": np.arange(6, dtype=np.uint8).reshape(2, 3),
    "number": 7,
    "text": "aé世😀\ud800a",
    "nested": ({"flags": np.array([0, 1], np.int8)}, 4),
}
BACKENDS = ["serial", "threads", "processes"]


class Given(gymnasium.Env):
    """Returns the observations that it was given, one after the other."""

    observation_space = SPACE
    action_space = spaces.Discrete(2)

    def __init__(self, observations):
        self.observations = iter(observations)

    def reset(self, *, seed=None, options=None):
        return PLAIN, {}

    def step(self, action):
        return next(self.observations), 0.5, False, False, {}


def make(observations, backend):
    return envfleet.make_pool(Given, num_envs=2, backend=backend, env_kwargs={"observations": observations})


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"text": ""},
        {"text": np.str_("aaaa")},
        {"number": np.int64(8)},
        {"number": np.int16(8)},
        {"number": np.array(8)},
        {"image": np.asfortranarray(PLAIN["image"])},
        {"image": np.ones((2, 3), bool)},
        {"nested": ({"flags": np.array([1, 0], np.int8)}, np.int64(3))},
        {"nested": [collections.OrderedDict(flags=np.array([1, 0], np.int8)), 3]},
    ],
    ids=str,
)
def test_rows_are_what_the_envs_return(change, backend):
    obs = {**PLAIN, **change}
    forms = [obs, dict(reversed(obs.items())), collections.OrderedDict(obs), collections.ChainMap(obs)]
    with make(forms, backend) as pool:
        pool.reset()
        for _ in forms:
            batch = pool.step(np.zeros(2, np.int64))
            for row in range(2):
                assert np.array_equal(batch.obs["image"][row], obs["image"])
                assert batch.obs["number"][row] == obs["number"]
                assert batch.obs["text"][row] == str(obs["text"])
                assert np.array_equal(batch.obs["nested"][0]["flags"][row], obs["nested"][0]["flags"])
                assert batch.obs["nested"][1][row] == obs["nested"][1]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({**PLAIN, "other": 1}, "other"),
        ({key: PLAIN[key] for key in ("image", "number", "nested")}, "text"),
        ({**{key: PLAIN[key] for key in ("image", "number", "nested")}, "texts": ""}, "texts"),
        ({**PLAIN, "number": 2**70}, "number"),
        ({**PLAIN, "number": "7"}, "number"),
        ({**PLAIN, "image": np.zeros((3, 2), np.uint8)}, "image"),
        ({**PLAIN, "image": np.zeros((2, 3))}, "image"),
        ({**PLAIN, "image": PLAIN["image"].tolist()}, "image"),
        ({**PLAIN, "text": "a" * 7}, "text"),
        ({**PLAIN, "text": b"a"}, "text"),
        ({**PLAIN, "nested": PLAIN["nested"][:1]}, "nested"),
        ({**PLAIN, "nested": (*PLAIN["nested"], 1)}, "nested"),
        ({**PLAIN, "nested": ({"flag": 1}, 4)}, "flag"),
        ({**PLAIN, "nested": ({"flags": np.zeros(3, np.int8)}, 4)}, "flags"),
        (PLAIN["image"], "dict"),
    ],
)
def test_what_does_not_fit_is_a_fault_without_a_row(wrong, words, backend):
    """Even if a part was written before: the row of a fault is zero, and the next step has a row again."""
    with make([PLAIN, wrong, PLAIN], backend) as pool:
        pool.reset()
        pool.step(np.zeros(2, np.int64))
        with pytest.raises(envfleet.EnvError, match=words) as caught:
            pool.step(np.zeros(2, np.int64))
        batch = caught.value.batch
        assert not batch.obs["image"].any()
        assert not batch.obs["number"].any()
        assert not batch.obs["nested"][0]["flags"].any()
        pool.reset()
        assert pool.step(np.zeros(2, np.int64)).obs["number"].tolist() == [7, 7]
