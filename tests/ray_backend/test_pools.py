"""What else a pool on a cluster can do: inner backends, native envs, values that travel, apis on top."""

from __future__ import annotations

import pickle
import traceback

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from ray_probes import UnevenEnv
from support import failing_env
from support.faulty_env import MisbehavingEnv, Misbehavior
from support.python_probes import FaultyEnv, SleepyEnv
from support.ray_session import ray_session

import envfleet
from envfleet import ActionError, CompileError, EnvError, RayConfig, StateError, WorkerDied

pytest.importorskip("ray")


def test_native_envs_run_natively_and_as_without_ray(make):
    pool = make("CartPole-v1", num_workers=2, num_envs=6, seed=3, autoreset_mode="same_step")
    assert pool.spec.backend == "ray"
    with envfleet.make_pool("CartPole-v1", num_envs=6, seed=3, autoreset_mode="same_step") as twin:
        rng = np.random.default_rng(0)
        np.testing.assert_array_equal(pool.reset().obs, twin.reset().obs)
        for _ in range(100):
            actions = rng.integers(0, 2, 6)
            batch, expected = pool.step(actions), twin.step(actions)
            for name in ("obs", "reward", "terminated", "truncated", "elapsed_step", "env_id"):
                np.testing.assert_array_equal(getattr(batch, name), getattr(expected, name))
            ended = batch.terminated | batch.truncated
            np.testing.assert_array_equal(batch.final.obs[ended], expected.final.obs[ended])
        np.testing.assert_array_equal(pool.observe(), twin.observe())
        state = pool.get_state()
        first = pool.step(actions).obs
        pool.set_state(state)
        np.testing.assert_array_equal(pool.step(actions).obs, first)
        mine, other = pool.stats(), twin.stats()
        assert (mine.num_episodes, mine.return_mean) == (other.num_episodes, other.return_mean)
        assert len(mine.workers) == 2
    assert pool.get_attr("gravity", env_ids=[5]) == pytest.approx((9.8,))


def test_a_plug_in_travels(make, tmp_path):
    """tests/plugins/probe.cc was compiled by this process alone; infos and parameters of each env with it."""
    cache = tmp_path / "cache"
    options = {
        "num_envs": 3,
        "scale": [1.0, 2.0, 3.0],
        "ray": RayConfig(inner_backend="native", runtime_env={"env_vars": {"ENVFLEET_CACHE": str(cache)}}),
    }
    pool = make("Sink-v0", num_workers=2, **options)
    pool.reset(seed=0)
    assert pool.step([[1, 0]] * 3).reward.tolist() == [15.75, 25.75, 35.75]
    assert pool.step([[1, 0]] * 3).info["draw"].shape == (3,)
    assert len(list(cache.glob("*.so"))) == 1
    pool.close()
    cache.chmod(0o777)
    with pytest.raises(CompileError, match=r"cache folder on the Ray worker .* pass runtime_env=.*ENVFLEET_CACHE"):
        make("Sink-v0", num_workers=1, **options)


@pytest.mark.parametrize("inner", ["processes", pytest.param("threads", marks=pytest.mark.soak)])
def test_inner_backends(make, inner):
    """An inner worker that dies takes its own envs with it, not the actor."""
    pool = make(MisbehavingEnv, num_workers=1, num_envs=4, ray=RayConfig(inner_backend=inner, inner_num_workers=2))
    first = pool.reset(seed=1)
    assert first.obs[:, 0].tolist() == [np.random.default_rng(1 + i).integers(0, 1_000_000) for i in range(4)]
    if inner == "processes":
        actor = pool.executor.worker_pids
        assert len({*first.info["pid"], *actor}) == 3
        with pytest.raises(WorkerDied) as caught:
            pool.step([Misbehavior.STEP, Misbehavior.STEP, Misbehavior.SIGKILL, Misbehavior.STEP])
        assert [fault.env_id for fault in caught.value.faults] == [2, 3]
        pool.reset([2, 3])
        assert pool.executor.worker_pids == actor
    assert pool.step([Misbehavior.STEP] * 4).obs[2:, 1].tolist() == [1, 1]


def test_values_that_cannot_travel_are_the_fault_of_their_env(make):
    pool = make(UnevenEnv, num_workers=1, num_envs=3)
    pool.reset(seed=0)
    with pytest.raises(EnvError, match=r"env 1 raised in step\(\).*can be pickled") as caught:
        pool.step([FaultyEnv.STEP, FaultyEnv.THROW, FaultyEnv.STEP])
    assert caught.value.batch.obs[:, 1].tolist() == [1, 0, 1]
    pool.reset([1])
    with pytest.raises(EnvError, match=r"env 2 raised in step\(\).*cannot be read here.*not a value") as caught:
        pool.step([FaultyEnv.STEP, FaultyEnv.STEP, FaultyEnv.THROW_INT])
    assert len(caught.value.faults) == 1
    pool.reset([2])
    assert pool.step([FaultyEnv.STEP] * 3).obs[:, 1].tolist() == [3, 2, 1]


def test_the_exception_and_traceback_of_an_env_travel(make):
    pool = make(failing_env.failing_env, num_workers=2, num_envs=2)
    pool.reset()
    env = failing_env.failing_env()
    env.reset()
    for call, of_env in (
        (lambda: pool.step([failing_env.STEP, failing_env.FAIL]), lambda: env.step(failing_env.FAIL)),
        (lambda: pool.reset(options={"fail": True}), lambda: env.reset(options={"fail": True})),
        (lambda: pool.get_attr("broken"), lambda: env.get_wrapper_attr("broken")),
        (lambda: pool.call("look_up", "call"), lambda: env.unwrapped.look_up("call")),
    ):
        expected = failing_env.printed_by(of_env)
        with pytest.raises(EnvError) as caught:
            call()
        pool.reset()
        error = caught.value
        assert type(error.__cause__) is KeyError
        for own in (error, pickle.loads(pickle.dumps(error))):
            text = "".join(traceback.format_exception(own))
            assert text.startswith(expected)
            assert text.count("raise KeyError(name)") == 1
            assert own.env_traceback == expected
    with pytest.raises(EnvError) as caught:
        make(failing_env.failing_env, num_workers=2, num_envs=2, env_kwargs={"fails_at_start": True})
    text = "".join(traceback.format_exception(caught.value))
    assert text.startswith(failing_env.printed_by(lambda: failing_env.failing_env(fails_at_start=True)))


@pytest.mark.parametrize("name", ["stop", "stop_in_pdb"])
def test_a_breakpoint_says_where_to_debug(make, name):
    pool = make(failing_env.failing_env, num_workers=1, num_envs=1)
    pool.reset()
    with pytest.raises(EnvError, match=r"got an actor on Ray.*backend='serial'"):
        pool.call(name)
    pool.step([failing_env.STEP])


def test_calls_of_an_env_that_raise(make):
    pool = make(MisbehavingEnv, num_workers=2, num_envs=2)
    pool.reset()
    assert pool.call("greet", "Ada", punctuation="?", env_ids=[0]) == ("hello Ada?",)
    with pytest.raises(EnvError, match=r"env 0.*trouble in greet"):
        pool.call("greet", "nobody", env_ids=[0])
    with pytest.raises(AttributeError, match="antenna"):
        pool.get_attr("antenna")
    with pytest.raises(StateError, match="env 0 of MisbehavingEnv cannot be saved"):
        pool.get_state()  # it holds an event, which no pickle takes


def test_what_the_main_module_defines_travels_by_value(make):
    """Classes, closures, wrappers and spaces of a notebook; a factory for each env."""

    class Here(gymnasium.Env):
        observation_space = spaces.Box(0, 100, (1,), np.float32)
        action_space = spaces.Discrete(2)

        def __init__(self, size):
            self.size = size

        def reset(self, *, seed=None, options=None):
            return np.array([self.size], dtype=np.float32), {"options": str(options)}

        def step(self, action):
            return np.array([self.size], dtype=np.float32), 1.0, False, False, {"kind": Kind(self.size)}

    class Kind:
        def __init__(self, size):
            self.size = size

    class Twice(gymnasium.RewardWrapper):
        def reward(self, reward):
            return 2 * reward

    for local in (Here, Kind, Twice):
        local.__module__ = "__main__"
    pool = make([lambda size=size: Here(size) for size in (3, 5, 7)], num_workers=2, wrappers=[Twice])
    assert pool.reset(options={"kind": 1}).obs[:, 0].tolist() == [3, 5, 7]
    batch = pool.step([0, 0, 0])
    assert batch.reward.tolist() == [2.0] * 3
    assert [kind.size for kind in batch.info["kind"]] == [3, 5, 7]
    pool.set_attr("size", [30, 50], env_ids=[0, 1])
    assert pool.step([0, 0, 0]).obs[:, 0].tolist() == [30, 50, 7]


def test_unchecked_actions_reach_the_env_as_they_are(make):
    pool = make(FaultyEnv, num_workers=1, num_envs=2, check_actions=False)
    pool.reset(seed=0)
    batch = pool.step(np.array([99, -1]))
    assert batch.info["last_action"].tolist() == [99, -1]


def test_unchecked_actions_have_the_structure_of_the_space(make):
    class Named(FaultyEnv):
        action_space = spaces.Dict({"kind": FaultyEnv.action_space})

        def step(self, action):
            return super().step(action["kind"])

    pool = make(Named, num_workers=1, num_envs=2, check_actions=False)
    pool.reset(seed=0)
    with pytest.raises(ActionError, match="expected actions as a dict"):
        pool.step(np.array([0, 0]))
    assert pool.step({"kind": np.array([0, 4])}).info["last_action"].tolist() == [0, 4]


def test_sb3_goes_on_after_ctrl_c(make, gate):
    pytest.importorskip("stable_baselines3")
    from support.interrupted_learning import GATED_STEP, N_STEPS, go_on, interrupted_model

    from envfleet.apis.sb3 import EnvFleetVecEnv

    envs = EnvFleetVecEnv(make(SleepyEnv, num_workers=2, num_envs=2, autoreset_mode="same_step"))
    assert go_on(interrupted_model(envs, gate, opens=True)) == 1  # reset
    assert envs.step(np.zeros(2, np.float32))[0].tolist() == [GATED_STEP + N_STEPS + 1] * 2


def test_large_messages_arrive_whole(make):
    """Beyond the 100 kB that Ray puts into its own messages, both ways."""

    class Wide(gymnasium.Env):
        observation_space = spaces.Box(-1, 1, (40_000,), np.float64)
        action_space = spaces.Box(-1, 1, (40_000,), np.float64)

        def reset(self, *, seed=None, options=None):
            return np.zeros(40_000), {}

        def step(self, action):
            return action, 0.0, False, False, {"note": "x" * 300_000}

    Wide.__module__ = "__main__"
    pool = make(Wide, num_workers=2, num_envs=4)
    pool.reset()
    actions = np.random.default_rng(0).uniform(-1, 1, (4, 40_000))
    for _ in range(2):
        batch = pool.step(actions)
        np.testing.assert_array_equal(batch.obs, actions)
        assert [len(note) for note in batch.info["note"]] == [300_000] * 4


def test_apis_on_top():
    ray_session()
    options = {"backend": "ray", "num_workers": 1, "num_envs": 2, "render_mode": "rgb_array"}
    envs = envfleet.make("CartPole-v1", **options)
    assert isinstance(envs, gymnasium.vector.VectorEnv)
    envs.reset(seed=0)
    obs, *_ = envs.step(envs.action_space.sample())
    assert envs.observation_space.contains(obs)
    pytest.importorskip("pygame")
    assert envs.render()[0].ndim == 3
    envs.close()


def test_stable_baselines3_and_torchrl_on_top():
    ray_session()
    options = {"backend": "ray", "num_workers": 1, "num_envs": 2}
    pytest.importorskip("stable_baselines3")
    from envfleet.apis.sb3 import EnvFleetVecEnv

    vec = EnvFleetVecEnv(envfleet.make("CartPole-v1", autoreset_mode="same_step", **options))
    assert vec.reset().shape == (2, 4)
    assert vec.step(np.zeros(2, dtype=np.int64))[0].shape == (2, 4)
    vec.close()
    pytest.importorskip("torchrl")
    from envfleet.apis.torchrl import EnvFleetEnv

    env = EnvFleetEnv("CartPole-v1", **options)
    assert env.rollout(5, break_when_any_done=False).shape == (2, 5)
    env.close()
