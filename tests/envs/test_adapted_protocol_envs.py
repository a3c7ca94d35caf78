"""adapt(): classes of envpool_wrapper's protocol, in Gymnasium's API."""

from __future__ import annotations

from typing import Any

import gymnasium
from old_envs import OldEnv, ProtocolEnv

from envfleet.envs.adapters import EnvPoolProtocolEnv, adapt, takes_env_id


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
