"""Players: the agents of an env with their spaces and slots; AgentRows: what a batch says about each agent.

A slot is one row of the arrays that an env's agents share. Agents with equal spaces form a group, and each group has
its own slots. If a group has a slot for every agent, the agent's index in the group is its slot; if it has fewer
(max_num_players), an agent takes the lowest free one.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.core.batch import Batch
from envfleet.core.errors import ConfigError
from envfleet.core.infos import restarted_rows
from envfleet.core.option_checks import integer_option
from envfleet.core.spaces import join, split

AgentId = Hashable


@dataclass(frozen=True)
class Group:
    """Agents with equal spaces, in slots first_slot to first_slot + num_slots - 1."""

    agents: tuple[int, ...]  # indices into Players.agents
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    first_slot: int
    num_slots: int

    @property
    def is_fixed(self) -> bool:
        """Whether every agent has its own slot."""
        return self.num_slots == len(self.agents)


@dataclass(frozen=True)
class Players:
    """The agents of an env in the order of possible_agents; an agent's id is its index there."""

    agents: tuple[AgentId, ...]
    groups: tuple[Group, ...]
    max_num_players: int

    @property
    def num_slots(self) -> int:
        """The number of slots of all groups."""
        return sum(group.num_slots for group in self.groups)

    def group_of(self, agent: int) -> int:
        """Return the index of the group that an agent belongs to."""
        return next(k for k, group in enumerate(self.groups) if agent in group.agents)

    @property
    def observation_space(self) -> spaces.Dict:
        """The space of PlayersEnv: one row per slot. player is the agent's id + 1, 0 for an empty slot."""
        count = self.num_slots
        return spaces.Dict(
            {
                # Counted from 1: the row of an env that raised is all zeros, which means that all slots are empty.
                "player": spaces.Box(0, len(self.agents), (count,), np.int32),
                "reward": spaces.Box(-np.inf, np.inf, (count,), np.float64),
                "terminated": spaces.MultiBinary(count),
                "truncated": spaces.MultiBinary(count),
                "obs": spaces.Tuple([stacked_space(own.observation_space, own.num_slots) for own in self.groups]),
            }
        )

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """The space of one action per slot; a Tuple if there are several groups."""
        each = [stacked_space(own.action_space, own.num_slots) for own in self.groups]
        # One array where it can be one: the executors check and copy that without Python.
        return each[0] if len(each) == 1 else spaces.Tuple(each)


def describe_players(env: Any, max_num_players: int | None) -> Players:
    """Return the agents and spaces of an env. Raise ConfigError if fixed-size arrays cannot hold them."""
    name = type(getattr(env, "unwrapped", env)).__name__
    agents = tuple(getattr(env, "possible_agents", None) or ())
    if not agents:
        raise ConfigError(
            f"expected {name}.possible_agents with the name of every agent that may take part, got none; set it in "
            "the constructor (agents may still come and go), and pass max_num_players if only a few play at a time"
        )
    if len(set(agents)) != len(agents):
        raise ConfigError(f"expected {name}.possible_agents without repeats, got {list(agents)}")
    limit = len(agents)
    if max_num_players is not None:
        limit = min(limit, integer_option("max_num_players", max_num_players, 1, 2**31 - 1))
    found: list[tuple[gymnasium.Space[Any], gymnasium.Space[Any], list[int]]] = []
    for index, agent in enumerate(agents):
        observation, action = _spaces_of(env, name, agent)
        for other_observation, other_action, members in found:
            if other_observation == observation and other_action == action:
                members.append(index)
                break
        else:
            stacked_space(observation, 1, f"the observation space of {agent!r}")
            stacked_space(action, 1, f"the action space of {agent!r}")
            found.append((observation, action, [index]))
    groups: list[Group] = []
    first_slot = 0
    for observation, action, members in found:
        num_slots = min(len(members), limit)
        groups.append(Group(tuple(members), observation, action, first_slot, num_slots))
        first_slot += num_slots
    return Players(agents, tuple(groups), limit)


def _spaces_of(env: Any, name: str, agent: AgentId) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
    found = []
    for kind in ("observation_space", "action_space"):
        ask = getattr(env, kind, None)
        space = ask(agent) if callable(ask) else None
        if not isinstance(space, gymnasium.Space):
            raise ConfigError(
                f"expected {name}.{kind}({agent!r}) to return a gymnasium.Space, got {space!r}; "
                "define that method as in PettingZoo's ParallelEnv"
            )
        found.append(space)
    return found[0], found[1]


def stacked_space(space: gymnasium.Space[Any], count: int, where: str = "a space") -> gymnasium.Space[Any]:
    """Return the space of count values of this space, stacked_space along a new first axis."""
    dtype: Any = np.dtype(space.dtype).type
    if isinstance(space, spaces.Box):
        low, high = (np.repeat(side[None], count, axis=0) for side in (space.low, space.high))
        return spaces.Box(low, high, (count, *space.shape), dtype)
    if isinstance(space, spaces.Discrete):
        start = np.full(count, space.start, dtype=dtype)
        return spaces.MultiDiscrete(np.full(count, space.n, dtype=dtype), dtype=dtype, start=start)
    if isinstance(space, spaces.MultiDiscrete):
        nvec, start = (np.repeat(side[None], count, axis=0) for side in (space.nvec, space.start))
        return spaces.MultiDiscrete(nvec, dtype=dtype, start=start)
    if isinstance(space, spaces.MultiBinary):
        return spaces.MultiBinary((count, *space.shape))
    if isinstance(space, spaces.Dict):
        return spaces.Dict([(key, stacked_space(part, count, where)) for key, part in space.spaces.items()])
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([stacked_space(part, count, where) for part in space.spaces])
    raise ConfigError(
        f"expected {where} to be made of Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple, got {space}; "
        "its values have no fixed size; wrap the env so that it returns arrays"
    )


def idle_value(space: gymnasium.Space[Any]) -> NDArray[Any]:
    """Return a legal action for empty slots: 0, or the nearest value to it."""
    if isinstance(space, spaces.Discrete):
        return np.asarray(space.start, dtype=space.dtype)
    if isinstance(space, spaces.MultiDiscrete):
        return np.asarray(space.start, dtype=space.dtype)
    if isinstance(space, spaces.Box):
        return np.clip(np.zeros(space.shape, dtype=space.dtype), space.low, space.high)
    return np.zeros(space.shape or (), dtype=space.dtype)


def flatten_infos(
    players: Mapping[AgentId, int], infos: Mapping[Any, Any] | None, shown: set[AgentId]
) -> dict[str, Any]:
    """Flatten infos by agent into one info: its numbers become columns in shared memory, nested dicts would be pickled.

    An agent's "key" becomes "index:key". Other keys belong to the env. None means no info, of one agent or of all.
    """
    flat: dict[str, Any] = {}
    for agent, own in (infos or {}).items():
        index = players.get(agent)
        if index is None:
            flat[str(agent)] = own
        elif agent in shown:
            for key, value in (own or {}).items():
                flat[f"{index}:{key}"] = value
    return flat


Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class AgentRows:
    """The values of each agent in a batch: arrays of shape (rows, agents).

    present: the agent has a value in this row. alive: its next action counts. slot: where its observation is, -1 for
    none. last_slot: the same in batch.final, for an episode that ended in a same_step row; reward and flags are then
    that episode's, observations the next one's.
    """

    present: Flags
    alive: Flags
    reward: NDArray[np.float64]
    terminated: Flags
    truncated: Flags
    slot: NDArray[np.intp]
    last_slot: NDArray[np.intp]


def agent_rows_of(batch: Batch, num_agents: int, was_alive: Flags) -> AgentRows:
    """Return what a batch says about each agent. was_alive: who was alive before, in the rows of this batch."""
    ended = batch.terminated | batch.truncated
    slot = _slots(batch.obs["player"], num_agents)
    last_slot = np.full_like(slot, -1)
    # The players of an env that raised and was restarted end here. Its row is the last one it delivered, whose rewards
    # and flags they have seen, and so have players that ended in it.
    restarted = restarted_rows(batch.info)
    if restarted is None:
        restarted = np.zeros_like(ended)
    failed = restarted & batch.truncated
    lost = was_alive & failed[:, None]
    # An env that raised and was not restarted has no row.
    raised = np.zeros_like(ended)
    if batch.faults:
        raised = np.isin(batch.env_id, [fault.env_id for fault in batch.faults]) & ~restarted
    gone = raised[:, None] | (failed[:, None] & ~was_alive)
    slot[gone & (raised[:, None] | (batch.final is None))] = -1
    reward, terminated, truncated = _values(batch.obs, slot)
    present = slot >= 0
    starts_next = np.zeros_like(present)
    if batch.final is not None and ended.any():
        last_slot = np.where(ended[:, None] & ~gone, _slots(batch.final.obs["player"], num_agents), -1)
        last = _values(batch.final.obs, last_slot)
        reward, terminated, truncated = (
            np.where(ended[:, None], new, old) for new, old in zip(last, (reward, terminated, truncated), strict=True)
        )
        starts_next = present & ended[:, None]
        played = np.where(ended[:, None], last_slot >= 0, present) | lost
    else:
        played = present | lost
    reward[failed], terminated[failed], truncated[failed] = 0.0, False, False
    # The pool's time limit, or a restart, truncates the episode of players that were not done.
    truncated = truncated | (played & ended[:, None] & ~terminated)
    alive = (played & ~terminated & ~truncated) | starts_next
    return AgentRows(present | played, alive, reward, terminated, truncated, slot, last_slot)


def _slots(player: NDArray[np.int32], num_agents: int) -> NDArray[np.intp]:
    """Return the slot of each agent, -1 where it has none."""
    slots = np.full((len(player), num_agents), -1, dtype=np.intp)
    rows, taken = np.nonzero(player)
    slots[rows, player[rows, taken] - 1] = taken
    return slots


def _values(obs: Any, slot: NDArray[np.intp]) -> tuple[NDArray[np.float64], Flags, Flags]:
    rows = np.arange(len(slot))[:, None]
    found = slot >= 0
    reward = np.where(found, obs["reward"][rows, slot], 0.0)
    terminated, truncated = (found & obs[name][rows, slot].astype(np.bool_) for name in ("terminated", "truncated"))
    return reward, terminated, truncated


def gather_observations(group: Group, stack: Any, rows: NDArray[Any], slots: NDArray[np.intp]) -> Any:
    """Return the observations in these rows and slots of a group's stack; zeros for slot -1."""
    is_empty = slots < 0
    local = np.where(is_empty, 0, slots - group.first_slot)
    columns = []
    for column in split(group.observation_space)(stack):
        values = column[rows, local]
        values[is_empty] = 0
        columns.append(values)
    return join(group.observation_space)(columns)


def agent_observations(group: Group, stack: Any, agent: int, slots: NDArray[np.intp], always_gather: bool) -> Any:
    """Return one agent's observations in all rows; zeros where it has none."""
    if always_gather or not group.is_fixed:
        return gather_observations(group, stack, np.arange(len(slots)), slots)
    # The agent's slot is fixed and zero while it is absent, so a view is enough.
    own = group.agents.index(agent)
    return join(group.observation_space)([column[:, own] for column in split(group.observation_space)(stack)])


def split_infos(info: Mapping[str, Any], num_agents: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Split info columns into each agent's, by its id, and those of the env itself."""
    own: list[dict[str, Any]] = [{} for _ in range(num_agents)]
    of_env: dict[str, Any] = {}
    for name, column in info.items():
        mark = "_" if name.startswith("_") and name[1:] in info else ""
        index, colon, key = name[len(mark) :].partition(":")
        if colon and index.isdecimal() and int(index) < num_agents:
            own[int(index)][mark + key] = column
        else:
            of_env[name] = column
    return own, of_env
