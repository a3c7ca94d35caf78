"""Reading: what a batch of seats says of each agent, in arrays of shape (rows, agents).

Seats are how players travel; nobody beyond this file has to know who sits where.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.apis.pettingzoo.players import Group
from envfleet.batch import Batch
from envfleet.spaces import join, split

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Reading:
    """Who is there in each row, and what befell them.

    present: has a value in this row. alive: goes on, so its next action counts. seat: where its
    observation is, -1 for none. last_seat: likewise in batch.final, of an episode that ended in
    a same_step row; reward and flags are that episode's then, observations the next one's.
    """

    present: Flags
    alive: Flags
    reward: NDArray[np.float64]
    terminated: Flags
    truncated: Flags
    seat: NDArray[np.intp]
    last_seat: NDArray[np.intp]


def read(batch: Batch, num_agents: int, lived: Flags) -> Reading:
    """lived: who was alive before, in the rows of this batch."""
    ended = batch.terminated | batch.truncated
    seat = _seats(batch.obs["player"], num_agents)
    last_seat = np.full_like(seat, -1)
    reward, terminated, truncated = _values(batch.obs, seat)
    present = seat >= 0
    # An env that raised and was restarted has no last row: its players end here, with nothing to show.
    lost = np.zeros_like(present)
    if "_error" in batch.info:
        failed = batch.info["_error"] & batch.truncated
        lost = lived & failed[:, None]
    else:
        failed = np.zeros_like(ended)
    starts_anew = np.zeros_like(present)
    if batch.final is not None and ended.any():
        has_last = (ended & ~failed)[:, None]
        last_seat = np.where(has_last, _seats(batch.final.obs["player"], num_agents), -1)
        last = _values(batch.final.obs, last_seat)
        reward, terminated, truncated = (
            np.where(has_last, new, old) for new, old in zip(last, (reward, terminated, truncated), strict=True)
        )
        starts_anew = present & ended[:, None]
        played = np.where(ended[:, None], last_seat >= 0, present) | lost
    else:
        played = present | lost
    # The pool's own time limit, or a restart, ends an episode that its players would have gone on with.
    truncated = truncated | (played & ended[:, None] & ~terminated)
    alive = (played & ~terminated & ~truncated) | starts_anew
    return Reading(present | played, alive, reward, terminated, truncated, seat, last_seat)


def _seats(player: NDArray[np.int32], num_agents: int) -> NDArray[np.intp]:
    """The seat of each agent, -1 where it has none."""
    seats = np.full((len(player), num_agents), -1, dtype=np.intp)
    rows, taken = np.nonzero(player)
    seats[rows, player[rows, taken] - 1] = taken
    return seats


def _values(obs: Any, seat: NDArray[np.intp]) -> tuple[NDArray[np.float64], Flags, Flags]:
    rows = np.arange(len(seat))[:, None]
    found = seat >= 0
    reward = np.where(found, obs["reward"][rows, seat], 0.0)
    terminated, truncated = (found & obs[name][rows, seat].astype(np.bool_) for name in ("terminated", "truncated"))
    return reward, terminated, truncated


def gathered(group: Group, stack: Any, rows: NDArray[Any], seats: NDArray[np.intp]) -> Any:
    """The observations in these rows and seats of a group's stack; zeros for seat -1."""
    nobody = seats < 0
    local = np.where(nobody, 0, seats - group.first_seat)
    columns = []
    for column in split(group.observation_space)(stack):
        values = column[rows, local]
        values[nobody] = 0
        columns.append(values)
    return join(group.observation_space)(columns)


def of_agent(group: Group, stack: Any, agent: int, seats: NDArray[np.intp], always_gather: bool) -> Any:
    """One agent's observations in all rows; zeros where it has none."""
    if always_gather or not group.is_fixed:
        return gathered(group, stack, np.arange(len(seats)), seats)
    # Its own seat always, and zeros there while it is away: a view will do.
    own = group.agents.index(agent)
    return join(group.observation_space)([column[:, own] for column in split(group.observation_space)(stack)])
