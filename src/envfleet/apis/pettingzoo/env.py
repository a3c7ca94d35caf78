"""PlayersEnv: a ParallelEnv as one Gymnasium env, whose arrays have a row for each seat."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from envfleet.apis.pettingzoo.players import AgentId, Players, flatten_infos, players_of
from envfleet.errors import EnvfleetError
from envfleet.spaces import join, leaves_of, path_text, row_getter, split

# What this env translates or keeps itself; every other attribute is asked of the ParallelEnv.
_OWN = frozenset(
    {"env", "players", "observation_space", "action_space", "reset", "step", "render", "close", "metadata"}
)


class PlayerError(EnvfleetError, ValueError):
    """A multi-agent env did what it may not."""


class PlayersEnv(gymnasium.Env[Any, Any]):
    """One multi-agent env. Its reward is the sum of the players'; an episode ends when nobody is left.

    A player has a row from the step it joins on, up to and with the one on which it ends. Its
    seat is free again one step later, so that a last row is never lost to a newcomer.
    """

    def __init__(self, env: Any, max_num_players: int | None = None) -> None:
        self.env = env
        self.players: Players = players_of(env, max_num_players)
        self.observation_space = self.players.observation_space
        self.action_space = self.players.action_space
        self.metadata = dict(getattr(env, "metadata", None) or {})
        self.render_mode = getattr(env, "render_mode", None)
        groups = self.players.groups
        self._places: dict[AgentId, int] = {agent: place for place, agent in enumerate(self.players.agents)}
        self._group_of = [self.players.group_of(place) for place in range(len(self._places))]
        self._living: list[AgentId] = []
        self._leaving: list[AgentId] = []  # they ended on the last step
        self._seats: dict[AgentId, int] = {}  # of both
        self._free: list[list[int]] = [[] for _ in groups]  # heaps: the lowest seat is taken first
        # Filled anew for each row; the executor copies what it is given.
        count = self.players.num_seats
        self._player = np.zeros(count, dtype=np.int32)
        self._reward = np.zeros(count, dtype=np.float64)
        self._terminated = np.zeros(count, dtype=np.int8)
        self._truncated = np.zeros(count, dtype=np.int8)
        self._stacks = [_Stack(own.observation_space, own.num_seats) for own in groups]
        self._action_rows = [row_getter(own.action_space) for own in groups]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets the env; all seats are free before."""
        result = self.env.reset(seed=seed, options=options)
        if not isinstance(result, tuple) or len(result) != 2:
            raise PlayerError(
                f"expected reset() to return (observations, infos), got {type(result).__name__}; "
                "return both, each a dict by agent"
            )
        observations, infos = result
        self._living, self._leaving, self._seats = list(self.env.agents), [], {}
        self._free = [list(range(own.first_seat, own.first_seat + own.num_seats)) for own in self.players.groups]
        if not self._living:
            raise PlayerError("expected at least one agent after reset(), got an empty env.agents; begin with one")
        self._fill(self._living, observations, {}, {}, {})
        return self._observation(), flatten_infos(self._places, infos, set(self._living))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Steps everybody who lives; the actions of other seats are ignored."""
        for agent in self._leaving:
            seat = self._seats.pop(agent)
            heapq.heappush(self._free[self._group_of[self._places[agent]]], seat)
        before = self._living
        result = self.env.step({agent: self._action_of(agent, action) for agent in before})
        if not isinstance(result, tuple) or len(result) != 5:
            raise PlayerError(
                f"expected step() to return five dicts by agent, got {type(result).__name__}; "
                "return (observations, rewards, terminations, truncations, infos)"
            )
        observations, rewards, terminations, truncations, infos = result
        # Some envs leave those who ended in env.agents; they are gone all the same.
        self._living = [agent for agent in self.env.agents if not (terminations.get(agent) or truncations.get(agent))]
        alive = set(self._living)
        self._leaving = [agent for agent in before if agent not in alive]
        # Who ended before this step has no row, whatever the env still says of it.
        shown = [*before, *(agent for agent in self._living if agent not in self._seats)]
        self._fill(shown, observations, rewards, terminations, truncations)
        for agent in self._leaving:
            seat = self._seats[agent]
            if not (self._terminated[seat] or self._truncated[seat]):
                self._terminated[seat] = 1  # it left env.agents without a flag
        has_ended = not self._living
        return (
            self._observation(),
            float(self._reward.sum()),
            has_ended and bool(self._terminated.any()),
            has_ended and bool(self._truncated.any()),
            flatten_infos(self._places, infos, set(shown)),
        )

    def render(self) -> Any:
        """What the env draws."""
        return self.env.render()

    def close(self) -> None:
        """Closes the env."""
        self.env.close()

    @property
    def unwrapped(self) -> Any:
        """The innermost multi-agent env."""
        return getattr(self.env, "unwrapped", self.env)

    def get_wrapper_attr(self, name: str) -> Any:
        """The attribute of the multi-agent env, except for what this one translates."""
        return getattr(self if name in _OWN or not hasattr(self.env, name) else self.env, name)

    def has_wrapper_attr(self, name: str) -> bool:
        """Whether either has that attribute."""
        return name in _OWN or hasattr(self.env, name)

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        """Sets the attribute on the env that has it inside the wrappers; a new one on the innermost."""
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

    # --- seats ---------------------------------------------------------------------------------

    def _fill(
        self,
        shown: Sequence[AgentId],
        observations: Mapping[AgentId, Any],
        rewards: Mapping[AgentId, Any],
        terminations: Mapping[AgentId, Any],
        truncations: Mapping[AgentId, Any],
    ) -> None:
        """Writes the rows of these players, seats newcomers, and clears all other seats."""
        if len(shown) > self.players.max_num_players:
            raise PlayerError(
                f"expected at most max_num_players={self.players.max_num_players} players with a row on one step "
                f"(those who end on it included), got {len(shown)}: {list(shown)}; make the pool with more"
            )
        for buffer in (self._player, self._reward, self._terminated, self._truncated):
            buffer[:] = 0
        for stack in self._stacks:
            stack.clear()
        for agent in shown:
            seat = self._seats.get(agent, -1)
            if seat < 0:
                seat = self._take_seat(agent)
            place = self._places[agent]
            self._player[seat] = place + 1
            self._reward[seat] = rewards.get(agent, 0.0)
            self._terminated[seat] = bool(terminations.get(agent, False))
            self._truncated[seat] = bool(truncations.get(agent, False))
            group = self._group_of[place]
            if agent in observations:
                row = seat - self.players.groups[group].first_seat
                self._stacks[group].write(row, observations[agent], agent)
            elif agent not in self._leaving:
                raise PlayerError(
                    f"expected an observation of every agent in env.agents, got none of {agent!r}; "
                    "return one, or take it out of env.agents"
                )

    def _take_seat(self, agent: AgentId) -> int:
        place = self._places.get(agent)
        if place is None:
            raise PlayerError(
                f"expected agents of possible_agents, got {agent!r} in env.agents; name it in possible_agents"
            )
        group = self.players.groups[self._group_of[place]]
        free = self._free[self._group_of[place]]
        # max_num_players bounds the players of all groups, and each group has as many seats or one for everybody.
        if group.is_fixed:
            seat = group.first_seat + group.agents.index(place)
        elif free:
            seat = heapq.heappop(free)
        else:
            raise PlayerError(
                f"expected a free seat for {agent!r}, all {group.num_seats} of its group are taken; "
                "make the pool with a larger max_num_players"
            )
        self._seats[agent] = seat
        return seat

    def _action_of(self, agent: AgentId, actions: Any) -> Any:
        k = self._group_of[self._places[agent]]
        own = actions if len(self._stacks) == 1 else actions[k]
        return self._action_rows[k](own, self._seats[agent] - self.players.groups[k].first_seat)

    def _observation(self) -> dict[str, Any]:
        return {
            "player": self._player,
            "reward": self._reward,
            "terminated": self._terminated,
            "truncated": self._truncated,
            "obs": tuple([stack.value for stack in self._stacks]),
        }


class _Stack:
    """The observations of a group: an array for each leaf of its space, a row for each seat."""

    def __init__(self, space: gymnasium.Space[Any], num_seats: int) -> None:
        self._split = split(space, "the observation")
        self._leaves = leaves_of(space)
        self._columns = [np.zeros((num_seats, *leaf.shape), dtype=leaf.dtype) for leaf in self._leaves]
        self.value = join(space)(self._columns)

    def clear(self) -> None:
        for column in self._columns:
            column[:] = 0

    def write(self, row: int, observation: Any, agent: AgentId) -> None:
        try:
            values = self._split(observation)
        except ValueError as error:
            raise PlayerError(f"agent {agent!r}: {error}; return what observation_space({agent!r}) says") from None
        for leaf, column, value in zip(self._leaves, self._columns, values, strict=True):
            array = np.asarray(value)
            if array.shape != leaf.shape or not np.can_cast(array.dtype, leaf.dtype, "same_kind"):
                raise PlayerError(
                    f"expected the observation{path_text(leaf.path)} of agent {agent!r} of shape {leaf.shape} and "
                    f"dtype {leaf.dtype}, got {array.shape} and {array.dtype}; "
                    f"return what observation_space({agent!r}) says"
                )
            column[row] = array
