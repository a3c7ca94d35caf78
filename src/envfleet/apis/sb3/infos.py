"""Batches' infos as Stable-Baselines3 has them: a list of dicts, made anew at every step.

For cheap envs this list is most of what a step costs. So the common case, an env without infos in
the midst of its episode, is one comprehension, and columns are turned into Python values whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.batch import Batch
from envfleet.spaces import join, leaves_of, split

Info = dict[str, Any]

_TIME_LIMIT = "TimeLimit.truncated"
_TERMINAL_OBS = "terminal_observation"
# What Python's own numbers become in a column; they leave it as they came. Others stay numpy's.
_PLAIN = frozenset(map(np.dtype, (np.float64, np.int64, np.bool_)))
_OBJECT = np.dtype(object)


class InfoLists:
    """Makes the info dicts of batches that hold all envs, row i of env i.

    copies_objects: for envs of this process, which may change an object of theirs after they gave it.
    """

    def __init__(self, observation_space: gymnasium.Space[Any], num_envs: int, copies_objects: bool = False) -> None:
        self._rows = range(num_envs)
        self._copies_objects = copies_objects
        self._terminal_obs = _terminal_obs_of(observation_space)

    def of_reset(self, batch: Batch) -> list[Info]:
        """The infos of a reset."""
        infos: list[Info] = [{} for _ in range(len(batch))]
        self._add(batch.info, infos)
        return infos

    def of_step(self, batch: Batch, dones: NDArray[np.bool_], reset_infos: list[Info]) -> list[Info]:
        """The infos of a step; those of the resets in it go to their place in reset_infos."""
        infos: list[Info] = [{_TIME_LIMIT: False} for _ in self._rows]
        if batch.info:
            self._add(batch.info, infos)
            if _TIME_LIMIT in batch.info:  # an env's own
                for info in infos:
                    info[_TIME_LIMIT] = False
        ended = dones.nonzero()[0].tolist()
        if ended:
            self._end(batch, ended, infos, reset_infos)
        return infos

    def _end(self, batch: Batch, ended: list[int], infos: list[Info], reset_infos: list[Info]) -> None:
        """Puts the infos of last steps in the place of those of the resets that followed."""
        final = batch.final
        assert final is not None, "a pool in same_step mode has final rows"
        for row in ended:
            first = infos[row]
            del first[_TIME_LIMIT]
            last = self._row(final.info, row) if final.info else {}
            last[_TIME_LIMIT] = bool(batch.truncated[row] and not batch.terminated[row])
            last[_TERMINAL_OBS] = self._terminal_obs(final.obs, row)
            if "error" in first and "error" not in last:  # of an env that was restarted
                last["error"] = first.pop("error")
            infos[row], reset_infos[row] = last, first

    def _add(self, columns: Mapping[str, Any], infos: list[Info]) -> None:
        """Gives each row its values of the columns."""
        for key, column in columns.items():
            if _is_mask(key, columns):
                continue
            mask = columns.get(f"_{key}")
            if isinstance(column, dict):
                rows: Iterable[int] = self._rows if mask is None else mask.nonzero()[0].tolist()
                for row in rows:
                    infos[row][key] = self._row(column, row)
                continue
            values = self._values(column)
            if mask is None or mask.all():
                for info, value in zip(infos, values, strict=True):
                    info[key] = value
            else:
                for row in mask.nonzero()[0].tolist():
                    infos[row][key] = values[row]

    def _values(self, column: NDArray[Any]) -> list[Any]:
        if column.ndim == 1 and column.dtype in _PLAIN:
            values: list[Any] = column.tolist()
            return values
        if column.dtype == _OBJECT and self._copies_objects:
            return [deepcopy(value) for value in column]
        return list(column)

    def _row(self, columns: Mapping[str, Any], row: int) -> Info:
        """One row's values of the columns."""
        own: Info = {}
        for key, column in columns.items():
            if _is_mask(key, columns):
                continue
            mask = columns.get(f"_{key}")
            if mask is None or mask[row]:
                own[key] = (
                    self._row(column, row) if isinstance(column, dict) else self._values(column[row : row + 1])[0]
                )
        return own


def _is_mask(key: str, columns: Mapping[str, Any]) -> bool:
    return key[:1] == "_" and key[1:] in columns


def _terminal_obs_of(space: gymnasium.Space[Any]) -> Callable[[Any, int], Any]:
    """A function from a batch's last observations and a row to that row's, as an env would have returned it.

    Copies: whoever keeps an info must not keep a whole batch of observations alive with it.
    """
    if isinstance(space, (spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary)):
        return lambda batch, row: batch[row, ...].copy()
    take_apart, put_together = split(space), join(space)
    are_numbers = [isinstance(leaf.space, spaces.Discrete) for leaf in leaves_of(space)]

    def terminal_obs(batch: Any, row: int) -> Any:
        values: list[Any] = []
        for is_number, column in zip(are_numbers, take_apart(batch), strict=True):
            if is_number:
                values.append(int(column[row]))
            else:
                values.append(np.array(column[row]) if isinstance(column, np.ndarray) else column[row])
        return put_together(values)

    return terminal_obs
