"""WrapperRayVecEnv: RayEnvWrapper's interface, with what its users miss in it."""

from __future__ import annotations

import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from support.gates import Gate
from support.python_probes import wait_at_gate
from support.ray_session import ray_session

from envfleet import ConfigError
from envfleet.compat import ray_env_wrapper
from envfleet.compat.ray_env_wrapper import CustomRayRemoteVectorEnv, WrapperRayVecEnv


class OldCounter:
    """An env in the style of the old gym: 4-tuples, seed()."""

    observation_space = spaces.Box(0, 1_000_000, (2,), np.float32)
    action_space = spaces.Discrete(2)
    metadata = {"render.modes": ["rgb_array"]}  # noqa: RUF012 (the old form)
    bonus = 0

    def seed(self, seed=None):
        self.first_seed = seed
        self.rng = np.random.default_rng(seed)
        return [seed]

    def reset(self):
        self.start, self.count = self.rng.integers(0, 1_000_000), 0
        return np.array([self.start, self.count], dtype=np.float32)

    def step(self, action):
        self.count += 1
        obs = np.array([self.start, self.count], dtype=np.float32)
        return obs, 1.5 + self.bonus, self.count == 3, {"twice": 2 * self.count}

    def render(self, mode="human"):
        return np.full((2, 2, 3), self.count, dtype=np.uint8)

    def close(self):
        pass

    def double(self, number, plus=0):
        return 2 * number + plus


def make_old(seed: int) -> OldCounter:
    env = OldCounter()
    env.seed(seed)
    return env


def make_new(seed: int) -> gymnasium.Env:
    env = gymnasium.make("CartPole-v1")
    env.reset(seed=seed)
    return env


def make_unseeded(seed: int) -> gymnasium.Env:
    return gymnasium.make("CartPole-v1")


@pytest.fixture
def old():
    ray_session()
    vec = WrapperRayVecEnv(make_old, 2, 2)
    yield vec
    vec.close()
    vec.close()


def test_rows_seeds_ends_and_a_second_reset(old):
    assert old.num_envs == 4
    assert old.action_space == spaces.Discrete(2)
    first = old.reset()
    assert first.shape == (4, 2)
    expected = [np.random.default_rng(row).integers(0, 1_000_000) for row in range(4)]
    np.testing.assert_array_equal(first[:, 0], np.float32(expected))
    for count in (1, 2):
        obs, rewards, dones, infos = old.step([0, 1, 0, 1])
        assert obs[:, 1].tolist() == [count] * 4
        assert (rewards.dtype, rewards.tolist()) == (np.float32, [1.5] * 4)
        assert (dones.dtype, dones.any()) == (np.bool_, False)
        assert [info["twice"] for info in infos] == [2 * count] * 4
    obs, _, dones, infos = old.step(np.zeros(4, dtype=np.int64))
    assert dones.all()
    assert obs[:, 1].tolist() == [0] * 4  # reset in the same step
    assert [info["terminal_observation"].tolist()[1] for info in infos] == [3] * 4
    assert len(set(old.reset()[:, 0])) == 4
    old.seed(0)
    np.testing.assert_array_equal(old.reset(), first)


def test_the_methods_of_a_vec_env(old):
    old.reset()
    assert old.get_attr("count") == [0] * 4
    old.set_attr("bonus", 2.0, indices=[1, -1])
    assert old.get_attr("bonus", indices=1) == [2.0]
    old.step_async([0] * 4)
    assert old.step_wait()[1].tolist() == [1.5, 3.5, 1.5, 3.5]
    assert old.env_method("double", 4, plus=1, indices=range(2)) == [9, 9]
    assert old.env_is_wrapped(gymnasium.wrappers.TimeLimit) == [False] * 4
    assert old.seed(7) == [7, 8, 9, 10]
    assert old.has_attr("bonus")
    assert not old.has_attr("malus")
    assert [frame.tolist()[0][0] for frame in old.get_images()] == [[1, 1, 1]] * 4
    assert old.render("rgb_array")[0].shape == (2, 2, 3)


def test_gymnasium_envs_and_the_original_import():
    ray_session()
    before = sys.modules.get("RayEnvWrapper")
    try:
        ray_env_wrapper.install(old_gym=False)
        from RayEnvWrapper import CustomRayRemoteVectorEnv as Remote
        from RayEnvWrapper import WrapperRayVecEnv as Original
        from RayEnvWrapper.CustomRayRemoteEnv import CustomRayRemoteVectorEnv as Same

        assert Remote is Same is CustomRayRemoteVectorEnv

        with Original(make_new, 1, 2) as vec:
            first = vec.reset()
            twins = [gymnasium.make("CartPole-v1") for _ in range(2)]
            for seed, twin in enumerate(twins):
                twin.reset(seed=seed)
            np.testing.assert_array_equal(first, [twin.reset()[0] for twin in twins])
            assert vec.env_is_wrapped(gymnasium.wrappers.TimeLimit) == [True] * 2
            truncated = False
            for _ in range(20):
                *_, infos = vec.step([1, 1])
                truncated |= any("TimeLimit.truncated" in info for info in infos)
            assert truncated
    finally:
        ray_env_wrapper.uninstall()
    assert sys.modules.get("RayEnvWrapper") is before


@pytest.mark.parametrize("is_seeded", [True, False])
def test_only_an_env_that_make_and_seed_seeds_is_seeded(is_seeded):
    ray_session()
    # The actors of each pool are new processes.
    starts = []
    for _ in range(2):
        with WrapperRayVecEnv(make_new if is_seeded else make_unseeded, 1, 2) as vec:
            starts += [*vec.reset().tolist(), *vec.reset().tolist()]
    assert (starts[:4] == starts[4:]) == is_seeded
    assert len({tuple(start) for start in starts}) == (4 if is_seeded else 8)


def test_seed_seeds_envs_that_make_and_seed_did_not():
    ray_session()
    with WrapperRayVecEnv(make_unseeded, 1, 2) as vec:
        vec.seed(5)
        expected = [gymnasium.make("CartPole-v1").reset(seed=seed)[0] for seed in (5, 6)]
        np.testing.assert_array_equal(vec.reset(), expected)


def test_wrong_arguments():
    with pytest.raises(ConfigError, match="make_and_seed"):
        WrapperRayVecEnv("CartPole-v1", 1, 1)
    with pytest.raises(ConfigError, match="number_of_workers"):
        WrapperRayVecEnv(make_old, 0, 1)


def test_the_originals_keywords_and_what_it_is_made_of():
    ray_session()
    with pytest.raises(ConfigError, match="got both"):
        WrapperRayVecEnv(make_env=make_old, make_and_seed=make_old, num_workers=1, per_worker_env=1)
    with WrapperRayVecEnv(make_env=make_old, num_workers=1, per_worker_env=2) as vec:
        first = vec.reset()
        assert vec.num_envs == 2
    remote = CustomRayRemoteVectorEnv(make_old, 1, 2, False)
    obs, rewards, dones, infos = remote.poll()
    np.testing.assert_array_equal(obs, first)
    assert (rewards.tolist(), dones.tolist(), infos) == ([0, 0], [False, False], [{}, {}])
    for count in (1, 2):
        remote.send_actions([0, 1])
        obs, rewards, _, _ = remote.poll()
        assert (obs[:, 1].tolist(), rewards.tolist()) == ([count] * 2, [1.5] * 2)
    remote.try_reset(0)
    assert remote.poll()[0][:, 1].tolist() == [0, 0]
    remote.stop()
    with pytest.raises(ConfigError, match="make_pettingzoo"):
        CustomRayRemoteVectorEnv(make_old, 1, 1, True)


def test_it_is_a_vec_env_to_stable_baselines3():
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
    ray_session()
    with WrapperRayVecEnv(make_new, 1, 2) as vec:
        assert isinstance(vec, vec_env.VecEnv)
        monitored = vec_env.VecMonitor(vec)
        monitored.reset()
        for _ in range(30):
            *_, infos = monitored.step(np.zeros(2, dtype=np.int64))
            if "episode" in infos[0]:
                break
        assert infos[0]["episode"]["l"] > 5


class Held(OldCounter):
    """Waits at a gate in its next step."""

    gate = None

    def hold(self, number):
        self.gate = number

    def step(self, action):
        if self.gate is not None:
            wait_at_gate(self.gate)
            self.gate = None
        return super().step(action)


def make_held(seed: int) -> Held:
    env = Held()
    env.seed(seed)
    return env


def test_after_ctrl_c_the_step_is_returned_or_dropped_by_a_reset():
    ray_session()
    envs = WrapperRayVecEnv(make_held, 2, 1)
    envs.reset()
    for goes_on in (True, False):
        with Gate() as gate:
            envs.env_method("hold", gate.number, indices=[0])
            thread = gate.interrupt_when_reached()
            with pytest.raises(KeyboardInterrupt):
                envs.step([0, 0])
            thread.join()
            gate.open()
            if goes_on:
                assert envs.step_wait()[0][:, 1].tolist() == [1, 1]
    assert envs.reset()[:, 1].tolist() == [0, 0]
    assert envs.step([0, 0])[0][:, 1].tolist() == [1, 1]
    envs.close()
