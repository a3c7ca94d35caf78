"""AgentsPool: a multi-agent pool by name, as ParallelEnv.step but with arrays over the envs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.apis.pettingzoo.infos import split_infos
from envfleet.apis.pettingzoo.players import AgentId
from envfleet.apis.pettingzoo.reading import Flags, Reading, of_agent
from envfleet.apis.pettingzoo.view import ActionSeats, PlayersPool, Step
from envfleet.batch import Batch
from envfleet.errors import ActionError
from envfleet.spaces import join, split
from envfleet.validation import check_actions

ByAgent = dict[AgentId, Any]


class AgentsPool(PlayersPool[ByAgent]):
    """obs, reward, terminated, truncated: dicts by agent of arrays, row i of env i (or info["env_id"][i]).

    info["present"][agent] says in which rows the agent has values; all others are zeros.
    info["alive"][agent] says where its next action counts. info["agents"][agent] holds its infos.
    """

    def _shown(self, batch: Batch, reading: Reading) -> Step[ByAgent]:
        own_infos, env_info = split_infos(batch.info, len(self.possible_agents))
        info: dict[str, Any] = {
            **env_info,
            "env_id": batch.env_id,
            "elapsed_step": batch.elapsed_step,
            "present": self._by_agent(reading.present),
            "alive": self._by_agent(reading.alive),
            "agents": dict(zip(self.possible_agents, own_infos, strict=True)),
        }
        ended = batch.terminated | batch.truncated
        if batch.final is not None and ended.any():
            last_infos, last_env_info = split_infos(batch.final.info, len(self.possible_agents))
            info["final_obs"] = self._observations(batch.final.obs, reading.last_seat, always_gather=True)
            info["_final_obs"] = self._by_agent(reading.last_seat >= 0)
            info["final_info"] = {**last_env_info, "agents": dict(zip(self.possible_agents, last_infos, strict=True))}
        return (
            self._observations(batch.obs, reading.seat),
            self._by_agent(reading.reward),
            self._by_agent(reading.terminated),
            self._by_agent(reading.truncated),
            info,
        )

    def _observations(self, obs: Any, seat: NDArray[np.intp], always_gather: bool = False) -> ByAgent:
        found: ByAgent = {}
        for place, agent in enumerate(self.possible_agents):
            k = self._group_of[place]
            found[agent] = of_agent(self.players.groups[k], obs["obs"][k], place, seat[:, place], always_gather)
        return found

    def _by_agent(self, values: NDArray[Any]) -> ByAgent:
        return {agent: values[:, place] for place, agent in enumerate(self.possible_agents)}

    def _place(self, call: str, actions: Any, ids: NDArray[np.int32], seats: list[ActionSeats]) -> None:
        if not isinstance(actions, Mapping):
            raise ActionError(f"{call} expected actions as a dict by agent, got {type(actions).__name__}")
        unknown = [agent for agent in actions if agent not in self.possible_agents]
        if unknown:
            raise ActionError(
                f"{call} expected actions of agents in possible_agents, got {unknown[0]!r}; "
                f"they are {self.possible_agents}"
            )
        alive, seat = self._alive[ids], self._seat[ids]
        for place, agent in enumerate(self.possible_agents):
            rows = np.flatnonzero(alive[:, place])
            if agent in actions:
                checked = self._checked(call, agent, place, actions[agent], ids, alive[:, place])
                seats[self._group_of[place]].put(rows, seat[rows, place], checked)
            elif rows.size:
                raise ActionError(
                    f"{call} expected actions of {agent!r}, which is alive in env {ids[rows[0]]}, got none; "
                    "pass those of every agent that info['alive'] has anywhere"
                )

    def _checked(self, call: str, agent: AgentId, place: int, given: Any, ids: NDArray[np.int32], alive: Flags) -> Any:
        """The actions of the rows where the agent lives; what stands in the others is not looked at."""
        space = self.players.groups[self._group_of[place]].action_space
        call = f"{call} of agent {agent!r}"
        try:
            columns = [np.asarray(column) for column in split(space, "actions")(given)]
        except ValueError as error:
            raise ActionError(f"{call} {error}; pass one row for each env") from None
        for column in columns:
            if column.ndim == 0 or len(column) != len(ids):
                raise ActionError(
                    f"{call} expected actions with {len(ids)} rows, one for each env, got shape {column.shape}"
                )
        subset = join(space)([column[alive] for column in columns])
        return check_actions(call, subset, space, int(alive.sum()), ids[alive])
