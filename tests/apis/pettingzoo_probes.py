"""A multi-agent env for the tests, and what a plain loop over such envs gives."""

from __future__ import annotations

import functools

import numpy as np
import pettingzoo
from gymnasium import spaces


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
    elif isinstance(one, tuple):
        for own, others in zip(one, other, strict=True):
            assert_same(own, others)
    else:
        np.testing.assert_array_equal(one, other)
        assert np.asarray(one).dtype.kind == np.asarray(other).dtype.kind
