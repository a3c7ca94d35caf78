"""Multi-agent pools: what they are made of, what may be asked of them, what they refuse, and envs that raise."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from gymnasium import spaces

pettingzoo = pytest.importorskip("pettingzoo")

from pettingzoo_probes import Lodge, all_actions, assert_same  # noqa: E402 (after importorskip)

import envfleet  # noqa: E402
from envfleet.apis.pettingzoo import make_pettingzoo  # noqa: E402
from envfleet.apis.pettingzoo.env import PlayersEnv  # noqa: E402


def test_aec_envs_are_made_parallel_and_turn_based_ones_refused():
    pytest.importorskip("pygame")
    with make_pettingzoo(lambda: pettingzoo.make("aec", "classic/rps_v2"), num_envs=2) as envs:
        envs.reset(seed=0)
        reward = envs.step({"player_0": [0, 1], "player_1": [1, 1]})[1]
        assert reward["player_0"].tolist() == [-1, 0]
    with pytest.raises(envfleet.ConfigError, match="turn-based") as caught:
        make_pettingzoo("classic/tictactoe_v3", num_envs=1)
    assert "is_parallelizable" in str(caught.value)


def test_a_parallel_env_that_was_converted_and_back_is_used_itself():
    """As PettingZoo's Atari games are, with the wrappers that check calls; others stay."""
    from pettingzoo.utils import BaseWrapper, aec_to_parallel, parallel_to_aec, wrappers

    def checked():
        return aec_to_parallel(wrappers.OrderEnforcingWrapper(parallel_to_aec(Lodge())))

    def wrapped():
        return aec_to_parallel(BaseWrapper(parallel_to_aec(Lodge())))

    with (
        make_pettingzoo(checked, num_envs=2, backend="serial") as converted,
        make_pettingzoo(wrapped, num_envs=2, backend="serial") as other,
        make_pettingzoo(Lodge, num_envs=2, backend="serial") as plain,
    ):
        assert [type(env) for env in converted.pool.get_attr("env")] == [Lodge, Lodge]
        assert [type(env) for env in other.pool.get_attr("env")] == [type(wrapped())] * 2
        for _ in range(2):
            assert_same(converted.reset(seed=3), plain.reset(seed=3))
            for _ in range(20):
                actions = all_actions(plain, 1)
                assert_same(converted.step(actions), plain.step(actions))


def test_wrappers_wrap_the_multi_agent_env():
    from pettingzoo.utils import BaseParallelWrapper

    class Half(BaseParallelWrapper):
        def step(self, actions):
            obs, reward, *rest = super().step(actions)
            return obs, {agent: own / 2 for agent, own in reward.items()}, *rest

    with (
        make_pettingzoo(Lodge, num_envs=2, backend="serial", wrappers=[Half]) as half,
        make_pettingzoo(Lodge, num_envs=2, backend="serial") as whole,
    ):
        for envs in (half, whole):
            envs.reset(seed=0)
        actions = all_actions(half, 1)
        one, other = half.step(actions)[1], whole.step(actions)[1]
        assert all((2 * one[agent] == other[agent]).all() for agent in one)


def test_what_is_asked_of_the_envs():
    with make_pettingzoo(Lodge, num_envs=2, backend="processes", max_num_players=4, render_mode="rgb_array") as envs:
        envs.reset(seed=0)
        assert envs.config["max_num_players"] == envs.max_num_players == 4
        assert envs.pool.get_attr("agents") != ()
        envs.pool.set_attr("note", ["a", "b"])
        assert envs.pool.get_attr("note") == ("a", "b")
        assert [frame.shape for frame in envs.render()] == [(2, 2, 3)] * 2
        assert envs.observation_space("guest_1")["mood"].n == 5
        assert len(envs) == 2
        assert pickle.loads(pickle.dumps(envs.players)) == envs.players


# --- faults -------------------------------------------------------------------------------------------


def player_row(obs, row):
    return obs["spot"][row].tolist(), int(obs["mood"][row])


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_a_restarted_env_truncates_its_players(backend, mode):
    with make_pettingzoo(
        Lodge, layout="rows", num_envs=2, backend=backend, autoreset_mode=mode, on_error="restart", seed=1,
        env_kwargs=[{}, {"fail_at": 9, "length": 4}],
    ) as envs:  # fmt: skip
        obs, info = envs.reset()
        failures = 0
        for _ in range(40):
            before = info["players.id"][info["players.env_id"] == 1]
            last = {
                int(info["players.id"][row]): player_row(obs, row)
                for row in np.flatnonzero(info["players.env_id"] == 1)
            }
            ones = np.ones(len(info["players.id"]), dtype=int)
            obs, reward, _, truncated, info = envs.step(ones)
            if "env.error" in info and info["_env.error"][1]:
                failures += 1
                mine = info["players.env_id"] == 1
                ended = info["players.id"][mine & truncated]
                assert set(ended) <= set(before)
                assert len(ended)
                assert not reward[mine & truncated].any()
                finals = info["final_obs"] if mode == "same_step" else obs
                for row in np.flatnonzero(mine & truncated):
                    assert player_row(finals, row) == last[int(info["players.id"][row])]
        assert failures > 1


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_an_env_that_raises_leaves_the_others_in_step(backend):
    with make_pettingzoo(Lodge, layout="rows", num_envs=2, backend=backend, env_kwargs=[{}, {"fail_at": 1}]) as envs:
        changes = 0
        for seed in range(16):
            _, info = envs.reset(seed=seed)
            before = info["players.id"][info["players.env_id"] == 0]
            with pytest.raises(envfleet.EnvError, match="the roof fell in") as caught:
                envs.step(np.ones(len(info["players.id"]), dtype=int))
            others = envs.show(caught.value.batch)[4]
            assert set(others["players.env_id"].tolist()) == {0}
            changes += before.tolist() != others["players.id"].tolist()
            info = envs.step(np.ones(len(others["players.id"]), dtype=int), [0])[4]
            assert set(info["players.env_id"].tolist()) == {0}
            _, info = envs.reset([1])
            assert set(info["players.env_id"].tolist()) == {1}
        assert changes


class Crowd(Lodge):
    def step(self, actions):
        result = super().step(actions)
        self.agents = list(self.possible_agents)
        return (self._observe(self.agents), *result[1:])


def test_too_many_players_is_a_fault_that_says_so():
    with make_pettingzoo(Crowd, num_envs=1, max_num_players=4, seed=0) as envs:
        envs.reset()
        with pytest.raises(envfleet.EnvError, match="max_num_players=4"):
            envs.step(all_actions(envs, 1))


class Silent(Lodge):
    """Infos of None, for every other agent or for all of them at once."""

    def reset(self, seed=None, options=None):
        return super().reset(seed, options)[0], None

    def step(self, actions):
        *result, _ = super().step(actions)
        agents = list(result[0])
        return *result, {agent: None if place % 2 else {"nights": 1} for place, agent in enumerate(agents)}


def test_an_agent_without_an_info_has_none():
    with (
        make_pettingzoo(Silent, num_envs=2, backend="serial", seed=0) as envs,
        make_pettingzoo(Lodge, num_envs=2, backend="serial", seed=0) as twin,
    ):
        envs.reset()
        twin.reset()
        actions = all_actions(envs, 1)
        got, expected = envs.step(actions), twin.step(actions)
        assert got[1].keys() == expected[1].keys()
        assert all((got[1][agent] == expected[1][agent]).all() for agent in got[1])
        assert any("nights" in own for own in got[4]["agents"].values())


# --- what is refused ----------------------------------------------------------------------------------


class Nameless(Lodge):
    def __init__(self):
        super().__init__()
        del self.possible_agents


class Texts(Lodge):
    def observation_space(self, agent):
        return spaces.Text(3)


@pytest.mark.parametrize(
    ("env", "options", "words"),
    [
        (Nameless, {}, "possible_agents"),
        (Texts, {}, "no fixed size"),
        ("no/such_v0", {}, "expected an id of PettingZoo"),
        (Lodge(), {}, "each worker builds its own"),
        (3, {}, "got int"),
        (Lodge, {"layout": "columns"}, "layout expected"),
        (Lodge, {"max_num_players": 0}, "max_num_players expected"),
        (Lodge, {"backend": "native"}, "'serial', 'threads' or 'processes'"),
        (Lodge, {"wrappers": 3}, "wrappers expected"),
        (Lodge, {"layout": "rows", "kinds": True}, "use layout='agents'"),
        (Lodge, {"env_kwargs": [{}, {"num_names": 5}], "max_num_players": 3, "num_envs": 2}, "same"),
        ("CartPole-v1", {}, "expected an id of PettingZoo"),
    ],
)
def test_what_cannot_be_taken_is_refused(env, options, words):
    with pytest.raises(envfleet.EnvfleetError, match=words):
        make_pettingzoo(env, **options)


def test_rows_are_written_into_given_memory():
    """As a worker has it: every step overwrites the row, and slots that become free are zeros in it."""
    plain, in_place = PlayersEnv(Lodge(), 3), PlayersEnv(Lodge(), 3)
    row = {key: np.full_like(value, 7) for key, value in plain.reset(seed=0)[0].items() if key != "obs"}
    row["obs"] = ({"mood": np.full(3, 7), "spot": np.full((3, 2), 7, np.float32)},)
    in_place.envfleet_observe_into(row)
    assert not row["player"].any()
    assert not row["obs"][0]["spot"].any()
    assert_same(in_place.reset(seed=0)[0], plain.reset(seed=0)[0])
    for _ in range(40):
        action = np.ones(3, np.int64)
        result, want = in_place.step(action), plain.step(action)
        assert_same(row, want[0])
        assert result[0]["obs"][0]["spot"] is row["obs"][0]["spot"]
        if want[2] or want[3]:
            assert_same(in_place.reset()[0], plain.reset()[0])


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_a_saved_env_continues_in_its_row(backend):
    with make_pettingzoo(Lodge, num_envs=2, max_num_players=3, backend=backend) as envs:
        pool, actions = envs.pool, np.ones((2, 3), np.int64)
        pool.reset(seed=0)
        pool.step(actions)
        saved = pool.get_state()
        want = [pool.step(actions).obs for _ in range(15)]
        pool.set_state(saved)
        for obs in want:
            assert_same(pool.step(actions).obs, obs)


def test_wrong_actions_move_nothing():
    with make_pettingzoo(Lodge, num_envs=2, seed=0, backend="serial") as envs:
        _, info = envs.reset()
        good = all_actions(envs, 1)
        agent = next(a for a in good if info["alive"][a].any())
        away = next(a for a in good if not info["alive"][a].any())
        for bad, words in (
            ([1, 2], "dict by agent"),
            ({**good, "stranger": [0, 0]}, "stranger"),
            ({a: v for a, v in good.items() if a != agent}, f"{agent}.*alive"),
            ({**good, agent: [1]}, f"{agent}.*2 rows"),
            ({**good, agent: np.array([9, 9])}, f"{agent}.*from 1 to 4.*got 9"),
            ({**good, agent: np.array([1.5, 1.5])}, f"{agent}.*integer"),
        ):
            with pytest.raises(envfleet.ActionError, match=words):
                envs.step(bad)
        # What stands where nobody lives is nobody's business.
        envs.step({**good, away: np.array([99, 99])})
    with make_pettingzoo(Lodge, layout="rows", num_envs=2, seed=0, backend="serial") as envs:
        _, info = envs.reset()
        count = len(info["players.id"])
        with pytest.raises(envfleet.ActionError, match=rf"{count} rows.*players.id"):
            envs.step(np.ones(count + 1, dtype=int))
        with pytest.raises(envfleet.ActionError, match="from 1 to 4"):
            envs.step(np.zeros(count, dtype=int))


class Namesake(Lodge):
    """Infos of agents and of the env under the names of the pool's."""

    def step(self, actions):
        *result, _ = super().step(actions)
        own = {"env_id": 7, "elapsed_step": 99, "players.id": 7, "env.terminated": 7, "nights": self.time}
        return *result, dict.fromkeys(result[0], own) | {"env_id": 7, "alive": 7, "common": 3}


@pytest.mark.parametrize("layout", ["agents", "rows"])
def test_ids_of_the_pool_take_precedence(layout):
    with make_pettingzoo(Namesake, num_envs=2, backend="serial", seed=0, layout=layout) as envs:
        _, info = envs.reset()
        actions = all_actions(envs, 1) if layout == "agents" else np.ones(len(info["players.id"]), int)
        _, reward, *_, info = envs.step(actions)
        assert info["env_id"].tolist() == [0, 1]
        assert info["elapsed_step"].tolist() == [1, 1]
        assert not {"_env_id", "_elapsed_step", "_alive", "_players.id", "_env.terminated"} & info.keys()
        if layout == "agents":
            assert info["common"].tolist() == [3, 3]
            assert info["alive"].keys() == set(envs.possible_agents)
            present = [agent for agent in envs.possible_agents if info["present"][agent].any()]
            # What an agent says about itself stays where its infos are.
            assert all(7 in info["agents"][agent]["env_id"] for agent in present)
        else:
            assert info["env.common"].tolist() == [3, 3]
            assert info["nights"].tolist() == [1] * len(reward)
            assert len(info["players.env_id"]) == len(reward)
            assert set(info["players.env_id"].tolist()) == {0, 1}
            assert info["env.terminated"].dtype == bool
