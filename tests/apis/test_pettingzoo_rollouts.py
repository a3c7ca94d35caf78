"""Multi-agent pools: the same episodes as a plain loop over ParallelEnvs, on every Python backend."""

from __future__ import annotations

import numpy as np
import pytest

pettingzoo = pytest.importorskip("pettingzoo")

from pettingzoo_probes import Lodge, act, all_actions, assert_same, plain_loop  # noqa: E402 (after importorskip)

import envfleet  # noqa: E402
from envfleet.apis.pettingzoo import make_pettingzoo  # noqa: E402
from envfleet.core.infos import split_rows  # noqa: E402

BACKENDS = ["serial", "threads", "processes"]
ZOMBIES = "butterfly/knights_archers_zombies_v11"


def at(value, row):
    return {key: part[row] for key, part in value.items()} if isinstance(value, dict) else value[row]


def check_agents(story, step, got):
    obs, reward, terminated, truncated, info = got
    for env_id, rows in enumerate(story):
        expected = rows[step]
        shown = {agent for agent in obs if info["present"][agent][env_id]}
        assert shown == set(expected)
        for agent, (o, r, te, tr, own) in expected.items():
            assert_same(o, at(obs[agent], env_id))
            assert (r, te, tr) == (reward[agent][env_id], terminated[agent][env_id], truncated[agent][env_id])
            assert info["alive"][agent][env_id] == (not te and not tr)
            columns = info["agents"][agent]
            assert split_rows(columns, env_id) == own
        for agent in set(obs) - shown:
            assert reward[agent][env_id] == 0
            away = at(obs[agent], env_id)
            assert not np.any(away["spot"] if isinstance(away, dict) else away)


@pytest.mark.parametrize("kinds", [False, True], ids=["one_kind", "two_kinds"])
@pytest.mark.parametrize("max_num_players", [None, 3])
@pytest.mark.parametrize("backend", BACKENDS)
def test_agents_that_come_and_go_match_a_plain_loop(backend, max_num_players, kinds):
    story = plain_loop(lambda: Lodge(kinds=kinds), 5, 60, seed=7)
    with make_pettingzoo(
        Lodge, num_envs=5, num_workers=2, backend=backend, max_num_players=max_num_players, env_kwargs={"kinds": kinds}
    ) as envs:
        obs, info = envs.reset(seed=7)
        zeros = dict.fromkeys(obs, np.zeros(5))
        check_agents(story, 0, (obs, zeros, zeros, zeros, info))
        assert info["common"]["day"].tolist() == [0] * 5
        for step in range(1, 60):
            check_agents(story, step, envs.step(all_actions(envs, step)))


@pytest.mark.parametrize("max_num_players", [None, 3])
@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_of_players_match_a_plain_loop(backend, max_num_players):
    story = plain_loop(Lodge, 4, 50, seed=3)
    with make_pettingzoo(
        Lodge, layout="rows", num_envs=4, num_workers=2, backend=backend, max_num_players=max_num_players
    ) as envs:
        obs, info = envs.reset(seed=3)
        reward = terminated = truncated = np.zeros(len(info["players.id"]))
        for step in range(50):
            if step:
                actions = [
                    act(envs.single_action_space, int(i), step, int(p))
                    for i, p in zip(info["players.env_id"], info["players.id"], strict=True)
                ]
                obs, reward, terminated, truncated, info = envs.step(np.array(actions))
            assert info["players.env_id"].dtype == info["players.id"].dtype == np.int32
            expected = [
                (env_id, envs.possible_agents.index(agent), row[agent])
                for env_id, rows in enumerate(story)
                for row in [rows[step]]
                for agent in sorted(row, key=envs.possible_agents.index)
            ]
            assert info["players.env_id"].tolist() == [env_id for env_id, _, _ in expected]
            assert info["players.id"].tolist() == [place for _, place, _ in expected]
            assert len(obs["spot"]) == len(reward) == len(expected)
            for k, (_, _, (o, r, te, tr, own)) in enumerate(expected):
                assert_same(o, at(obs, k))
                assert (reward[k], terminated[k], truncated[k]) == (r, te, tr)
                assert ("nights" in own) == bool(info["_nights"][k] if "_nights" in info else False)
                if own:
                    assert (info["nights"][k], info["name"][k]) == (own["nights"], own["name"])


@pytest.mark.parametrize("backend", ["serial", "processes"])
@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [(ZOMBIES, {"max_cycles": 400}), ("sisl/pursuit_v5", {"max_cycles": 20}), ("classic/rps_v2", {})],
)
def test_envs_of_pettingzoo_match_a_plain_loop(env_id, kwargs, backend):
    pytest.importorskip("pygame")
    num_steps = 300 if env_id == ZOMBIES else 40
    story = plain_loop(lambda: pettingzoo.make("parallel", env_id, **kwargs), 2, num_steps, seed=2)
    deaths = 0
    with make_pettingzoo(env_id, num_envs=2, num_workers=2, backend=backend, **kwargs) as envs:
        obs, info = envs.reset(seed=2)
        zeros = dict.fromkeys(obs, np.zeros(2))
        got = (obs, zeros, zeros, zeros, info)
        for step in range(num_steps):
            if step:
                got = envs.step(all_actions(envs, step))
            obs, reward, terminated, truncated, info = got
            for i, rows in enumerate(story):
                assert {a for a in obs if info["present"][a][i]} == set(rows[step])
                for agent, (o, r, te, tr, _) in rows[step].items():
                    np.testing.assert_array_equal(o, obs[agent][i])
                    assert (r, te, tr) == (reward[agent][i], terminated[agent][i], truncated[agent][i])
                    deaths += bool(te)
    assert deaths or env_id != ZOMBIES


@pytest.mark.parametrize("layout", ["agents", "rows"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_asynchronous_rollouts_are_the_synchronous_ones(backend, layout):
    story = plain_loop(Lodge, 4, 20, seed=11)
    steps = np.zeros(4, dtype=int)
    with make_pettingzoo(Lodge, layout=layout, num_envs=4, batch_size=2, num_workers=2, backend=backend) as envs:
        envs.async_reset(seed=11)
        while steps.min() < 19:
            obs, reward, _, _, info = envs.recv(timeout=60)
            ids = info["env_id"]
            for row, env_id in enumerate(ids):
                expected = story[env_id][min(steps[env_id], 19)]
                if steps[env_id] > 19:
                    continue
                if layout == "agents":
                    got = {a: reward[a][row] for a in obs if info["present"][a][row]}
                else:
                    mine = np.flatnonzero(info["players.env_id"] == env_id)
                    got = {envs.possible_agents[info["players.id"][k]]: reward[k] for k in mine}
                assert got == {agent: own[1] for agent, own in expected.items()}
            steps[ids] += 1
            if layout == "agents":
                actions = {
                    agent: np.array([act(envs.action_space(agent), i, steps[i], place) for i in ids])
                    for place, agent in enumerate(envs.possible_agents)
                }
            else:
                actions = np.array(
                    [
                        act(envs.single_action_space, int(i), steps[i], int(p))
                        for i, p in zip(info["players.env_id"], info["players.id"], strict=True)
                    ]
                )
            envs.send(actions, ids)


@pytest.mark.parametrize("max_num_players", [None, 3])
@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_same_step_gives_the_last_rows_beside_the_first(backend, max_num_players):
    def run(mode, layout="agents"):
        return make_pettingzoo(
            Lodge, layout=layout, num_envs=4, num_workers=2, backend=backend, autoreset_mode=mode, seed=5,
            max_num_players=max_num_players, length=6,
        )  # fmt: skip

    with run("next_step") as slow, run("same_step") as fast, run("same_step", "rows") as flat:
        for envs in (slow, fast, flat):
            _, flat_info = envs.reset(seed=5)
        ends = 0
        for step in range(1, 25):
            actions = all_actions(slow, step)
            obs, reward, terminated, truncated, info = fast.step(actions)
            ids, places = flat_info["players.env_id"], flat_info["players.id"]
            rows = np.array([actions[flat.possible_agents[p]][i] for i, p in zip(ids, places, strict=True)])
            f_obs, f_reward, f_terminated, _, flat_info = flat.step(rows)
            # An env of the slow pool is one step behind for each end; step it alone to catch up.
            ended = info["elapsed_step"] == 0
            s_obs, s_reward, s_terminated, s_truncated, s_info = slow.step(actions)
            last_obs, last_present = s_obs, s_info["present"]
            if ended.any():
                ends += 1
                ids = np.flatnonzero(ended)
                s_obs, n_info = slow.reset(ids)
                for agent in slow.possible_agents:
                    at_end = last_present[agent][ended]
                    assert (info["_final_obs"][agent][ended] == at_end).all()
                    assert not info["_final_obs"][agent][~ended].any()
                    assert (info["final_obs"][agent]["spot"][ended] == last_obs[agent]["spot"][ended]).all()
                    assert (obs[agent]["spot"][ended] == s_obs[agent]["spot"]).all()
                    assert (info["present"][agent][ended] == (n_info["present"][agent] | at_end)).all()
                    assert (info["alive"][agent][ended] == n_info["alive"][agent]).all()
            for place, agent in enumerate(slow.possible_agents):
                assert (reward[agent] == s_reward[agent]).all()
                assert (terminated[agent] == s_terminated[agent]).all()
                assert (truncated[agent] == s_truncated[agent]).all()
                assert (obs[agent]["spot"][~ended] == last_obs[agent]["spot"][~ended]).all()
                mine = flat_info["players.id"] == place
                where = flat_info["players.env_id"][mine]
                assert (info["present"][agent].nonzero()[0] == where).all()
                assert (f_obs["spot"][mine] == obs[agent]["spot"][where]).all()
                assert (f_reward[mine] == reward[agent][where]).all()
                assert (f_terminated[mine] == terminated[agent][where]).all()
                if ended.any():
                    assert (flat_info["_final_obs"][mine] == info["_final_obs"][agent][where]).all()
                    assert (flat_info["final_obs"]["spot"][mine] == info["final_obs"][agent]["spot"][where]).all()
        assert ends > 3


def test_disabled_autoreset_waits_for_a_reset():
    with make_pettingzoo(Lodge, num_envs=2, backend="serial", autoreset_mode="disabled", seed=0, length=1) as envs:
        envs.reset()
        envs.step(all_actions(envs, 1))
        with pytest.raises(envfleet.CallOrderError, match="disabled"):
            envs.step(all_actions(envs, 2))
        envs.reset([0, 1])
        envs.step(all_actions(envs, 2))


def test_the_pools_time_limit_truncates_the_players():
    with make_pettingzoo(Lodge, num_envs=3, backend="serial", max_episode_steps=2, seed=0, length=99) as envs:
        envs.reset()
        envs.step(all_actions(envs, 1))
        _, _, terminated, truncated, info = envs.step(all_actions(envs, 2))
        going_on = 0
        for agent in envs.possible_agents:
            assert ((terminated[agent] | truncated[agent]) == info["present"][agent])[info["elapsed_step"] == 2].all()
            going_on += truncated[agent].sum()
        assert going_on
