"""EnvPool's module tree: the classes of its families, the registry, and the helpers of envpool.python."""

from __future__ import annotations

import importlib
import importlib.util
import os

import numpy as np
import pytest
from gymnasium import spaces

import envfleet
from envfleet.compat.envpool import families

pytestmark = pytest.mark.usefixtures("envpool_alias")


def installed(package):
    return importlib.util.find_spec(package) is not None


CLASSES = {
    "classic_control": ["CartPole", "Pendulum", "MountainCar", "MountainCarContinuous", "Acrobot"],
    "toy_text": ["Catch", "FrozenLake", "Taxi", "CliffWalking", "Blackjack"],
    "atari": ["Atari"],
    "box2d": ["CarRacing", "BipedalWalker", "LunarLanderContinuous", "LunarLanderDiscrete"],
    "minigrid": ["MiniGrid"],
    "mujoco.dmc": [
        *("DmcAcrobot", "DmcBallInCup", "DmcCheetah", "DmcFinger", "DmcHopper", "DmcHumanoid"),
        *("DmcManipulator", "DmcPendulum", "DmcPointMass", "DmcReacher", "DmcWalker"),
    ],
    "mujoco.gym": [
        *("GymAnt", "GymHalfCheetah", "GymHopper", "GymHumanoid", "GymHumanoidStandup", "GymPusher"),
        *("GymInvertedDoublePendulum", "GymInvertedPendulum", "GymReacher", "GymSwimmer", "GymWalker2d"),
    ],
    "procgen": ["Procgen"],
    "vizdoom": ["Vizdoom"],
}


@pytest.mark.parametrize("module", CLASSES)
def test_every_family_has_its_classes(module):
    pytest.importorskip("dm_env")
    names = {f"{env}{kind}" for env in CLASSES[module] for kind in ("EnvSpec", *kinds())}
    family = importlib.import_module(f"envpool.{module}")
    assert names <= set(dir(family))
    for name in names:
        cls = getattr(family, name)
        assert (cls.__name__, cls.__module__) == (name, f"envpool.{module}")
        assert cls is getattr(family, name)
    namespace = {}
    exec(f"from envpool.{module} import *", namespace)
    assert names <= set(namespace)
    importlib.import_module(f"envpool.{module}.registration")
    with pytest.raises(AttributeError, match=f"envpool.{module}"):
        _ = family.NoEnvSpec


def kinds():
    return ("DMEnvPool", "GymEnvPool", "GymnasiumEnvPool")


def test_a_pool_of_a_familys_classes():
    import envpool
    from envpool.classic_control import CartPoleEnvSpec, CartPoleGymEnvPool, CartPoleGymnasiumEnvPool

    conf = CartPoleEnvSpec.gen_config(num_envs=3, seed=4, max_episode_steps=20)
    assert (conf.num_envs, conf.batch_size, conf.max_episode_steps) == (3, 0, 20)
    spec = CartPoleEnvSpec(conf)
    assert (spec.config.num_envs, spec.config.batch_size, spec.config.max_episode_steps) == (3, 3, 20)
    assert isinstance(spec.observation_space, spaces.Box)
    twin = envfleet.make("CartPole-v1", num_envs=3, seed=4)
    want = twin.reset()[0]
    np.testing.assert_array_equal(CartPoleGymEnvPool(spec).reset(), want)
    np.testing.assert_array_equal(CartPoleGymnasiumEnvPool(spec).reset()[0], want)
    # A spec of make_spec(), and the values of a config, serve as well.
    np.testing.assert_array_equal(
        CartPoleGymEnvPool(envpool.make_spec("CartPole-v1", num_envs=3, seed=4)).reset(), want
    )
    assert CartPoleEnvSpec(tuple(conf)).config == spec.config
    assert isinstance(envpool.make("CartPole-v0"), CartPoleGymEnvPool)
    assert repr(spec).startswith("CartPoleEnvSpec(")
    assert CartPoleEnvSpec(CartPoleEnvSpec.gen_config()).config.max_episode_steps == 500
    with pytest.raises(ValueError, match="batch_size expected"):
        CartPoleEnvSpec(CartPoleEnvSpec.gen_config(num_envs=4, batch_size=5))
    with pytest.raises(envfleet.ConfigError, match=r"CartPoleEnvSpec\.gen_config"):
        CartPoleEnvSpec({"num_envs": 4})
    with pytest.raises(TypeError, match="nonsense"):
        CartPoleEnvSpec.gen_config(nonsense=1)


@pytest.mark.skipif(not installed("ale_py"), reason="needs ale_py")
def test_a_config_selects_one_of_several_games():
    from envpool.atari import AtariEnvSpec, AtariGymnasiumEnvPool

    spec = AtariEnvSpec(AtariEnvSpec.gen_config(task="space_invaders", stack_num=2, gray_scale=False))
    assert spec.id == "SpaceInvaders-v5"
    assert spec.observation_space.shape == (6, 84, 84)
    assert AtariEnvSpec(AtariEnvSpec.gen_config()).id == "Pong-v5"
    pool = AtariGymnasiumEnvPool(spec)
    assert pool.reset()[1]["lives"].tolist() == [3]
    pool.close()
    with pytest.raises(envfleet.ConfigError, match="task expected a task of Atari, got 'chess'"):
        AtariEnvSpec(AtariEnvSpec.gen_config(task="chess"))


@pytest.mark.skipif(not installed("ale_py"), reason="needs ale_py")
def test_blackjack_is_the_card_game_of_its_family_and_lakes_have_sizes():
    from envpool.atari import AtariEnvSpec
    from envpool.toy_text import BlackjackEnvSpec, FrozenLakeEnvSpec, FrozenLakeGymnasiumEnvPool

    assert BlackjackEnvSpec(BlackjackEnvSpec.gen_config()).id == "Blackjack-v1"
    assert AtariEnvSpec(AtariEnvSpec.gen_config(task="blackjack")).id == "Blackjack-v5"
    for size in (4, 8):
        spec = FrozenLakeEnvSpec(FrozenLakeEnvSpec.gen_config(size=size))
        assert spec.observation_space.n == size * size
        assert FrozenLakeGymnasiumEnvPool(spec).reset()[0].shape == (1,)


@pytest.mark.skipif(not installed("dm_control"), reason="needs dm_control")
def test_a_config_selects_one_of_several_tasks():
    from envpool.mujoco.dmc import DmcWalkerEnvSpec

    assert DmcWalkerEnvSpec(DmcWalkerEnvSpec.gen_config(task_name="stand")).id == "WalkerStand-v1"


def test_the_registry():
    import envpool
    from envpool.registration import registry

    assert set(registry.specs) == set(registry.envpools) <= set(registry.list_all_envs())
    assert registry.specs["Pong-v5"][:2] == ("envpool.atari", "AtariEnvSpec")
    assert registry.envpools["CartPole-v1"]["dm"] == ("envpool.classic_control", "CartPoleDMEnvPool")
    for task_id in ("CartPole-v0", "FrozenLake8x8-v1", "Taxi-v4", "Catch-v0"):
        module, name, arguments = registry.specs[task_id]
        cls = getattr(importlib.import_module(module), name)
        assert cls(cls.gen_config(**arguments)).id == task_id
    assert type(registry.make("CartPole-v1", "gymnasium")) is type(envpool.make_gymnasium("CartPole-v1"))
    assert registry.make_spec("CartPole-v1").id == "CartPole-v1"
    assert os.path.exists(envpool.__file__)


def test_every_default_task_is_known():
    for module in families.MODULES:
        for name in {name.removesuffix("EnvSpec") for name in families.class_names(module) if name.endswith("EnvSpec")}:
            ids = families.task_ids(families.EnvClass(module, name))
            assert ids, name
            assert families._DEFAULT_TASKS.get(name, ids[0]) == ids[0]


def test_helpers_of_envpool_python():
    from envpool.python.api import py_env
    from envpool.python.data import gym_spec_transform, to_namedtuple, to_nested_dict
    from envpool.python.protocol import ArraySpec
    from envpool.python.utils import check_key_duplication

    assert to_nested_dict({"a.b": 1, "a.c": 2, "d": 3}) == {"a": {"b": 1, "c": 2}, "d": 3}
    assert to_namedtuple("Root", {"a": {"b": 1}, "d": 3}).a.b == 1
    check_key_duplication("X", "state", ["a", "b"])
    with pytest.raises(RuntimeError, match=r"distinct state keys, got \['a'\]"):
        check_key_duplication("X", "state", ["a", "b", "a"])
    with pytest.raises(envfleet.ConfigError, match=r"envfleet\.compile"):
        py_env(object, object)
    box = ArraySpec(np.float32, [-1, 2], (None, None), ([0.0, -1.0], [1.0, 3.0]))
    assert gym_spec_transform("obs", box, "obs").high.tolist() == [1.0, 3.0]
    assert gym_spec_transform("act", ArraySpec(np.int32, [-1], (0, 4)), "act") == spaces.Discrete(5)
