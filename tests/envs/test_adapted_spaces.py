"""adapt() and to_gymnasium_space(): gym's spaces as Gymnasium's, and what is no space."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from old_envs import OldEnv, gym_box, gym_space

from envfleet.core.errors import ConfigError
from envfleet.envs.adapters import adapt, to_gymnasium_space


@pytest.mark.parametrize("name", ["observation_space", "action_space"])
def test_missing_spaces_are_told(name: str) -> None:
    env = OldEnv()
    delattr(env, name)
    with pytest.raises(ConfigError, match=rf"expected an env with {name}, got .*OldEnv .*set self\.{name}"):
        adapt(env)


def test_an_unknown_space_is_told() -> None:
    env = OldEnv()
    env.action_space = 3
    with pytest.raises(ConfigError, match="expected a space of gymnasium or gym, got 3"):
        adapt(env)


COIN, UNIT = gym_space("Discrete", n=2), gym_box(0, 1, (1,))
AB = {"max_length": 5, "min_length": 2, "character_set": frozenset("ab")}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (gym_box(-2, 2, (3, 4), np.float64), spaces.Box(-2, 2, (3, 4), np.float64)),
        (gym_box(-np.inf, np.inf, (2,)), spaces.Box(-np.inf, np.inf, (2,), np.float32)),
        (gym_space("Discrete", n=4), spaces.Discrete(4)),
        (gym_space("Discrete", n=np.int64(4), start=-1), spaces.Discrete(4, start=-1)),
        (gym_space("MultiDiscrete", nvec=np.array([2, 3]), dtype=np.int64), spaces.MultiDiscrete([2, 3])),
        (gym_space("MultiBinary", n=3), spaces.MultiBinary(3)),
        (gym_space("MultiBinary", n=(2, 3)), spaces.MultiBinary([2, 3])),
        (gym_space("Text", **AB), spaces.Text(5, min_length=2, charset="ab")),
        (gym_space("Sequence", feature_space=COIN), spaces.Sequence(spaces.Discrete(2))),
        (gym_space("Graph", node_space=UNIT, edge_space=None), spaces.Graph(spaces.Box(0, 1, (1,)), None)),
        (
            gym_space("Tuple", spaces=(COIN, gym_space("Dict", spaces={"a": UNIT}))),
            spaces.Tuple([spaces.Discrete(2), spaces.Dict(a=spaces.Box(0, 1, (1,)))]),
        ),
    ],
    ids=lambda space: type(space).__name__,
)
def test_gyms_spaces_become_gymnasiums(old: Any, new: Any) -> None:
    assert to_gymnasium_space(old) == new


def test_dict_spaces_keep_their_order() -> None:
    old = gym_space("Dict", spaces=OrderedDict(b=gym_space("Discrete", n=2), a=gym_space("Discrete", n=3)))
    assert list(to_gymnasium_space(old).spaces) == ["b", "a"]  # type: ignore[attr-defined]


def test_a_subclass_of_a_gym_space_is_known_by_its_base() -> None:
    base = type(gym_space("Discrete", n=2))
    assert to_gymnasium_space(type("Buttons", (base,), {})()) == spaces.Discrete(2)
