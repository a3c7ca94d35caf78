"""Players: who may play in an env, in which spaces, and how many seats there are for them.

A seat is one row of the arrays that an env's players share. Agents of equal spaces form a group,
and each group has its own seats. With a seat for every agent of a group, the agent's place in
the group is its seat; with fewer (max_num_players), an agent takes the lowest free one.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.errors import ConfigError
from envfleet.making.options import integer_option

AgentId = Hashable


@dataclass(frozen=True)
class Group:
    """Agents of equal spaces. Its seats are first_seat to first_seat + num_seats - 1 of all."""

    agents: tuple[int, ...]  # places in Players.agents
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    first_seat: int
    num_seats: int

    @property
    def is_fixed(self) -> bool:
        """Whether every agent has a seat of its own."""
        return self.num_seats == len(self.agents)


@dataclass(frozen=True)
class Players:
    """The agents of an env in the order of possible_agents; an agent's id is its place there."""

    agents: tuple[AgentId, ...]
    groups: tuple[Group, ...]
    max_num_players: int

    @property
    def num_seats(self) -> int:
        """The seats of all groups together."""
        return sum(group.num_seats for group in self.groups)

    def group_of(self, agent: int) -> int:
        """Which group an agent belongs to."""
        return next(k for k, group in enumerate(self.groups) if agent in group.agents)

    @property
    def observation_space(self) -> spaces.Dict:
        """What PlayersEnv observes: a row a seat. player is the agent's id + 1, 0 for an empty seat."""
        count = self.num_seats
        return spaces.Dict(
            {
                # Counted from 1: the row of an env that raised is all zeros, and nobody sits there.
                "player": spaces.Box(0, len(self.agents), (count,), np.int32),
                "reward": spaces.Box(-np.inf, np.inf, (count,), np.float64),
                "terminated": spaces.MultiBinary(count),
                "truncated": spaces.MultiBinary(count),
                "obs": spaces.Tuple([stacked(own.observation_space, own.num_seats) for own in self.groups]),
            }
        )

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """An action a seat; of several groups, a tuple of theirs."""
        each = [stacked(own.action_space, own.num_seats) for own in self.groups]
        # One array where it can be one: the executors check and copy that without Python.
        return each[0] if len(each) == 1 else spaces.Tuple(each)


def players_of(env: Any, max_num_players: int | None) -> Players:
    """Asks an env for its agents and spaces; refuses what no fixed arrays can hold."""
    name = type(getattr(env, "unwrapped", env)).__name__
    agents = tuple(getattr(env, "possible_agents", None) or ())
    if not agents:
        raise ConfigError(
            f"expected {name}.possible_agents with the name of every agent that may ever play, got none; "
            "set it in the constructor (agents may still come and go), with max_num_players where few play at a time"
        )
    if len(set(agents)) != len(agents):
        raise ConfigError(f"expected {name}.possible_agents without repeats, got {list(agents)}")
    limit = len(agents)
    if max_num_players is not None:
        limit = min(limit, integer_option("max_num_players", max_num_players, 1, 2**31 - 1))
    found: list[tuple[gymnasium.Space[Any], gymnasium.Space[Any], list[int]]] = []
    for place, agent in enumerate(agents):
        observation, action = _spaces_of(env, name, agent)
        for other_observation, other_action, members in found:
            if other_observation == observation and other_action == action:
                members.append(place)
                break
        else:
            stacked(observation, 1, f"the observation space of {agent!r}")
            stacked(action, 1, f"the action space of {agent!r}")
            found.append((observation, action, [place]))
    groups: list[Group] = []
    first_seat = 0
    for observation, action, members in found:
        num_seats = min(len(members), limit)
        groups.append(Group(tuple(members), observation, action, first_seat, num_seats))
        first_seat += num_seats
    return Players(agents, tuple(groups), limit)


def _spaces_of(env: Any, name: str, agent: AgentId) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
    found = []
    for kind in ("observation_space", "action_space"):
        ask = getattr(env, kind, None)
        space = ask(agent) if callable(ask) else None
        if not isinstance(space, gymnasium.Space):
            raise ConfigError(
                f"expected {name}.{kind}({agent!r}) to give a gymnasium.Space, got {space!r}; "
                "define that method as PettingZoo's ParallelEnv has it"
            )
        found.append(space)
    return found[0], found[1]


def stacked(space: gymnasium.Space[Any], count: int, where: str = "a space") -> gymnasium.Space[Any]:
    """The space of count values of this space as arrays with one more axis in front."""
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
        return spaces.Dict([(key, stacked(part, count, where)) for key, part in space.spaces.items()])
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([stacked(part, count, where) for part in space.spaces])
    raise ConfigError(
        f"expected {where} to be made of Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple, got {space}; "
        "its values have no fixed size, so wrap the env to give arrays"
    )


def idle_value(space: gymnasium.Space[Any]) -> NDArray[Any]:
    """A legal action of an array space, for seats where nobody acts: 0, or what is nearest to it."""
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
    """Infos by agent as one info: numbers in it become columns in shared memory, where dicts would travel by mail.

    An agent's "key" becomes "place:key". What is under no agent's name belongs to the env. None means no info, of an
    agent or of all.
    """
    flat: dict[str, Any] = {}
    for agent, own in (infos or {}).items():
        place = players.get(agent)
        if place is None:
            flat[str(agent)] = own
        elif agent in shown:
            for key, value in (own or {}).items():
                flat[f"{place}:{key}"] = value
    return flat
