"""The native tasks of dm_control's suite against dm_control itself: the same seeds and actions, bit for bit.

Both sides call the same functions of the same MuJoCo in the same order, draw from the same stream, and add up as
numpy does on this CPU: observations and rewards come out equal to the last bit.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import envfleet
from envfleet import _native
from envfleet.core.errors import ConfigError, EnvError
from envfleet.families.dm_control import native_ids, tasks
from envfleet.families.dm_control.env import DmControlEnv

pytest.importorskip("dm_control")

NATIVE_TASKS = [env_id for env_id in native_ids() if not env_id.endswith("-v1")]
# One for each rule: the others differ by a constant. A model takes most of a case's time, a dog's two seconds.
SHORT = [
    "acrobot-swingup",
    "ball_in_cup-catch",
    "cartpole-balance",
    "cartpole-swingup_sparse",
    "cartpole-three_poles",
    "cheetah-run",
    "dog-fetch",
    "finger-spin",
    "finger-turn_hard",
    "fish-swim",
    "hopper-stand",
    "hopper-hop",
    "humanoid-stand",
    "humanoid-run",
    "humanoid_CMU-walk",
    "lqr-lqr_2_1",
    "lqr-lqr_6_2",
    "manipulator-bring_ball",
    "manipulator-insert_peg",
    "pendulum-swingup",
    "point_mass-hard",
    "quadruped-run",
    "quadruped-escape",
    "quadruped-fetch",
    "reacher-easy",
    "stacker-stack_2",
    "swimmer-swimmer6",
    "walker-run",
]
EPISODE = 1000  # steps of all tasks but lqr, which has no limit
SOAK_SEEDS = int(os.environ.get("ENVFLEET_SOAK_SEEDS", "10"))
# What may differ in a last bit on other CPUs than this was written on, and never enters the simulation: rewards, whose
# scalings come from np.log, and vectors that BLAS rotates into the frame of a body, in an order of its own.
LAST_BITS = 1e-14
_ROTATED = {"extremities", "to_target", "target", "target_position", "ball_state", "torso_com_velocity", "origin"}


def assert_same(actual: Any, expected: Any, where: str, tolerance: float = 0.0) -> None:
    if not np.array_equal(actual, expected):  # asked first: assert_allclose() takes longer than a step
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance, err_msg=where)


def assert_equal_rollouts(env_id: str, seeds: list[int], steps: int) -> None:
    """Two episodes of `steps` steps, or up to the task's own limit, of each seed."""
    references = [DmControlEnv(*tasks()[env_id]) for _ in seeds]
    with envfleet.make(env_id, num_envs=len(seeds), autoreset_mode="disabled") as envs:
        assert envs.spec.backend == "native"
        assert envs.single_observation_space == references[0].observation_space
        assert list(envs.single_observation_space) == list(references[0].observation_space)
        assert envs.single_action_space == references[0].action_space
        assert envs.metadata["render_fps"] == references[0].metadata["render_fps"]
        limit = None if env_id.startswith("lqr") else EPISODE
        assert envs.spec.max_episode_steps == getattr(references[0], "max_steps", None) == limit
        space = envs.single_action_space
        low, high = np.maximum(space.low, -2), np.minimum(space.high, 2)  # lqr's are not limited
        actions = np.random.default_rng(7)
        starts = []
        for episode in range(2):
            obs, _ = envs.reset(seed=seeds if episode == 0 else None)
            starts += [np.concatenate([obs[name][i].ravel() for name in obs]) for i in range(len(seeds))]
            assert list(obs) == list(references[0].observation_space)
            for i, reference in enumerate(references):
                own, _ = reference.reset(seed=seeds[i] if episode == 0 else None)
                for name in own:
                    tolerance = LAST_BITS if name in _ROTATED else 0.0
                    assert_same(obs[name][i], own[name], f"start of episode {episode}, env {i}: {name}", tolerance)
            for step in range(steps):
                action = actions.uniform(low, high, (len(seeds), *space.shape))
                obs, reward, terminated, truncated, info = envs.step(action)
                for i, reference in enumerate(references):
                    where = f"episode {episode}, step {step}, env {i}"
                    own, own_reward, *ends, own_info = reference.step(action[i])
                    for name in own:
                        tolerance = LAST_BITS if name in _ROTATED else 0.0
                        assert_same(obs[name][i], own[name], f"{where}: {name}", tolerance)
                    assert_same(reward[i], own_reward, f"{where}: reward", LAST_BITS)
                    assert [terminated[i], truncated[i]] == ends, where
                    assert info["discount"][i] == own_info["discount"], where
        again, _ = envs.reset(seed=seeds)
        for i, start in enumerate(starts[: len(seeds)]):
            assert np.array_equal(np.concatenate([again[name][i].ravel() for name in again]), start)
    for reference in references:
        reference.close()
    # Different seeds and different episodes of one seed start differently.
    assert all(not np.array_equal(one, other) for k, one in enumerate(starts) for other in starts[:k])


def test_ids_are_those_of_the_plugin() -> None:
    with envfleet.make("pendulum-swingup"):
        assert set(native_ids()) <= set(_native.list_env_types())
    assert len(NATIVE_TASKS) == 51
    assert {"WalkerRun-v1", "HumanoidCMURun-v1", "BallInCupCatch-v1"} <= set(native_ids())


@pytest.mark.parametrize("env_id", SHORT)
def test_rollouts_equal_dm_control(env_id: str) -> None:
    assert_equal_rollouts(env_id, [5, 2**40], 50)


@pytest.mark.soak
@pytest.mark.parametrize("env_id", NATIVE_TASKS)
def test_whole_episodes_equal_dm_control(env_id: str) -> None:
    assert_equal_rollouts(env_id, list(range(SOAK_SEEDS)), EPISODE)


def test_terrains_equal_those_of_dm_control() -> None:
    """All of it, since a rollout only shows what the body touches."""
    reference = DmControlEnv("quadruped", "escape")
    with envfleet.make("quadruped-escape", num_envs=1, autoreset_mode="disabled") as envs:
        for seed in (3, None, 4):
            envs.reset(seed=seed)
            reference.reset(seed=seed)
            assert np.array_equal(envs.get_attr("model_hfield_data")[0], reference.env.physics.model.hfield_data)
    reference.close()


def test_lqr_ends_at_rest() -> None:
    with envfleet.make("lqr-lqr_6_2", num_envs=2, autoreset_mode="disabled") as envs:
        envs.reset(seed=0)
        envs.set_attr("qpos", [np.zeros(6), envs.get_attr("qpos")[1]])
        _, _, terminated, truncated, info = envs.step(np.zeros((2, 2)))
        assert terminated.tolist() == [True, False]
        assert truncated.tolist() == [False, False]
        assert info["discount"].tolist() == [0.0, 1.0]


def test_lqr_draws_springs_from_the_seed_and_keeps_them() -> None:
    with envfleet.make("lqr-lqr_2_1", num_envs=2, autoreset_mode="disabled") as envs:

        def springs(seed: int | None) -> list[list[float]]:
            envs.reset(seed=seed)
            return [own.tolist() for own in envs.get_attr("model_jnt_stiffness")]

        first = springs(8)
        assert first[0] != first[1]
        # A generator whose block of 624 numbers is used up is not a new one.
        assert all(springs(None) == first for _ in range(700))
        assert springs(9)[0] == first[1]
        assert springs(8) == first


def test_python_backends_run_dm_control() -> None:
    rows = []
    for backend in ("serial", "native"):
        with envfleet.make("reacher-hard", num_envs=2, backend=backend) as envs:
            assert envs.spec.backend == backend
            obs, _ = envs.reset(seed=2**70)
            rows.append([obs, *envs.step(np.full((2, 2), 0.3))[:4]])
    for one, other in zip(*rows, strict=True):
        assert_same(one["to_target"], other["to_target"], "") if isinstance(one, dict) else assert_same(one, other, "")


@pytest.mark.parametrize("env_id", ["manipulator-bring_ball", "hopper-hop", "lqr-lqr_6_2", "quadruped-escape"])
def test_a_saved_state_goes_on_alike(env_id: str) -> None:
    with envfleet.make(env_id, num_envs=2) as envs:
        envs.reset(seed=3)
        space = envs.single_action_space
        low, high = np.maximum(space.low, -1), np.minimum(space.high, 1)
        actions = np.random.default_rng(1).uniform(low, high, (30, 2, *space.shape))
        for action in actions[:20]:
            envs.step(action)
        saved = envs.pool.get_state()
        first = [envs.step(action)[:2] for action in actions]
        later = envs.reset()[0]
        envs.pool.set_state(saved)
        for action, (obs, reward) in zip(actions, first, strict=True):
            again, again_reward, *_ = envs.step(action)
            assert all(np.array_equal(again[name], obs[name]) for name in obs)
            assert np.array_equal(again_reward, reward)
        again = envs.reset()[0]  # the random stream was saved too
        assert all(np.array_equal(again[name], later[name]) for name in later)


def test_options() -> None:
    flat = {"environment_kwargs": {"flat_observation": True}}
    with envfleet.make("walker-walk", **flat) as envs, envfleet.make("walker-walk") as plain:
        assert envs.spec.backend == "native"
        assert envs.single_observation_space["observations"].shape == (24,)
        obs, parts = envs.reset(seed=0)[0], plain.reset(seed=0)[0]
        assert np.array_equal(obs["observations"][0], np.concatenate([part[0].ravel() for part in parts.values()]))
    limit = {"task_kwargs": {"time_limit": 0.1}}
    with envfleet.make("walker-walk", **limit) as envs:
        assert envs.spec.backend == "serial"  # dm_control itself, which takes any argument
    with pytest.raises(ConfigError, match=r"expected parameters that its env in C\+\+ supports"):
        envfleet.make("walker-walk", backend="native", **limit)
    for wrong in ({"frame_skip": 0}, {"camera_id": 99}, {"camera_id": "nowhere"}, {"width": 0}, {"task": "walker-run"}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            envfleet.make("walker-walk", **wrong)


def test_the_time_limit_of_the_task_counts_skipped_steps() -> None:
    with envfleet.make("pendulum-swingup", frame_skip=300, autoreset_mode="disabled") as envs:
        assert envs.spec.max_episode_steps == 4
        envs.reset(seed=0)
        assert [bool(envs.step(np.zeros((1, 1)))[3][0]) for _ in range(4)] == [False, False, False, True]


def test_an_invalid_state_is_an_error_of_that_env() -> None:
    with envfleet.make("hopper-hop", num_envs=2) as envs:
        envs.reset(seed=0)
        broken = np.full(7, np.nan)
        envs.set_attr("qpos", [envs.get_attr("qpos")[0], broken])
        with pytest.raises(EnvError, match="physics state is invalid") as caught:
            envs.step(np.zeros((2, 4)))
        assert [fault.env_id for fault in caught.value.faults] == [1]
        envs.reset(seed=0)
        assert np.isfinite(envs.step(np.zeros((2, 4)))[1]).all()


def test_pictures_equal_those_of_dm_control() -> None:
    pictures = []
    for backend in ("serial", "native"):
        kwargs = {"render_mode": "rgb_array", "height": 48, "width": 64, "camera_id": "fixed"}
        with envfleet.make("reacher-easy", backend=backend, **kwargs) as envs:
            envs.reset(seed=4)  # the target is where the seed puts it
            envs.step(np.full((1, 2), 0.5))
            try:
                pictures.append(envs.render()[0])
            except (EnvError, ConfigError) as error:
                assert "MUJOCO_GL" in str(error)  # noqa: PT017 (a machine may have no driver to draw with)
                return
    assert np.array_equal(*pictures)
