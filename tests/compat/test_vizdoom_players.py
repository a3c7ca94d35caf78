"""envpool.make(..., max_num_players=2): ViZDoom games of several players in EnvPool's layout."""

from __future__ import annotations

import numpy as np
import pytest

from envfleet.compat import envpool
from envfleet.core.errors import ActionError, ConfigError

OPTIONS = {"num_envs": 2, "max_num_players": 2, "use_combined_action": True, "seed": 0, "max_episode_steps": 3}


def test_rows_are_the_players_and_ends_the_games() -> None:
    pytest.importorskip("vizdoom", reason="needs ViZDoom: pip install envfleet[vizdoom]")
    with envpool.make("MultiDuel-v1", env_type="gymnasium", **OPTIONS) as envs:
        assert len(envs) == envs.num_envs == 2
        assert envs.config["max_num_players"] == 2
        obs, info = envs.reset()
        assert obs.shape == (4, *envs.observation_space.shape)
        assert info["players"]["env_id"].tolist() == [0, 0, 1, 1]
        assert info["players"]["id"].tolist() == [0, 1, 0, 1]
        for step in range(1, 4):
            obs, reward, terminated, truncated, info = envs.step(np.array([0, 1, 2, 3]))
            assert obs.shape[0] == len(reward) == 4
            assert reward.dtype == np.float32
            assert truncated.tolist() == [step == 3] * 2
            assert terminated.shape == (2,)
            assert info["env_id"].tolist() == [0, 1]
            assert info["elapsed_step"].tolist() == [step] * 2
        envs.reset()
        # EnvPool's dict, with the rows of the games in another order.
        mixed = {"action": np.array([2, 3, 0, 1]), "players.env_id": np.array([1, 1, 0, 0]), "env_id": np.array([0, 1])}
        assert envs.step(mixed)[4]["players"]["env_id"].tolist() == [0, 0, 1, 1]
        with pytest.raises(ActionError, match=r"players\.env_id expected"):
            envs.step({**mixed, "players.env_id": np.array([1, 1, 0, 7])})


def test_the_old_gyms_dialect() -> None:
    pytest.importorskip("vizdoom", reason="needs ViZDoom: pip install envfleet[vizdoom]")
    with envpool.make("VizdoomDuel-v1", env_type="gym", **{**OPTIONS, "num_envs": 1, "max_episode_steps": 1}) as envs:
        assert envs.reset().shape[0] == 2
        _, _, done, info = envs.step(np.zeros(2, int))
        assert done.tolist() == [True]
        assert info["TimeLimit.truncated"].tolist() == [True]


def test_the_dm_dialect() -> None:
    """step_type is per game; reward, discount, the players' infos and obs are per player, as in EnvPool's buffers."""
    pytest.importorskip("vizdoom", reason="needs ViZDoom: pip install envfleet[vizdoom]")
    tree = pytest.importorskip("tree", reason="needs dm-tree, which compares the structures")
    with envpool.make_dm("MultiDuel-v1", **OPTIONS) as envs:
        spec = envs.observation_spec()
        first = envs.reset()
        tree.assert_same_structure(spec, first.observation)
        assert first.step_type.tolist() == [0, 0]
        assert first.reward.tolist() == [0.0] * 4
        assert first.observation.obs.shape == (4, *spec.obs.shape)
        assert first.observation.players.env_id.tolist() == [0, 0, 1, 1]
        assert first.observation.players.id.tolist() == [0, 1, 0, 1]
        assert first.observation.HEALTH.tolist() == [100.0] * 4
        assert envs.action_spec().num_values == envs.action_space.n
        for step in range(1, 4):
            ts = envs.step(np.array([0, 1, 2, 3]))
            tree.assert_same_structure(spec, ts.observation)
            assert ts.step_type.tolist() == [2 if step == 3 else 1] * 2
            assert ts.reward.shape == ts.discount.shape == (4,)
            assert ts.reward.dtype == ts.discount.dtype == np.float32
            assert ts.discount.tolist() == [1.0] * 4  # the time limit ends the games
            assert ts.observation.env_id.tolist() == [0, 1]
            assert ts.observation.elapsed_step.tolist() == [step] * 2
        second = envs.reset(np.array([1]))
        assert second.observation.env_id.tolist() == [1]
        assert second.observation.players.env_id.tolist() == [1, 1]


def test_what_has_one_player_is_refused() -> None:
    with pytest.raises(ConfigError, match="these have several players"):
        envpool.make("CartPole-v1", max_num_players=2)
    with pytest.raises(ConfigError, match="max_num_players expected 1 in make_spec"):
        envpool.make_spec("MultiDuel-v1", max_num_players=2)
    with pytest.raises(ConfigError, match="max_num_players expected an integer from 1 to 8"):
        envpool.make("MultiDuel-v1", max_num_players=9)
