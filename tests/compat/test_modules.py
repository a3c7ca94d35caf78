"""Names of other packages: taken only when asked, never from somebody else, given back."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import cloudpickle
import gymnasium
import numpy as np
import pytest

from envfleet import CallOrderError
from envfleet.compat import env_wrappers, envpool, envpool_protocol, gym_stand_in

ROOTS = {
    "envpool": envpool,
    "envpool_protocol": envpool_protocol,
    "envpool_wrap": envpool_protocol,
    "env_wrappers": env_wrappers,
}


def test_an_import_of_envfleet_takes_no_name(run_python):
    code = (
        "import sys, envfleet, envfleet.compat.envpool, envfleet.compat.envpool_protocol, envfleet.compat.env_wrappers"
    )
    found = run_python("-c", f"{code}; print([name for name in {[*ROOTS, 'gym']!r} if name in sys.modules])").stdout
    assert found.strip() == "[]"


@pytest.mark.parametrize("name", ROOTS)
def test_install_is_idempotent_and_undone(name):
    alias = ROOTS[name]
    alias.install()
    first = sys.modules[name]
    alias.install()
    assert sys.modules[name] is first
    assert importlib.util.find_spec(name) is not None
    assert alias.uninstall()
    assert not alias.uninstall()
    assert not [known for known in sys.modules if known == name or known.startswith(f"{name}.")]


@pytest.mark.parametrize("name", ROOTS)
def test_install_leaves_the_real_one_alone(name, monkeypatch):
    real = ModuleType(name)
    real.__file__ = f"/somewhere/{name}/__init__.py"
    monkeypatch.setitem(sys.modules, name, real)
    with pytest.raises(CallOrderError, match=f"{name!r} is not imported yet, got /somewhere"):
        ROOTS[name].install()
    assert sys.modules[name] is real
    assert not ROOTS[name].uninstall()  # it has put nothing in place
    assert sys.modules[name] is real


def test_the_light_gym_stands_back_for_the_real_one(monkeypatch):
    real = ModuleType("gym")
    monkeypatch.setitem(sys.modules, "gym", real)
    envpool.install()
    envpool.uninstall()
    assert sys.modules["gym"] is real


def test_the_light_gym_stays_while_somebody_needs_it():
    if gym_stand_in.is_available("gym"):
        pytest.skip("gym is installed")
    envpool.install()
    env_wrappers.install()
    envpool.uninstall()
    assert "gym" in sys.modules
    env_wrappers.uninstall()
    assert "gym" not in sys.modules


def test_old_gym_can_be_left_out():
    if gym_stand_in.is_available("gym"):
        pytest.skip("gym is installed")
    envpool.install(old_gym=False)
    assert "gym" not in sys.modules
    envpool.uninstall()


def test_modules_travel_to_workers(run_python):
    envpool.install()
    data = cloudpickle.dumps([sys.modules["envpool"], sys.modules["envpool.python.envpool"]])
    envpool.uninstall()
    code = f"import pickle; a, b = pickle.loads({data!r}); print(a.__name__, b.EnvPoolMixin.__name__)"
    assert run_python("-c", code).stdout.split() == ["envpool", "EnvPoolMixin"]


def test_the_light_gym(envpool_alias):
    gym = pytest.importorskip("gym")
    if not hasattr(gym, "_envfleet_installer"):
        pytest.skip("the real gym is installed")
    env = gym.make("CartPole-v1")
    env.seed(3)
    np.testing.assert_array_equal(env.reset(), gymnasium.make("CartPole-v1").reset(seed=3)[0])
    assert isinstance(env, gym.Env)
    assert isinstance(env.action_space, gym.spaces.Discrete)
    assert len(env.step(0)) == 4

    class Doubled(gym.RewardWrapper):
        def reward(self, reward):
            return 2 * reward

    wrapped = Doubled(env)
    wrapped.reset()
    assert wrapped.step(0)[1] == 2.0
    assert wrapped.spec.id == "CartPole-v1"
    assert wrapped.unwrapped is env.unwrapped
    with pytest.raises(AttributeError, match="stand-in and has no 'Goal'"):
        _ = gym.Goal
