"""dm_control's suite: every task against dm_control itself, with the same seed and the same actions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import envfleet
from envfleet.core.errors import ConfigError, EnvError, UnknownEnvError
from envfleet.families.dm_control import all_ids, envpool_name, tasks
from envfleet.families.dm_control.env import DmControlEnv

pytest.importorskip("dm_control")


def suite() -> Any:
    from envfleet.families.dm_control.env import import_suite

    return import_suite()


def test_ids_are_those_of_the_suite() -> None:
    pairs = set(suite().ALL_TASKS)
    assert set(tasks().values()) == pairs
    assert all_ids() == {f"{domain}-{task}" for domain, task in pairs} | {envpool_name(*pair) for pair in pairs}
    assert {"cheetah-run", "CheetahRun-v1", "BallInCupCatch-v1", "HumanoidCMURun-v1", "LqrLqr21-v1"} <= all_ids()
    with pytest.raises(UnknownEnvError, match="cheetah-run"):
        envfleet.make("cheetah-runn")


def expected(domain: str, task: str, seed: int, actions: Any, steps: int) -> list[Any]:
    env = suite().load(domain, task, task_kwargs={"random": seed})
    timestep = env.reset()
    rows = [timestep]
    for k in range(steps):
        timestep = env.reset() if timestep.last() else env.step(actions[k])
        rows.append(timestep)
    return rows


@pytest.mark.parametrize(
    "env_id", ["cheetah-run", "BallInCupCatch-v1", "cartpole-swingup_sparse", "lqr-lqr_2_1", "humanoid_CMU-walk"]
)
def test_rollouts_equal_dm_control(env_id: str) -> None:
    domain, task = tasks()[env_id]
    steps = 60
    with envfleet.make(env_id, num_envs=2, num_workers=2, backend="processes") as envs:
        space = envs.single_action_space
        actions = np.random.default_rng(0).uniform(space.low, space.high, (steps, 2, *space.shape))
        obs, _ = envs.reset(seed=5)
        rows = [(obs, np.zeros(2), np.zeros(2, bool), np.zeros(2, bool))]
        rows += [envs.step(actions[k])[:4] for k in range(steps)]
    for env in range(2):
        for timestep, (obs, reward, terminated, truncated) in zip(
            expected(domain, task, 5 + env, actions[:, env], steps), rows, strict=True
        ):
            assert list(obs) == list(timestep.observation)
            assert all(np.array_equal(obs[name][env], timestep.observation[name]) for name in obs)
            assert reward[env] == (timestep.reward or 0.0)
            assert (terminated[env], truncated[env]) == (False, timestep.last())


def test_ends() -> None:
    # The task's own limit is a truncation; its discount stays 1.
    kwargs = {"time_limit": 0.1}  # ten steps
    with envfleet.make("cheetah-run", task_kwargs=kwargs, autoreset_mode="disabled") as envs:
        envs.reset(seed=0)
        for step in range(10):
            *_, terminated, truncated, info = envs.step(np.zeros((1, 6)))
            assert (terminated[0], truncated[0], info["discount"][0]) == (False, step == 9, 1.0)
    with envfleet.make("cheetah-run", "dm", task_kwargs=kwargs) as envs:
        envs.reset()
        for _ in range(10):
            timestep = envs.step(np.zeros((1, 6)))
        assert timestep.last()[0]
        assert timestep.discount[0] == 1.0


def test_a_discount_of_zero_is_a_termination() -> None:
    env = DmControlEnv("lqr", "lqr_2_1")
    env.reset(seed=0)
    with env.env.physics.reset_context():
        env.env.physics.data.qpos[:] = 0  # at rest in the middle: the task is done
    _, _, terminated, truncated, info = env.step(np.zeros(env.action_space.shape))
    env.close()
    assert (terminated, truncated, info["discount"]) == (True, False, 0.0)


def test_frame_skip_adds_rewards() -> None:
    with envfleet.make("cartpole-balance", frame_skip=3) as envs, envfleet.make("cartpole-balance") as plain:
        envs.reset(seed=1)
        plain.reset(seed=1)
        obs, reward, *_ = envs.step(np.full((1, 1), 0.5))
        steps = [plain.step(np.full((1, 1), 0.5)) for _ in range(3)]
        assert reward[0] == sum(step[1][0] for step in steps)
        assert all(np.array_equal(obs[name], steps[-1][0][name]) for name in obs)


def test_same_on_every_executor() -> None:
    found = []
    for backend in ("serial", "processes"):
        with envfleet.make("walker-walk", num_envs=2, backend=backend) as envs:
            envs.reset(seed=2**40)  # more than dm_control's own generator takes
            found.append([envs.step(np.full((2, 6), 0.1))[1].tolist() for _ in range(10)])
    assert found[0] == found[1]


def test_wrong_options() -> None:
    with pytest.raises((ConfigError, EnvError), match="frame_skip"):
        envfleet.make("cheetah-run", frame_skip=0)
    with pytest.raises((ConfigError, EnvError), match="nonsense"):
        envfleet.make("cheetah-run", nonsense=1)


def test_render() -> None:
    with envfleet.make("cheetah-run", num_envs=2, render_mode="rgb_array", height=48, width=64) as envs:
        envs.reset(seed=0)
        try:
            pictures = envs.render()
        except (EnvError, ConfigError) as error:
            assert "MUJOCO_GL" in str(error)  # noqa: PT017 (a machine may have no driver to draw with)
            return
        assert [picture.shape for picture in pictures] == [(48, 64, 3)] * 2
        assert pictures[0].any()
