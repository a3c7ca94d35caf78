"""PlayersPool: what the two views of a multi-agent pool share.

They keep one thing of their own: who lives in which env and where, since an action has to find
its player's seat.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Generic, TypeVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from envfleet.apis.pettingzoo.players import AgentId, Group, Players, idle_value
from envfleet.apis.pettingzoo.reading import Reading, read
from envfleet.apis.view import PoolView
from envfleet.batch import Batch
from envfleet.errors import ConfigError, EnvError
from envfleet.pool import Pool
from envfleet.seeding import Seed
from envfleet.spaces import join, leaves_of

T = TypeVar("T")
Step = tuple[T, T, T, T, dict[str, Any]]


class PlayersPool(PoolView, Generic[T]):
    """num_envs multi-agent envs. A view says how rows are shown and actions are read."""

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
                    f"{list(self.players.agents)} and env {env_id} has {list(own.agents)}; make a pool for each"
                )
        self.possible_agents: list[AgentId] = list(self.players.agents)
        self.max_num_players = self.players.max_num_players
        size = (self.num_envs, len(self.possible_agents))
        self._group_of = [self.players.group_of(place) for place in range(size[1])]
        # Of each env's latest row: who had one, whose next action counts, and where they sit.
        self._present = np.zeros(size, dtype=np.bool_)
        self._alive = np.zeros(size, dtype=np.bool_)
        self._seat = np.full(size, -1, dtype=np.intp)

    @property
    def config(self) -> dict[str, Any]:
        """The pool's options and the env's parameters, as EnvPool's flat dict."""
        return {**self.pool.spec.config, "max_num_players": self.max_num_players}

    def observation_space(self, agent: AgentId) -> gymnasium.Space[Any]:
        """The space of one observation of an agent."""
        return self._group(agent).observation_space

    def action_space(self, agent: AgentId) -> gymnasium.Space[Any]:
        """The space of one action of an agent."""
        return self._group(agent).action_space

    # --- stepping ------------------------------------------------------------------------------

    def reset(
        self, env_id: Any = None, *, seed: Seed = None, options: Mapping[str, Any] | None = None
    ) -> tuple[T, dict[str, Any]]:
        """Resets all envs, or those of env_id, whose rows alone come back."""
        obs, _, _, _, info = self._taken(lambda: self.pool.reset(env_id, seed=seed, options=options))
        return obs, info

    def step(self, actions: Any, env_id: Any = None, *, timeout: float | None = None) -> Step[T]:
        """Steps all envs, or those of env_id. On an asynchronous pool: send() and recv()."""
        in_seats, ids = self._placed("step()", actions, env_id)
        return self._taken(lambda: self.pool.step(in_seats, ids, timeout))

    def async_reset(self, *, seed: Seed = None, options: Mapping[str, Any] | None = None) -> None:
        """Starts a reset of all envs; recv() gives their rows."""
        self.pool.async_reset(seed=seed, options=options)

    def send(self, actions: Any, env_id: Any = None) -> None:
        """Starts a step of these envs and returns."""
        self.pool.send(*self._placed("send()", actions, env_id))

    def recv(self, timeout: float | None = None) -> Step[T]:
        """The envs that are ready; info["env_id"] says which they are."""
        return self._taken(lambda: self.pool.recv(timeout))

    def show(self, batch: Batch) -> Step[T]:
        """A batch of the pool as this view has it; for EnvError.batch, whose rows no call returned."""
        return self._shown(batch, self._read(batch))

    def _taken(self, take: Any) -> Step[T]:
        try:
            batch = take()
        except EnvError as error:
            # The other envs have moved on, and their players with them.
            if error.batch is not None:
                self._remember(error.batch, self._read(error.batch))
            raise
        reading = self._read(batch)
        self._remember(batch, reading)
        return self._shown(batch, reading)

    def _read(self, batch: Batch) -> Reading:
        return read(batch, len(self.possible_agents), self._alive[batch.env_id])

    def _remember(self, batch: Batch, reading: Reading) -> None:
        self._present[batch.env_id] = reading.present
        self._alive[batch.env_id] = reading.alive
        self._seat[batch.env_id] = reading.seat

    def _shown(self, batch: Batch, reading: Reading) -> Step[T]:
        raise NotImplementedError

    # --- actions -------------------------------------------------------------------------------

    def _placed(self, call: str, actions: Any, env_id: Any) -> tuple[Any, NDArray[np.int32] | None]:
        """The actions as the pool takes them, a row a seat, and its env ids."""
        if env_id is None:
            ids, all_ids = None, np.arange(self.num_envs, dtype=np.int32)
        else:
            ids = all_ids = self.pool.check_env_ids(call, env_id)
        seats = [ActionSeats(group, len(all_ids)) for group in self.players.groups]
        self._place(call, actions, all_ids, seats)
        values = [own.value for own in seats]
        return values[0] if len(values) == 1 else tuple(values), ids

    def _place(self, call: str, actions: Any, ids: NDArray[np.int32], seats: list[ActionSeats]) -> None:
        raise NotImplementedError

    def _group(self, agent: AgentId) -> Group:
        if agent not in self.possible_agents:
            raise ConfigError(f"expected one of possible_agents, got {agent!r}; they are {self.possible_agents}")
        return self.players.groups[self._group_of[self.possible_agents.index(agent)]]

    # --- the rest of the pool ------------------------------------------------------------------

    def render(self) -> tuple[Any, ...]:
        """What each env draws."""
        return self.pool.render_all()

    def close(self) -> None:
        """Closes the pool."""
        self.pool.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class ActionSeats:
    """The actions of a group's seats in some rows: legal ones that nobody reads, until they are set."""

    def __init__(self, group: Group, num_rows: int) -> None:
        self._group = group
        self._columns = []
        for leaf in leaves_of(group.action_space):
            idle = idle_value(leaf.space)
            self._columns.append(np.broadcast_to(idle, (num_rows, group.num_seats, *leaf.shape)).copy())
        self.value = join(group.action_space)(self._columns)

    def put(self, rows: NDArray[np.intp], seats: NDArray[np.intp], checked: Any) -> None:
        """checked: from check_actions(): an array, or a column for each leaf."""
        columns = checked if isinstance(checked, list) else [checked]
        for column, values in zip(self._columns, columns, strict=True):
            column[rows, seats - self._group.first_seat] = values
