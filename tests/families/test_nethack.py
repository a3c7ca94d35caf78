"""NetHack and MiniHack by their ids: the rollout is that of the package, whose episodes are seeded one by one."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils import seeding
from support.package_rollouts import assert_package_rollout, copied
from support.traces import wait_until

import envfleet
from envfleet.core.errors import WorkerDied
from envfleet.families import nethack

pytest.importorskip("nle", reason="needs nle: run make test-families")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


class SeededPackageEnv:
    """The package's own env, seeded before each episode as docs/environments.md says."""

    def __init__(self, env_id: str, limit: int, package: str = "nle", **kwargs: Any) -> None:
        pytest.importorskip(package, reason=f"needs {package}: run make test-families")
        self.env = gymnasium.make(
            env_id, disable_env_checker=True, max_episode_steps=-1, fix_moon_phase=True, **kwargs
        ).unwrapped
        self.env._max_episode_steps = limit
        self.observation_space, self.action_space = self.env.observation_space, self.env.action_space

    def reset(self, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.rng = seeding.np_random(seed)[0]
            core = disp = seed
        else:
            core, disp = (int(own) for own in self.rng.integers(0, 2**64, 2, dtype=np.uint64))
        if hasattr(self.env, "minigrid_env"):  # the package calls a method seed() that MiniGrid no longer has
            self.env.minigrid_env.unwrapped.np_random = seeding.np_random(core)[0]
            self.env.nethack.set_initial_seeds(core, disp, False, None)
        else:
            self.env.seed(core, disp, reseed=False)
        return self.env.reset()

    def step(self, action: Any) -> Any:
        obs, reward, done, _, info = self.env.step(int(action))
        aborted = info["end_status"] == self.env.StepStatus.ABORTED
        return obs, reward, done and not aborted, aborted, info

    def close(self) -> None:
        self.env.close()


@pytest.mark.parametrize("env_id", ["NetHackScore-v0", "NetHackStaircasePet-v0", "NetHack-v0"])
def test_nethack(env_id: str) -> None:
    assert_package_rollout(env_id, lambda: SeededPackageEnv(env_id, 60), steps=200, limit=60)


@pytest.mark.parametrize("env_id", ["MiniHack-Room-Ultimate-5x5-v0", "MiniHack-Read-v0", "MiniHack-MultiRoom-N2-v0"])
def test_minihack(env_id: str) -> None:
    assert_package_rollout(env_id, lambda: SeededPackageEnv(env_id, 15, "minihack"), steps=50, limit=15)


def test_options() -> None:
    keys = ("glyphs", "blstats", "tty_chars")
    assert_package_rollout(
        "NetHackEat-v0",
        lambda: SeededPackageEnv("NetHackEat-v0", 20, observation_keys=keys, character="val-dwa-law-fem"),
        steps=50,
        limit=20,
        observation_keys=keys,
        character="val-dwa-law-fem",
    )


def test_level_seeds_of_minihack() -> None:
    pytest.importorskip("minihack", reason="needs minihack: run make test-families")
    with envfleet.make("MiniHack-Room-Random-15x15-v0", num_envs=2, seeds=[7, 8]) as envs:
        starts = {envs.reset(seed=seed)[0]["chars"][k].tobytes() for seed in range(4) for k in range(2)}
        assert len(starts) == 2
    plain = SeededPackageEnv("MiniHack-Room-Random-15x15-v0", 100, "minihack")
    assert starts == {copied(plain.reset(seed=seed)[0])["chars"].tobytes() for seed in (7, 8)}
    plain.close()


def test_the_challenge_is_seeded_too() -> None:
    rollouts = []
    for seed in (5, 5, 6):
        with envfleet.make("NetHackChallenge-v0", num_envs=2, num_workers=2) as envs:
            rollouts.append([envs.reset(seed=seed)[0]["tty_chars"]])
            envs.action_space.seed(0)
            rollouts[-1] += [envs.step(envs.action_space.sample())[0]["tty_chars"] for _ in range(50)]
    assert np.array_equal(rollouts[0], rollouts[1])
    assert np.array_equal(rollouts[0][0][1], rollouts[2][0][0])  # env 1 of seed 5 is env 0 of seed 6


def test_ids() -> None:
    pytest.importorskip("minihack", reason="needs minihack: run make test-families")
    registered = {env_id for env_id in gymnasium.registry if env_id.startswith(("NetHack", "MiniHack-"))}
    # Boxoban's levels are not in the package; the crossings cannot be built with MiniGrid 3.
    left_out = {env_id for env_id in registered if "Boxoban" in env_id or "CrossingS" in env_id}
    assert nethack.nethack_ids() | nethack.minihack_ids() == registered - left_out
    with pytest.raises(AssertionError):
        gymnasium.make("MiniHack-LavaCrossingS9N1-v0", disable_env_checker=True)


def test_infos_and_rendering() -> None:
    with envfleet.make("NetHackScore-v0", num_envs=2, max_episode_steps=2, render_mode="rgb_array") as envs:
        envs.reset(seed=0)
        envs.step(envs.action_space.sample())
        obs, _, terminated, truncated, info = envs.step(envs.action_space.sample())
        assert (terminated.tolist(), truncated.tolist()) == ([False, False], [True, True])
        assert info["end_status"].tolist() == [-1, -1]
        assert info["is_ascended"].tolist() == [False, False]
        assert (obs["chars"] == ord("@")).any(axis=(1, 2)).all()  # the last state, not what the game shows when it ends
        first, second = envs.render()
        assert first.shape == (336, 1264, 3)
        assert first.dtype == np.uint8
        assert not np.array_equal(first, second)


def test_no_files_are_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with envfleet.make("NetHackScore-v0", num_envs=2, num_workers=2) as envs:
        envs.reset(seed=0)
        folders = [Path(folder) for folder in envs.get_attr("folder")]
        assert all(folder.is_dir() for folder in folders)
        os.kill(envs.pool.executor.worker_pids[0], signal.SIGKILL)
        with pytest.raises(WorkerDied):
            envs.step(np.zeros(2, dtype=np.int64))
    assert wait_until(lambda: not any(folder.exists() for folder in folders))
    assert not list(tmp_path.iterdir())
