"""adapt(): envs of older gyms, in Gymnasium's API."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from old_envs import BOX, DuckEnv, Gym24Env, Gym26Env, OldEnv, OldWrapper, gym_space

from envfleet.envs.adapters import AdaptedEnv, adapt


def test_gymnasium_envs_come_back_as_they_are() -> None:
    env = gymnasium.make("CartPole-v1")
    assert adapt(env) is env
    assert adapt(env.unwrapped) is env.unwrapped


def test_a_gymnasium_env_with_a_wrong_step_comes_back_as_it_is() -> None:
    class Wrong(gymnasium.Env[Any, Any]):
        def reset(self) -> Any:  # type: ignore[override]
            return 0

    env = Wrong()
    assert adapt(env) is env


def test_an_env_that_quacks_like_gymnasium_comes_back_as_it_is() -> None:
    env = DuckEnv()
    assert adapt(env) is env


def test_old_env_steps_in_gymnasiums_api() -> None:
    env = adapt(OldEnv())
    assert isinstance(env, gymnasium.Env)
    assert env.observation_space == BOX
    assert env.action_space == spaces.Discrete(3)
    obs, info = env.reset(seed=3)
    assert env.observation_space.contains(obs)
    assert info == {}
    obs, reward, terminated, truncated, info = env.step(0)
    assert (reward, terminated, truncated, info) == (1.5, False, False, {})


@pytest.mark.parametrize(("action", "ends"), [(0, (False, True)), (2, (True, False))])
def test_old_end_by_the_clock_is_a_truncation(action: int, ends: tuple[bool, bool]) -> None:
    env = adapt(OldEnv(limit=1))
    env.reset()
    assert env.step(action)[2:4] == ends


def test_old_env_is_seeded_by_its_seed_method() -> None:
    env, other = adapt(OldEnv()), adapt(OldEnv())
    first = env.reset(seed=11)[0]
    assert (other.reset(seed=11)[0] == first).all()
    assert (other.reset()[0] != first).all()
    assert (other.reset(seed=12)[0] != first).all()


def test_seeds_above_32_bits_reach_an_old_env() -> None:
    env = adapt(OldEnv())
    assert (env.reset(seed=2**100 + 5)[0] == env.reset(seed=5)[0]).all()


@pytest.mark.parametrize("legacy", [True, False])
def test_without_a_seed_method_the_envs_generator_is_replaced_in_kind(legacy: bool) -> None:
    class Unseedable(OldEnv):
        seed = None  # type: ignore[assignment]

        def _obs(self) -> Any:
            return (self.np_random.rand(2) if legacy else self.np_random.random(2)).astype(np.float32)

    env = Unseedable()
    env.np_random = np.random.RandomState(0) if legacy else np.random.default_rng(0)  # type: ignore[assignment]
    adapted = adapt(env)
    assert (adapted.reset(seed=4)[0] == adapted.reset(seed=4)[0]).all()
    assert type(env.np_random) is (np.random.RandomState if legacy else np.random.Generator)


def test_an_env_with_no_way_to_seed_takes_any_seed() -> None:
    env = OldEnv()
    del env.np_random
    env.seed = None  # type: ignore[assignment]
    env._obs = lambda: np.zeros(2, np.float32)  # type: ignore[method-assign]
    assert adapt(env).reset(seed=1)[0].shape == (2,)
    assert not hasattr(env, "np_random")


def test_gym_26_env_keeps_its_results() -> None:
    env = adapt(Gym26Env())
    assert env.observation_space == spaces.Box(0, 255, (4,), np.uint8)
    assert env.reset(seed=5, options={"a": 1})[1] == {"seed": 5, "options": {"a": 1}}
    assert env.step(1)[1:] == (1.0, False, True, {"action": 1})


def test_gym_24_env_is_asked_for_its_info() -> None:
    env = adapt(Gym24Env())
    assert env.reset(seed=5)[1] == {"seed": 5}
    assert env.step(1)[1:] == (1.0, True, False, {})


@pytest.mark.parametrize(("inner", "info"), [(OldEnv, {}), (Gym26Env, {"seed": 7, "options": None})])
def test_a_wrapper_that_names_no_keywords_is_looked_through(inner: Any, info: dict[str, Any]) -> None:
    env = adapt(OldWrapper(OldWrapper(inner())))
    assert env.reset(seed=7)[1] == info
    assert len(env.step(0)) == 5


def test_reset_with_any_keywords_is_decided_by_what_comes_back() -> None:
    class New(Gym26Env):
        def reset(self, **kwargs: Any) -> Any:  # type: ignore[override]
            return super().reset(**kwargs)

    class Old(Gym24Env):
        def reset(self, **kwargs: Any) -> Any:
            return np.zeros(4, np.uint8)

    class Refusing(Old):
        def reset(self, **kwargs: Any) -> Any:
            return self._reset(**kwargs)

        def _reset(self) -> Any:
            return np.zeros(4, np.uint8)

    assert adapt(New()).reset(seed=1)[1]["seed"] == 1
    for cls in (Old, Refusing):
        env = adapt(cls())
        for seed in (1, None):
            obs, info = env.reset(seed=seed)
            assert obs.shape == (4,)
            assert info == {}


def test_reset_that_raises_for_its_own_reasons_is_not_called_twice() -> None:
    class Raising(Gym26Env):
        calls = 0

        def reset(self, **kwargs: Any) -> Any:
            self.calls += 1
            raise TypeError("no map loaded")

    env = adapt(Raising())
    with pytest.raises(TypeError, match="no map loaded"):
        env.reset()
    assert env.calls == 1


def test_a_pair_that_is_itself_the_observation_stays_whole() -> None:
    class Pair(OldEnv):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = gym_space(
                "Tuple",
                spaces=(gym_space("Discrete", n=3), gym_space("Dict", spaces={"a": gym_space("Discrete", n=2)})),
            )

        def _obs(self) -> Any:
            return 1, {"a": 1}

    assert adapt(Pair()).reset() == ((1, {"a": 1}), {})


def test_wrong_tuples_are_passed_on() -> None:
    env = OldEnv()
    env.step = lambda action: (1, 2, 3)  # type: ignore[method-assign]
    adapted = adapt(env)
    adapted.reset()
    assert adapted.step(0) == (1, 2, 3)


def test_attributes_pass_through() -> None:
    inner = OldEnv()
    env = adapt(OldWrapper(inner))
    env.reset()
    assert env.limit == 3
    assert env.get_wrapper_attr("limit") == 3
    assert env.has_wrapper_attr("count")
    assert not env.has_wrapper_attr("nothing")
    assert env.set_wrapper_attr("limit", 9)
    assert inner.limit == 9
    assert not env.set_wrapper_attr("nothing", 1, force=False)
    assert env.get_wrapper_attr("action_space") is env.action_space
    assert env.np_random is inner.np_random
    assert env.get_wrapper_attr("metadata")["render_modes"] == ["human", "rgb_array"]
    with pytest.raises(AttributeError):
        env.get_wrapper_attr("nothing")
    env.close()
    assert inner.closed


def test_unwrapped_is_the_innermost_env() -> None:
    inner = OldEnv()
    inner.unwrapped = inner  # type: ignore[attr-defined]
    assert adapt(OldWrapper(inner)).unwrapped is inner


def test_old_render_is_asked_for_a_picture() -> None:
    assert adapt(OldEnv()).render() == "drawn as rgb_array"
    assert adapt(OldEnv(), render_mode="human").render() == "drawn as human"
    assert adapt(OldEnv()).metadata["render_fps"] == 30


def test_defaults_where_the_env_has_nothing() -> None:
    env = adapt(Gym26Env())
    assert env.metadata["render_modes"] == []
    assert env.render_mode is None
    assert env.spec is None
    env.close()


def test_gyms_spec_is_not_handed_out_as_gymnasiums() -> None:
    inner = OldEnv()
    inner.spec = SimpleNamespace(id="Old-v0")  # type: ignore[attr-defined]
    assert adapt(inner).spec is None


def test_gymnasiums_wrappers_take_an_adapted_env() -> None:
    env = gymnasium.wrappers.TimeLimit(adapt(OldEnv(limit=100)), 2)
    env.reset(seed=0)
    assert env.step(0)[3] is False
    assert env.step(0)[3] is True
    assert env.get_wrapper_attr("limit") == 100


def test_an_adapted_env_pickles() -> None:
    env = pickle.loads(pickle.dumps(AdaptedEnv(DuckEnv())))
    assert env.reset()[1] == {}
