"""PettingZoo's Atari games for several players by their ids: the rollout is that of the package."""

from __future__ import annotations

import importlib
import os
import signal
from typing import Any

import numpy as np
import pytest

from envfleet.apis.pettingzoo import make_pettingzoo
from envfleet.core.errors import WorkerDied
from envfleet.families.atari.roms import rom_folder

pytest.importorskip("multi_agent_ale_py", reason="needs multi-agent-ale-py: run make test-families")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
# Two and four players; combat_plane's screen is higher than the others'.
GAMES = ["pong_v3", "space_invaders_v2", "warlords_v3", "ice_hockey_v2", "combat_plane_v2"]


@pytest.mark.parametrize("game", GAMES)
def test_rollout(game: str) -> None:
    """Same seeds and actions, through the end of an episode; the same again with the same seeds."""
    module = importlib.import_module(f"pettingzoo.atari.{game}")
    options = {"max_cycles": 40, "obs_type": "ram"}
    plain = [module.parallel_env(auto_rom_install_path=str(rom_folder()), **options) for _ in range(2)]
    agents = plain[0].possible_agents
    num_actions = plain[0].action_space(agents[0]).n
    with make_pettingzoo(f"atari/{game}", num_envs=2, num_workers=2, autoreset_mode="disabled", **options) as envs:
        assert envs.possible_agents == agents
        rollouts = []
        for _ in range(2):
            actions = np.random.default_rng(1)
            obs, _ = envs.reset(seed=[3, 4])
            expected = [env.reset(seed=seed)[0] for env, seed in zip(plain, (3, 4), strict=True)]
            rollouts.append([])
            for _ in range(40):
                for agent in agents:
                    assert all(np.array_equal(obs[agent][i], expected[i][agent]) for i in range(2))
                rollouts[-1].append(obs[agents[0]].copy())
                chosen = {agent: actions.integers(num_actions, size=2) for agent in agents}
                obs, reward, terminated, truncated, _ = envs.step(chosen)
                for i, env in enumerate(plain):
                    seen, *rest = env.step({agent: int(chosen[agent][i]) for agent in env.agents})
                    expected[i] = {agent: np.array(own) for agent, own in seen.items()}
                    for ours, theirs in zip((reward, terminated, truncated), rest, strict=False):
                        assert {agent: ours[agent][i] for agent in theirs} == theirs
            assert all(truncated[agent].all() for agent in agents)
        assert np.array_equal(*rollouts)


def test_a_screen() -> None:
    with make_pettingzoo("atari/pong_v3", num_envs=1) as envs:
        assert envs.spec.backend == "processes"
        obs, _ = envs.reset(seed=0)
        assert obs["first_0"].shape == (1, 210, 160, 3)


def test_a_crash_stays_in_the_worker() -> None:
    with make_pettingzoo("atari/pong_v3", num_envs=2, num_workers=2, obs_type="ram") as envs:
        envs.reset(seed=0)
        actions: dict[str, Any] = {agent: np.zeros(2, dtype=int) for agent in envs.possible_agents}
        envs.step(actions)
        os.kill(envs.pool.executor.worker_pids[1], signal.SIGSEGV)
        with pytest.raises(WorkerDied, match="SIGSEGV"):
            envs.step(actions)
        obs, _ = envs.reset(seed=0)
        assert obs["first_0"].shape == (2, 128)
