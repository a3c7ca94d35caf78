"""adapt(): envs of older APIs, in Gymnasium's. gym is not installed: its classes are stood in for."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from envfleet.envs.adapters import AdaptedEnv, EnvPoolProtocolEnv, adapt, takes_env_id, to_gymnasium_space
from envfleet.errors import ConfigError

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)


def gym_space(name: str, **attributes: Any) -> Any:
    """A space as the gym package has it: its class name and attributes, nothing of Gymnasium."""
    return type(name, (), {"__module__": f"gym.spaces.{name.lower()}"} | attributes)()


def gym_box(low: float, high: float, shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    return gym_space("Box", low=np.full(shape, low, dtype), high=np.full(shape, high, dtype), shape=shape, dtype=dtype)


class OldEnv:
    """gym 0.21: reset() -> obs, a 4-tuple from step(), seed(), render(mode)."""

    metadata: Any = {"render.modes": ["human", "rgb_array"], "video.frames_per_second": 30}  # noqa: RUF012 (as in gym)

    def __init__(self, limit: int = 3) -> None:
        self.observation_space = gym_box(-1, 1, (2,))
        self.action_space = gym_space("Discrete", n=3)
        self.limit = limit
        self.closed = False
        self.np_random = np.random.RandomState(0)

    def seed(self, seed: int | None = None) -> list[int | None]:
        self.np_random = np.random.RandomState(seed)
        return [seed]

    def _obs(self) -> Any:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def reset(self) -> Any:
        self.count = 0
        return self._obs()

    def step(self, action: int) -> Any:
        self.count += 1
        timed_out = self.count >= self.limit
        died = action == 2
        info = {"TimeLimit.truncated": not died} if timed_out else {}
        return self._obs(), 1.5, died or timed_out, info

    def render(self, mode: str = "human") -> Any:
        return f"drawn as {mode}"

    def close(self) -> None:
        self.closed = True


class OldWrapper:
    """gym.Wrapper: reset(**kwargs), everything else passed through."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, **kwargs: Any) -> Any:
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        return self.env.step(action)


class Gym26Env:
    """gym 0.26: Gymnasium's calls with gym's spaces."""

    def __init__(self) -> None:
        self.observation_space = gym_box(0, 255, (4,), np.uint8)
        self.action_space = gym_space("Discrete", n=2, start=0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(4, np.uint8), {"seed": seed, "options": options}

    def step(self, action: Any) -> Any:
        return np.ones(4, np.uint8), 1.0, False, True, {"action": action}


class Gym24Env(Gym26Env):
    """gym 0.22 to 0.25: the seed in reset(), an info on request, still a 4-tuple."""

    def reset(self, *, seed: int | None = None, return_info: bool = False, options: Any = None) -> Any:
        obs = np.zeros(4, np.uint8)
        return (obs, {"seed": seed}) if return_info else obs

    def step(self, action: Any) -> Any:
        return np.ones(4, np.uint8), 1.0, True, {}


class DuckEnv:
    """Gymnasium's API without its base class."""

    observation_space = BOX
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return BOX.low, {}

    def step(self, action: Any) -> Any:
        return BOX.low, 0.0, False, False, {}


class ProtocolEnv:
    """envpool_wrapper's five methods; calls are noted in order."""

    def __init__(self, envid: str, size: int = 2) -> None:
        self.envid = envid
        self.observation_space = spaces.Dict(x=spaces.Box(0, 9, (size,), np.int16))
        self.action_space = spaces.Discrete(3)
        self.calls: list[str] = []
        self.np_random = np.random.default_rng()

    def _step_envpool(self, act: Any) -> None:
        self.calls.append(f"step {act}")

    def _reset_envpool(self) -> None:
        self.calls.append("reset")
        self.start = self.np_random.integers(9)

    def _make_obs_envpool(self) -> Any:
        self.calls.append("obs")
        return {"x": np.full(2, self.start, np.int16)}

    def _done_envpool(self) -> bool:
        self.calls.append("done")
        return np.bool_(True)

    def _reward_envpool(self) -> float:
        self.calls.append("reward")
        return 2.0


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


def test_protocol_class_runs_in_its_own_order() -> None:
    assert takes_env_id(ProtocolEnv)
    env = adapt(ProtocolEnv("MyEnv"))
    assert isinstance(env, EnvPoolProtocolEnv)
    first, info = env.reset(seed=1)
    assert info == {}
    assert env.observation_space.contains(first)
    assert env.step(2)[1:] == (2.0, True, False, {})
    assert env.calls == ["reset", "obs", "done", "reward", "step 2", "obs", "done", "reward"]
    starts = [env.reset(seed=seed)[0]["x"][0] for seed in [*range(8), *range(8)]]
    assert starts[:8] == starts[8:]
    assert len(set(starts)) > 1


def test_protocol_class_on_gymnasiums_base_is_seeded_through_it() -> None:
    class Both(ProtocolEnv, gymnasium.Env[Any, Any]):
        def __init__(self, envid: str) -> None:
            super().__init__(envid)
            self.np_random = None

        def reset(self, *args: Any) -> Any:  # as in envpool_wrapper's own example
            raise AssertionError

    env = adapt(Both("MyEnv"))
    assert isinstance(env, EnvPoolProtocolEnv)
    assert (env.reset(seed=2**100)[0]["x"] == env.reset(seed=2**100)[0]["x"]).all()
    assert env.np_random_seed == 2**100


def test_protocol_class_with_gymnasiums_methods_in_full_is_a_gymnasium_env() -> None:
    class Full(ProtocolEnv, gymnasium.Env[Any, Any]):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return {}, {}

        def step(self, action: Any) -> Any:
            return {}, 0.0, False, False, {}

    env = Full("MyEnv")
    assert adapt(env) is env


def test_only_protocol_classes_that_want_an_id_get_one() -> None:
    class NoId(ProtocolEnv):
        def __init__(self, size: int = 1) -> None:
            super().__init__("x", size)

    class OtherName(ProtocolEnv):
        def __init__(self, name: str) -> None:
            super().__init__(name)

    assert not takes_env_id(NoId)
    assert takes_env_id(OtherName)
    assert not takes_env_id(OldEnv)
    assert not takes_env_id(lambda envid: ProtocolEnv(envid))
    assert not takes_env_id("CartPole-v1")


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
