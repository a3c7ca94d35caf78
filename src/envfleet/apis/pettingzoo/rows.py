"""PlayerRowsPool: a multi-agent pool as EnvPool lays one out: a row for each player who is there."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.apis.pettingzoo.infos import split_infos
from envfleet.apis.pettingzoo.reading import Reading, gathered
from envfleet.apis.pettingzoo.view import ActionSeats, PlayersPool, Step
from envfleet.batch import Batch
from envfleet.errors import ActionError, ConfigError
from envfleet.infos import merge, split_rows
from envfleet.pool import Pool
from envfleet.spaces import join, split
from envfleet.validation import check_actions


class PlayerRowsPool(PlayersPool[Any]):
    """obs, reward, terminated, truncated: a row for each player with values, env by env.

    info["players.env_id"] and info["players.id"] (int32) say which env and which agent
    (possible_agents[id]) a row belongs to. info["env_id"] and info["elapsed_step"] have a row for
    each env, as has everything under "env.".
    Actions: one row for each row that these envs gave last; of players who ended they are ignored.
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

    def _shown(self, batch: Batch, reading: Reading) -> Step[Any]:
        rows, places = np.nonzero(reading.present)
        own_infos, env_info = split_infos(batch.info, len(self.possible_agents))
        info: dict[str, Any] = {
            "env_id": batch.env_id,
            "elapsed_step": batch.elapsed_step,
            "players.env_id": batch.env_id[rows],
            "players.id": places.astype(np.int32),
            "env.terminated": batch.terminated,
            "env.truncated": batch.truncated,
            **{f"{'_' * (key[:1] == '_')}env.{key.lstrip('_')}": column for key, column in env_info.items()},
        }
        merge(_rows_of(own_infos, rows, places), info)
        if batch.final is not None and (batch.terminated | batch.truncated).any():
            last_seat = reading.last_seat[rows, places]
            last_infos, _ = split_infos(batch.final.info, len(self.possible_agents))
            info["final_obs"] = gathered(self._only, batch.final.obs["obs"][0], rows, last_seat)
            info["_final_obs"] = last_seat >= 0
            last = _rows_of(last_infos, rows, places)
            info["final_info"] = merge([own if seat >= 0 else None for own, seat in zip(last, last_seat, strict=True)])
        return (
            gathered(self._only, batch.obs["obs"][0], rows, reading.seat[rows, places]),
            reading.reward[rows, places],
            reading.terminated[rows, places],
            reading.truncated[rows, places],
            info,
        )

    def _place(self, call: str, actions: Any, ids: NDArray[np.int32], seats: list[ActionSeats]) -> None:
        rows, places = np.nonzero(self._present[ids])
        space = self.single_action_space
        try:
            columns = [np.asarray(column) for column in split(space, "actions")(actions)]
        except ValueError as error:
            raise ActionError(f"{call} {error}; pass one row for each player") from None
        for column in columns:
            if column.ndim == 0 or len(column) != len(rows):
                raise ActionError(
                    f"{call} expected actions with {len(rows)} rows, one for each row that these {len(ids)} envs gave "
                    f"last, got shape {column.shape}; pass as many as info['players.id'] had, in its order"
                )
        acts = self._alive[ids][rows, places]
        rows, places = rows[acts], places[acts]
        checked = check_actions(call, join(space)([column[acts] for column in columns]), space, len(rows), ids[rows])
        seats[0].put(rows, self._seat[ids][rows, places], checked)


def _rows_of(infos: list[dict[str, Any]], rows: NDArray[Any], places: NDArray[Any]) -> list[dict[str, Any] | None]:
    """The info of each player's row."""
    if not any(infos):
        return [None] * len(rows)
    return [split_rows(infos[place], int(row)) or None for row, place in zip(rows, places, strict=True)]
