"""PlayersEnv: a ParallelEnv as one Gymnasium env, whose arrays have one row per slot."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from envfleet.apis.pettingzoo.players import AgentId, Players, describe_players, flatten_infos
from envfleet.core.errors import EnvfleetError
from envfleet.core.spaces import fits, join, leaves_of, path_text, row_getter, split

# Attributes of this adapter; all others are the ParallelEnv's.
_OWN = frozenset(
    {"env", "players", "observation_space", "action_space", "reset", "step", "render", "close", "metadata"}
)


class PlayerError(EnvfleetError, ValueError):
    """A multi-agent env broke the API of PettingZoo's ParallelEnv."""


class PlayersEnv(gymnasium.Env[Any, Any]):
    """One multi-agent env. Its reward is the sum of the players'; an episode ends when no player is left.

    A player has a row from the step in which it joins to the one in which it ends, inclusive. Its slot becomes free
    one step later, so that no new player overwrites a last row.
    """

    def __init__(self, env: Any, max_num_players: int | None = None) -> None:
        self.env = env
        self.players: Players = describe_players(env, max_num_players)
        self.observation_space = self.players.observation_space
        self.action_space = self.players.action_space
        self.metadata = dict(getattr(env, "metadata", None) or {})
        self.render_mode = getattr(env, "render_mode", None)
        groups = self.players.groups
        self._index_of: dict[AgentId, int] = {agent: index for index, agent in enumerate(self.players.agents)}
        self._group_of = [self.players.group_of(index) for index in range(len(self._index_of))]
        self._living: list[AgentId] = []
        self._leaving: list[AgentId] = []  # ended in the last step
        self._slots: dict[AgentId, int] = {}  # of both
        self._free: list[list[int]] = [[] for _ in groups]  # heaps, so that the lowest free slot is taken
        # Overwritten for each row. The executor copies them, unless they are its own memory (envfleet_observe_into).
        count = self.players.num_slots
        self._player = np.zeros(count, dtype=np.int32)
        self._reward = np.zeros(count, dtype=np.float64)
        self._terminated = np.zeros(count, dtype=np.int8)
        self._truncated = np.zeros(count, dtype=np.int8)
        self._stacks = [_Stack(own.observation_space, own.num_slots) for own in groups]
        self._action_rows = [row_getter(own.action_space) for own in groups]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the env and free all slots."""
        result = self.env.reset(seed=seed, options=options)
        if not isinstance(result, tuple) or len(result) != 2:
            raise PlayerError(
                f"expected reset() to return (observations, infos), got {type(result).__name__}; "
                "return both, each a dict by agent"
            )
        observations, infos = result
        self._living, self._leaving, self._slots = list(self.env.agents), [], {}
        self._free = [list(range(own.first_slot, own.first_slot + own.num_slots)) for own in self.players.groups]
        if not self._living:
            raise PlayerError(
                "expected at least one agent after reset(), got an empty env.agents; start episodes with one"
            )
        self._fill(self._living, observations, {}, {}, {})
        return self._observation(), flatten_infos(self._index_of, infos, set(self._living))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step all living agents; the actions of other slots are ignored."""
        for agent in self._leaving:
            slot = self._slots.pop(agent)
            heapq.heappush(self._free[self._group_of[self._index_of[agent]]], slot)
        before = self._living
        result = self.env.step({agent: self._action_of(agent, action) for agent in before})
        if not isinstance(result, tuple) or len(result) != 5:
            raise PlayerError(
                f"expected step() to return five dicts by agent, got {type(result).__name__}; "
                "return (observations, rewards, terminations, truncations, infos)"
            )
        observations, rewards, terminations, truncations, infos = result
        # Some envs keep ended agents in env.agents.
        self._living = [agent for agent in self.env.agents if not (terminations.get(agent) or truncations.get(agent))]
        alive = set(self._living)
        self._leaving = [agent for agent in before if agent not in alive]
        # An agent that ended before this step has no row, even if the env still reports it.
        shown = [*before, *(agent for agent in self._living if agent not in self._slots)]
        self._fill(shown, observations, rewards, terminations, truncations)
        for agent in self._leaving:
            slot = self._slots[agent]
            if not (self._terminated[slot] or self._truncated[slot]):
                self._terminated[slot] = 1  # it left env.agents without a flag
        has_ended = not self._living
        return (
            self._observation(),
            float(self._reward.sum()),
            has_ended and bool(self._terminated.any()),
            has_ended and bool(self._truncated.any()),
            flatten_infos(self._index_of, infos, set(shown)),
        )

    def envfleet_observe_into(self, row: dict[str, Any]) -> None:
        """Write observations into this row, which the next step overwrites; called by the pool."""
        for own, stack in zip(row["obs"], self._stacks, strict=True):
            stack.move_to(own)
        for name in ("player", "reward", "terminated", "truncated"):
            row[name][...] = getattr(self, f"_{name}")
            setattr(self, f"_{name}", row[name])

    def render(self) -> Any:
        """Return what the env renders."""
        return self.env.render()

    def close(self) -> None:
        """Close the env."""
        self.env.close()

    @property
    def unwrapped(self) -> Any:
        """The innermost multi-agent env."""
        return getattr(self.env, "unwrapped", self.env)

    def get_wrapper_attr(self, name: str) -> Any:
        """Return an attribute of the multi-agent env, or of this adapter for what it translates."""
        return getattr(self if name in _OWN or not hasattr(self.env, name) else self.env, name)

    def has_wrapper_attr(self, name: str) -> bool:
        """Return whether the adapter or the multi-agent env has the attribute."""
        return name in _OWN or hasattr(self.env, name)

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        """Set an attribute on the env or wrapper that has it; a new one on the innermost env."""
        level = self.env
        while name not in getattr(level, "__dict__", {}):
            inner = getattr(level, "__dict__", {}).get("env", getattr(level, "__dict__", {}).get("aec_env"))
            if inner is None:
                break
            level = inner
        if not force and not hasattr(level, name):
            return False
        setattr(level, name, value)
        return True

    # --- slots ---------------------------------------------------------------------------------

    def _fill(
        self,
        shown: Sequence[AgentId],
        observations: Mapping[AgentId, Any],
        rewards: Mapping[AgentId, Any],
        terminations: Mapping[AgentId, Any],
        truncations: Mapping[AgentId, Any],
    ) -> None:
        """Write the rows of these players, assign slots to new ones, and clear all other slots."""
        if len(shown) > self.players.max_num_players:
            raise PlayerError(
                f"expected at most max_num_players={self.players.max_num_players} players in one step "
                f"(including those that end in it), got {len(shown)}: {list(shown)}; pass a larger max_num_players"
            )
        for buffer in (self._player, self._reward, self._terminated, self._truncated):
            buffer[:] = 0
        for stack in self._stacks:
            stack.begin()
        for agent in shown:
            slot = self._slots.get(agent, -1)
            if slot < 0:
                slot = self._take_slot(agent)
            index = self._index_of[agent]
            self._player[slot] = index + 1
            self._reward[slot] = rewards.get(agent, 0.0)
            self._terminated[slot] = bool(terminations.get(agent, False))
            self._truncated[slot] = bool(truncations.get(agent, False))
            group = self._group_of[index]
            if agent in observations:
                row = slot - self.players.groups[group].first_slot
                self._stacks[group].write(row, observations[agent], agent)
            elif agent not in self._leaving:
                raise PlayerError(
                    f"expected an observation for every agent in env.agents, got none for {agent!r}; "
                    "return one, or remove the agent from env.agents"
                )
        for stack in self._stacks:
            stack.clear_unwritten()

    def _take_slot(self, agent: AgentId) -> int:
        index = self._index_of.get(agent)
        if index is None:
            raise PlayerError(f"expected env.agents to be in possible_agents, got {agent!r}; add it to possible_agents")
        group = self.players.groups[self._group_of[index]]
        free = self._free[self._group_of[index]]
        # max_num_players bounds the players of all groups; each group has that many slots, or one per agent.
        if group.is_fixed:
            slot = group.first_slot + group.agents.index(index)
        elif free:
            slot = heapq.heappop(free)
        else:
            raise PlayerError(
                f"expected a free slot for {agent!r}, all {group.num_slots} of its group are taken; "
                "pass a larger max_num_players"
            )
        self._slots[agent] = slot
        return slot

    def _action_of(self, agent: AgentId, actions: Any) -> Any:
        k = self._group_of[self._index_of[agent]]
        own = actions if len(self._stacks) == 1 else actions[k]
        return self._action_rows[k](own, self._slots[agent] - self.players.groups[k].first_slot)

    def _observation(self) -> dict[str, Any]:
        return {
            "player": self._player,
            "reward": self._reward,
            "terminated": self._terminated,
            "truncated": self._truncated,
            "obs": tuple([stack.value for stack in self._stacks]),
        }


class _Stack:
    """The observations of a group: one array per leaf of its space, with one row per slot."""

    def __init__(self, space: gymnasium.Space[Any], num_slots: int) -> None:
        self._split = split(space, "the observation")
        self._leaves = leaves_of(space)
        self._columns = [np.zeros((num_slots, *leaf.shape), dtype=leaf.dtype) for leaf in self._leaves]
        self.value = join(space)(self._columns)
        self._written: set[int] = set()  # rows of this step
        self._filled: set[int] = set()  # rows that may not be zero

    def move_to(self, value: Any) -> None:
        """Copy the arrays into those of this value, and write into them from now on."""
        columns = self._split(value)
        for old, new in zip(self._columns, columns, strict=True):
            new[...] = old
        self._columns, self.value = columns, value

    def begin(self) -> None:
        self._written = set()

    def clear_unwritten(self) -> None:
        """Clear the rows that this step did not write; clearing all of them first would take as long for images."""
        for row in self._filled - self._written:
            for column in self._columns:
                column[row] = 0
        self._filled = self._written

    def write(self, row: int, observation: Any, agent: AgentId) -> None:
        self._written.add(row)
        self._filled.add(row)
        try:
            values = self._split(observation)
        except ValueError as error:
            raise PlayerError(f"agent {agent!r}: {error}; return an element of observation_space({agent!r})") from None
        for leaf, column, value in zip(self._leaves, self._columns, values, strict=True):
            array = np.asarray(value)
            is_castable = np.can_cast(array.dtype, leaf.dtype, "same_kind") and fits(array, leaf.dtype)
            if array.shape != leaf.shape or not is_castable:
                raise PlayerError(
                    f"expected the observation{path_text(leaf.path)} of agent {agent!r} of shape {leaf.shape} and "
                    f"dtype {leaf.dtype}, got {array.shape} and {array.dtype}; "
                    f"return an element of observation_space({agent!r})"
                )
            column[row] = array
