"""Multi-agent pools: the same episodes as a plain loop over ParallelEnvs, on every Python backend."""

from __future__ import annotations

import functools
import pickle

import numpy as np
import pytest
from gymnasium import spaces

pettingzoo = pytest.importorskip("pettingzoo")

import envfleet  # noqa: E402
from envfleet.infos import split_rows  # noqa: E402
from envfleet.multiagent import make_pettingzoo  # noqa: E402

BACKENDS = ["serial", "threads", "processes"]
ZOMBIES = "butterfly/knights_archers_zombies_v11"


class Lodge(pettingzoo.ParallelEnv):
    """Guests come and go at random. Each has a number of its own in its observations and infos."""

    metadata = {"name": "lodge_v0", "render_modes": ["rgb_array"]}  # noqa: RUF012 (as pettingzoo has it)

    def __init__(self, num_names=8, beds=3, length=12, fail_at=None, kinds=False, render_mode=None):
        self.possible_agents = [f"guest_{k}" for k in range(num_names)]
        self.beds, self.length, self.fail_at, self.kinds = beds, length, fail_at, kinds
        self.render_mode = render_mode
        self.rng = np.random.default_rng()
        self.total = 0  # steps of all episodes
        self.note = "none"

    @functools.cache  # noqa: B019 (PettingZoo wants the same object)
    def observation_space(self, agent):
        own = {"spot": spaces.Box(-1, 1, (2,), np.float32), "mood": spaces.Discrete(5)}
        if self.kinds and agent in self.possible_agents[::2]:
            return spaces.Box(0, 100, (3,), np.int64)
        return spaces.Dict(own)

    @functools.cache  # noqa: B019
    def action_space(self, agent):
        if self.kinds and agent in self.possible_agents[::2]:
            return spaces.Box(-1, 1, (2,), np.float32)
        return spaces.Discrete(4, start=1)

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.time, self.fresh = 0, list(self.possible_agents)
        first = 1 + int(self.rng.integers(self.beds))
        self.agents = [self.fresh.pop(int(self.rng.integers(len(self.fresh)))) for _ in range(first)]
        return self._observe(self.agents), {agent: {} for agent in self.agents} | {"common": {"day": 0}}

    def step(self, actions):
        assert set(actions) == set(self.agents), (set(actions), self.agents)
        self.time += 1
        self.total += 1
        if self.fail_at == self.total:
            raise RuntimeError("the roof fell in")
        played = list(self.agents)
        rewards = {agent: float(np.sum(actions[agent])) + self.rng.random() for agent in played}
        terminated = {agent: bool(self.rng.random() < 0.2) for agent in played}
        truncated = dict.fromkeys(played, self.time >= self.length)
        infos = {agent: {"nights": self.time, "name": agent} for agent in played if self.rng.random() < 0.5}
        self.agents = [agent for agent in played if not terminated[agent] and not truncated[agent]]
        room = self.beds - len(played)  # a leaver's bed is made up the next day
        if self.agents and self.fresh and room > 0 and self.rng.random() < 0.7:
            agent = self.fresh.pop(0)
            self.agents.append(agent)
            played.append(agent)
        return self._observe(played), rewards, terminated, truncated, infos

    def _observe(self, agents):
        found = {}
        for agent in agents:
            if isinstance(self.observation_space(agent), spaces.Box):
                found[agent] = self.rng.integers(0, 100, 3)
            else:
                found[agent] = {
                    "spot": self.rng.uniform(-1, 1, 2).astype(np.float32),
                    "mood": int(self.rng.integers(5)),
                }
        return found

    def render(self):
        return np.full((2, 2, 3), self.time, dtype=np.uint8)


def act(space, env_id, step, place):
    """A legal action that depends on nothing else."""
    rng = np.random.default_rng([env_id, step, place])
    if isinstance(space, spaces.Discrete):
        return int(rng.integers(space.start, space.start + space.n))
    return rng.uniform(-1, 1, space.shape).astype(space.dtype)


def plain_loop(make, num_envs, num_steps, seed):
    """What each env gave on each step, next_step autoreset: {agent: (obs, reward, terminated, truncated, info)}."""
    story = []
    for env_id in range(num_envs):
        env = make()
        rows = []
        for step in range(num_steps):
            if step == 0 or not env.agents:
                obs, info = env.reset(seed=seed + env_id if step == 0 else None)
                rows.append({agent: (obs[agent], 0.0, False, False, {}) for agent in env.agents})
                continue
            actions = {
                agent: act(env.action_space(agent), env_id, step, env.possible_agents.index(agent))
                for agent in env.agents
            }
            obs, reward, terminated, truncated, info = env.step(actions)
            rows.append(
                {
                    agent: (
                        obs[agent],
                        float(reward.get(agent, 0)),
                        terminated.get(agent, False),
                        truncated.get(agent, False),
                        info.get(agent, {}),
                    )
                    for agent in obs
                }
            )
        story.append(rows)
    return story


def all_actions(envs, step):
    return {
        agent: np.array([act(envs.action_space(agent), i, step, place) for i in range(envs.num_envs)])
        for place, agent in enumerate(envs.possible_agents)
    }


def assert_same(one, other):
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    else:
        np.testing.assert_array_equal(one, other)
        assert np.asarray(one).dtype.kind == np.asarray(other).dtype.kind


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


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_a_restarted_env_truncates_its_players(backend, mode):
    with make_pettingzoo(
        Lodge, layout="rows", num_envs=2, backend=backend, autoreset_mode=mode, on_error="restart", seed=1,
        env_kwargs=[{}, {"fail_at": 9, "length": 4}],
    ) as envs:  # fmt: skip
        _, info = envs.reset()
        failures = 0
        for _ in range(40):
            before = info["players.id"][info["players.env_id"] == 1]
            ones = np.ones(len(info["players.id"]), dtype=int)
            _, reward, _, truncated, info = envs.step(ones)
            if "env.error" in info and info["_env.error"][1]:
                failures += 1
                mine = info["players.env_id"] == 1
                ended = info["players.id"][mine & truncated]
                assert set(ended) <= set(before)
                assert len(ended)
                assert not reward[mine & truncated].any()
                # Episodes of that env ended before: what they left must not be taken for this one's end.
                assert not info.get("_final_obs", np.zeros_like(mine))[mine].any()
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


# --- PettingZoo's own envs ---------------------------------------------------------------------


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


def test_aec_envs_are_made_parallel_and_turn_based_ones_refused():
    pytest.importorskip("pygame")
    with make_pettingzoo(lambda: pettingzoo.make("aec", "classic/rps_v2"), num_envs=2) as envs:
        envs.reset(seed=0)
        reward = envs.step({"player_0": [0, 1], "player_1": [1, 1]})[1]
        assert reward["player_0"].tolist() == [-1, 0]
    with pytest.raises(envfleet.ConfigError, match="turn-based") as caught:
        make_pettingzoo("classic/tictactoe_v3", num_envs=1)
    assert "is_parallelizable" in str(caught.value)


# --- the rest ----------------------------------------------------------------------------------


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


def test_disabled_autoreset_waits_for_a_reset():
    with make_pettingzoo(Lodge, num_envs=2, backend="serial", autoreset_mode="disabled", seed=0, length=1) as envs:
        envs.reset()
        envs.step(all_actions(envs, 1))
        with pytest.raises(envfleet.CallOrderError, match="disabled"):
            envs.step(all_actions(envs, 2))
        envs.reset([0, 1])
        envs.step(all_actions(envs, 2))


class Crowd(Lodge):
    def step(self, actions):
        result = super().step(actions)
        self.agents = list(self.possible_agents)
        return (self._observe(self.agents), *result[1:])


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
        ("no/such_v0", {}, "expected an id of pettingzoo"),
        (Lodge(), {}, "each worker builds its own"),
        (3, {}, "got int"),
        (Lodge, {"layout": "columns"}, "layout expected"),
        (Lodge, {"max_num_players": 0}, "max_num_players expected"),
        (Lodge, {"backend": "native"}, "'serial', 'threads' or 'processes'"),
        (Lodge, {"wrappers": 3}, "wrappers expected"),
        (Lodge, {"layout": "rows", "kinds": True}, "use layout='agents'"),
        (Lodge, {"env_kwargs": [{}, {"num_names": 5}], "max_num_players": 3, "num_envs": 2}, "same"),
        ("CartPole-v1", {}, "expected an id of pettingzoo"),
    ],
)
def test_what_cannot_be_taken_is_refused(env, options, words):
    with pytest.raises(envfleet.EnvfleetError, match=words):
        make_pettingzoo(env, **options)


def test_too_many_players_is_a_fault_that_says_so():
    with make_pettingzoo(Crowd, num_envs=1, max_num_players=4, seed=0) as envs:
        envs.reset()
        with pytest.raises(envfleet.EnvError, match="max_num_players=4"):
            envs.step(all_actions(envs, 1))


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
