"""AgentsPool and PlayerRowsPool: multi-agent pools as dicts by agent, or as rows of players.

Both keep track of the agents that are alive in each env and of their slots, which is where their actions go.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Generic, TypeVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from envfleet.apis.common.view import PoolView
from envfleet.apis.pettingzoo.players import (
    AgentId,
    AgentRows,
    Flags,
    Group,
    Players,
    agent_observations,
    agent_rows_of,
    gather_observations,
    idle_value,
    split_infos,
)
from envfleet.core.batch import Batch
from envfleet.core.errors import ActionError, ConfigError, EnvError
from envfleet.core.infos import merge, split_rows, with_env_info
from envfleet.core.pool import Pool
from envfleet.core.seeding import Seed
from envfleet.core.spaces import join, leaves_of, split
from envfleet.core.validation import check_actions

T = TypeVar("T")
Step = tuple[T, T, T, T, dict[str, Any]]


class PlayersPool(PoolView, ABC, Generic[T]):
    """num_envs multi-agent envs. Subclasses define the layout of rows and actions."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.num_envs = pool.num_envs
        self.spec = pool.spec
        every: tuple[Players, ...] = pool.get_attr("players")
        self.players = every[0]
        for env_id, own in enumerate(every):
            if own != self.players:
                raise ConfigError(
                    f"make_pettingzoo() expected the same possible_agents and spaces in all envs, env 0 has "
                    f"{list(self.players.agents)} and env {env_id} has {list(own.agents)}; make a pool per kind"
                )
        self.possible_agents: list[AgentId] = list(self.players.agents)
        self.max_num_players = self.players.max_num_players
        size = (self.num_envs, len(self.possible_agents))
        self._group_of = [self.players.group_of(index) for index in range(size[1])]
        # From each env's latest row: which agents had one, whose next action counts, and their slots.
        self._present = np.zeros(size, dtype=np.bool_)
        self._alive = np.zeros(size, dtype=np.bool_)
        self._slot = np.full(size, -1, dtype=np.intp)

    @property
    def config(self) -> dict[str, Any]:
        """The pool's options and the env's parameters, as EnvPool's flat dict."""
        return {**self.pool.spec.config, "max_num_players": self.max_num_players}

    def observation_space(self, agent: AgentId) -> gymnasium.Space[Any]:
        """Return the space of an agent's observations."""
        return self._group(agent).observation_space

    def action_space(self, agent: AgentId) -> gymnasium.Space[Any]:
        """Return the space of an agent's actions."""
        return self._group(agent).action_space

    # --- stepping ------------------------------------------------------------------------------

    def reset(
        self, env_id: Any = None, *, seed: Seed = None, options: Mapping[str, Any] | None = None
    ) -> tuple[T, dict[str, Any]]:
        """Reset all envs, or those of env_id, and return their rows."""
        obs, _, _, _, info = self._receive(lambda: self.pool.reset(env_id, seed=seed, options=options))
        return obs, info

    def step(self, actions: Any, env_id: Any = None, *, timeout: float | None = None) -> Step[T]:
        """Step all envs, or those of env_id. On an asynchronous pool: send() and recv()."""
        in_slots, ids = self._slot_actions("step()", actions, env_id)
        return self._receive(lambda: self.pool.step(in_slots, ids, timeout))

    def async_reset(self, *, seed: Seed = None, options: Mapping[str, Any] | None = None) -> None:
        """Start a reset of all envs; recv() returns their rows."""
        self.pool.async_reset(seed=seed, options=options)

    def send(self, actions: Any, env_id: Any = None) -> None:
        """Start a step of these envs without waiting for it."""
        self.pool.send(*self._slot_actions("send()", actions, env_id))

    def recv(self, timeout: float | None = None) -> Step[T]:
        """Receive the envs that are ready; info["env_id"] tells which they are."""
        return self._receive(lambda: self.pool.recv(timeout))

    def show(self, batch: Batch) -> Step[T]:
        """Convert a batch of the pool, such as EnvError.batch, to this view's layout."""
        return self._to_step(batch, self._agent_rows(batch))

    def _receive(self, take: Any) -> Step[T]:
        try:
            batch = take()
        except EnvError as error:
            # The other envs have stepped, so their agents' state has changed.
            if error.batch is not None:
                self._update_agents(error.batch, self._agent_rows(error.batch))
            raise
        agent_rows = self._agent_rows(batch)
        self._update_agents(batch, agent_rows)
        return self._to_step(batch, agent_rows)

    def _agent_rows(self, batch: Batch) -> AgentRows:
        return agent_rows_of(batch, len(self.possible_agents), self._alive[batch.env_id])

    def _update_agents(self, batch: Batch, agent_rows: AgentRows) -> None:
        self._present[batch.env_id] = agent_rows.present
        self._alive[batch.env_id] = agent_rows.alive
        self._slot[batch.env_id] = agent_rows.slot

    @abstractmethod
    def _to_step(self, batch: Batch, agent_rows: AgentRows) -> Step[T]:
        """Return the batch in this view's layout."""

    # --- actions -------------------------------------------------------------------------------

    def _slot_actions(self, call: str, actions: Any, env_id: Any) -> tuple[Any, NDArray[np.int32] | None]:
        """Return the actions in the form that the pool accepts, one row per slot, and the env ids."""
        if env_id is None:
            ids, all_ids = None, np.arange(self.num_envs, dtype=np.int32)
        else:
            ids = all_ids = self.pool.check_env_ids(call, env_id)
        slots = [ActionSlots(group, len(all_ids)) for group in self.players.groups]
        self._write_actions(call, actions, all_ids, slots)
        values = [own.value for own in slots]
        return values[0] if len(values) == 1 else tuple(values), ids

    @abstractmethod
    def _write_actions(self, call: str, actions: Any, ids: NDArray[np.int32], slots: list[ActionSlots]) -> None:
        """Check the actions of these envs and write them into the slots."""

    def _group(self, agent: AgentId) -> Group:
        if agent not in self.possible_agents:
            raise ConfigError(f"expected one of possible_agents, got {agent!r}; they are {self.possible_agents}")
        return self.players.groups[self._group_of[self.possible_agents.index(agent)]]

    # --- the rest of the pool ------------------------------------------------------------------

    def render(self) -> tuple[Any, ...]:
        """Return what each env renders."""
        return self.pool.render_all()

    def close(self) -> None:
        """Close the pool."""
        self.pool.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class ActionSlots:
    """The actions of a group's slots in some rows; legal placeholders until they are set."""

    def __init__(self, group: Group, num_rows: int) -> None:
        self._group = group
        self._columns = []
        for leaf in leaves_of(group.action_space):
            idle = idle_value(leaf.space)
            self._columns.append(np.broadcast_to(idle, (num_rows, group.num_slots, *leaf.shape)).copy())
        self.value = join(group.action_space)(self._columns)

    def put(self, rows: NDArray[np.intp], slots: NDArray[np.intp], checked: Any) -> None:
        """Write actions as check_actions() returns them: an array, or one column per leaf."""
        columns = checked if isinstance(checked, list) else [checked]
        for column, values in zip(self._columns, columns, strict=True):
            column[rows, slots - self._group.first_slot] = values


ByAgent = dict[AgentId, Any]


class AgentsPool(PlayersPool[ByAgent]):
    """A pool of multi-agent envs that returns dicts by agent of arrays over the envs. Made by make_pettingzoo().

    Row i of obs[agent], reward[agent], terminated[agent] and truncated[agent] is env i (or `info["env_id"][i]`).
    `info["present"][agent]` tells in which rows the agent has values; all others are zeros.
    `info["alive"][agent]` tells where its next action counts. `info["agents"][agent]` holds its infos.
    """

    def _to_step(self, batch: Batch, agent_rows: AgentRows) -> Step[ByAgent]:
        own_infos, env_info = split_infos(batch.info, len(self.possible_agents))
        own: dict[str, Any] = {
            "env_id": batch.env_id,
            "elapsed_step": batch.elapsed_step,
            "present": self._by_agent(agent_rows.present),
            "alive": self._by_agent(agent_rows.alive),
            "agents": dict(zip(self.possible_agents, own_infos, strict=True)),
        }
        info = with_env_info(own, env_info)
        ended = batch.terminated | batch.truncated
        if batch.final is not None and ended.any():
            last_infos, last_env_info = split_infos(batch.final.info, len(self.possible_agents))
            info["final_obs"] = self._observations(batch.final.obs, agent_rows.last_slot, always_gather=True)
            info["_final_obs"] = self._by_agent(agent_rows.last_slot >= 0)
            by_agent = dict(zip(self.possible_agents, last_infos, strict=True))
            info["final_info"] = with_env_info({"agents": by_agent}, last_env_info)
        return (
            self._observations(batch.obs, agent_rows.slot),
            self._by_agent(agent_rows.reward),
            self._by_agent(agent_rows.terminated),
            self._by_agent(agent_rows.truncated),
            info,
        )

    def _observations(self, obs: Any, slot: NDArray[np.intp], always_gather: bool = False) -> ByAgent:
        found: ByAgent = {}
        for index, agent in enumerate(self.possible_agents):
            k = self._group_of[index]
            found[agent] = agent_observations(
                self.players.groups[k], obs["obs"][k], index, slot[:, index], always_gather
            )
        return found

    def _by_agent(self, values: NDArray[Any]) -> ByAgent:
        return {agent: values[:, index] for index, agent in enumerate(self.possible_agents)}

    def _write_actions(self, call: str, actions: Any, ids: NDArray[np.int32], slots: list[ActionSlots]) -> None:
        if not isinstance(actions, Mapping):
            raise ActionError(f"{call} expected actions as a dict by agent, got {type(actions).__name__}")
        unknown = [agent for agent in actions if agent not in self.possible_agents]
        if unknown:
            raise ActionError(
                f"{call} expected actions of agents in possible_agents, got {unknown[0]!r}; "
                f"they are {self.possible_agents}"
            )
        alive, slot = self._alive[ids], self._slot[ids]
        for index, agent in enumerate(self.possible_agents):
            rows = np.flatnonzero(alive[:, index])
            if agent in actions:
                checked = self._checked(call, agent, index, actions[agent], ids, alive[:, index])
                slots[self._group_of[index]].put(rows, slot[rows, index], checked)
            elif rows.size:
                raise ActionError(
                    f"{call} expected actions of {agent!r}, which is alive in env {ids[rows[0]]}, got none; "
                    "pass actions for every agent that is alive in some env (info['alive'])"
                )

    def _checked(self, call: str, agent: AgentId, index: int, given: Any, ids: NDArray[np.int32], alive: Flags) -> Any:
        """Check and return the actions of the rows in which the agent is alive; the others are ignored."""
        space = self.players.groups[self._group_of[index]].action_space
        return _checked_rows(
            f"{call} of agent {agent!r}", given, space, ids, alive, "one per env", "pass one row per env"
        )


class PlayerRowsPool(PlayersPool[Any]):
    """A pool of multi-agent envs that returns one row per player with values, env by env. Made by make_pettingzoo().

    info["players.env_id"] and info["players.id"] (int32) tell which env and which agent
    (possible_agents[id]) a row belongs to. info["env_id"], info["elapsed_step"] and everything under "env." have one
    row per env. Actions: one row per row of these envs' last batch; those of players that ended are ignored.
    """

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool)
        if len(self.players.groups) > 1:
            kinds = [f"{self.players.agents[own.agents[0]]!r}: {own.observation_space}" for own in self.players.groups]
            raise ConfigError(
                f"layout='rows' expected the same spaces for all agents, got {len(kinds)} kinds ({'; '.join(kinds)}); "
                "use layout='agents', or wrap the env to pad them"
            )
        self._only = self.players.groups[0]
        self.single_observation_space = self._only.observation_space
        self.single_action_space = self._only.action_space

    def _to_step(self, batch: Batch, agent_rows: AgentRows) -> Step[Any]:
        rows, indices = np.nonzero(agent_rows.present)
        own_infos, env_info = split_infos(batch.info, len(self.possible_agents))
        own: dict[str, Any] = {
            "env_id": batch.env_id,
            "elapsed_step": batch.elapsed_step,
            "players.env_id": batch.env_id[rows],
            "players.id": indices.astype(np.int32),
            "env.terminated": batch.terminated,
            "env.truncated": batch.truncated,
            **{f"{'_' * (key[:1] == '_')}env.{key.lstrip('_')}": column for key, column in env_info.items()},
        }
        info = with_env_info(own, merge(_rows_of(own_infos, rows, indices)))
        if batch.final is not None and (batch.terminated | batch.truncated).any():
            last_slot = agent_rows.last_slot[rows, indices]
            last_infos, _ = split_infos(batch.final.info, len(self.possible_agents))
            info["final_obs"] = gather_observations(self._only, batch.final.obs["obs"][0], rows, last_slot)
            info["_final_obs"] = last_slot >= 0
            last = _rows_of(last_infos, rows, indices)
            info["final_info"] = merge([own if slot >= 0 else None for own, slot in zip(last, last_slot, strict=True)])
        return (
            gather_observations(self._only, batch.obs["obs"][0], rows, agent_rows.slot[rows, indices]),
            agent_rows.reward[rows, indices],
            agent_rows.terminated[rows, indices],
            agent_rows.truncated[rows, indices],
            info,
        )

    def _write_actions(self, call: str, actions: Any, ids: NDArray[np.int32], slots: list[ActionSlots]) -> None:
        rows, indices = np.nonzero(self._present[ids])
        acts = self._alive[ids][rows, indices]
        meaning = "one per player row in these envs' last batch"
        remedy = "pass one row per item of info['players.id'], in that order"
        checked = _checked_rows(call, actions, self.single_action_space, ids[rows], acts, meaning, remedy)
        rows, indices = rows[acts], indices[acts]
        slots[0].put(rows, self._slot[ids][rows, indices], checked)


def _checked_rows(
    call: str,
    actions: Any,
    space: gymnasium.Space[Any],
    ids: NDArray[np.int32],
    acts: Flags,
    meaning: str,
    remedy: str,
) -> Any:
    """Check and return the actions of the rows that act; there must be one row per id."""
    try:
        columns = [np.asarray(column) for column in split(space, "actions")(actions)]
    except ValueError as error:
        raise ActionError(f"{call} {error}; {remedy}") from None
    for column in columns:
        if column.ndim == 0 or len(column) != len(ids):
            raise ActionError(
                f"{call} expected actions with {len(ids)} rows, {meaning}, got shape {column.shape}; {remedy}"
            )
    return check_actions(call, join(space)([column[acts] for column in columns]), space, int(acts.sum()), ids[acts])


def _rows_of(infos: list[dict[str, Any]], rows: NDArray[Any], indices: NDArray[Any]) -> list[dict[str, Any] | None]:
    """Return the info of each player's row."""
    if not any(infos):
        return [None] * len(rows)
    return [split_rows(infos[index], int(row)) or None for row, index in zip(rows, indices, strict=True)]
