"""Frame stacking: the last observations of each env as one."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers.utils import create_zero_array
from numpy.typing import NDArray

from envfleet.core.errors import ConfigError
from envfleet.core.spaces import join, leaves_of, path_text, split
from envfleet.wrappers.base import BatchRows, FinalObservations, PoolWrapper

_PADDINGS = ("reset", "zero")


class FrameStackObservation(PoolWrapper):
    """Stacks the last stack_size observations of each env, oldest first: (num_envs, stack_size, ...).

    Frames of the previous episode never appear. Dict and Tuple observations are stacked leaf by leaf.

    Args:
        env: The pool, or another wrapper of it.
        stack_size: The number of observations in a stack.
        padding_type: An episode starts with its first observation repeated ("reset") or after zeros ("zero"). As in
            Gymnasium, the zero of a Discrete is its start, and that of a Box without 0 its nearest bound.
    """

    state_names = ("_frames", "_newest")

    def __init__(self, env: VectorEnv[Any, Any, Any], stack_size: int, *, padding_type: str = "reset") -> None:
        super().__init__(env)
        if isinstance(stack_size, bool) or not isinstance(stack_size, (int, np.integer)) or stack_size < 1:
            raise ConfigError(f"stack_size expected an integer of at least 1, got {stack_size!r}")
        if padding_type not in _PADDINGS:
            raise ConfigError(f"padding_type expected one of {list(_PADDINGS)}, got {padding_type!r}")
        self.stack_size, self.padding_type = int(stack_size), padding_type
        inner = env.single_observation_space
        for leaf in leaves_of(inner):
            if leaf.kind != "array":
                raise ConfigError(
                    f"FrameStackObservation expected array observations, got {leaf.space} at "
                    f"obs{path_text(leaf.path)}; remove it in the env, e.g. with FilterObservation"
                )
        self._split, self._join = split(inner), join(inner)
        self.single_observation_space = batch_space(inner, self.stack_size)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        # A ring for each env: a step writes one frame, and only what is handed out is copied.
        shape = (self.num_envs, self.stack_size)
        self._frames = [np.zeros((*shape, *leaf.shape), leaf.dtype) for leaf in leaves_of(inner)]
        self._zeros = [create_zero_array(leaf.space) for leaf in leaves_of(inner)]
        self._newest = np.zeros(self.num_envs, dtype=np.intp)
        self._oldest_first = np.arange(1, self.stack_size + 1)

    def process(
        self, rows: BatchRows, obs: Any, reward: NDArray[np.float64], info: dict[str, Any]
    ) -> tuple[Any, NDArray[np.float64]]:
        """Replace each observation with the env's last stack_size observations."""
        ids = rows.env_id
        finals = FinalObservations(info, self._split)
        if finals.rows.size:
            self._finish(finals, ids[finals.rows], rows.failed[finals.rows])
        # A row of an env that failed repeats its last observation, so its stack stays as it is.
        continued = np.flatnonzero(rows.stepped & ~rows.first & ~rows.failed)
        started = np.flatnonzero(rows.first)
        continued_ids = ids[continued]
        newest = self._newest[continued_ids] = (self._newest[continued_ids] + 1) % self.stack_size
        for frames, zero, column in zip(self._frames, self._zeros, self._split(obs), strict=True):
            if continued.size:
                frames[continued_ids, newest] = column if continued.size == len(ids) else column[continued]
            if started.size:
                self._start(frames, zero, ids[started], column[started])
        slots = self._slots(ids)
        return self._join([_picked(frames, slots) for frames in self._frames]), reward

    def _start(self, frames: NDArray[Any], zero: Any, ids: NDArray[np.int32], first: NDArray[Any]) -> None:
        if self.padding_type == "reset":
            frames[ids] = first[:, None]
        else:
            frames[ids] = zero
            frames[ids, self._newest[ids]] = first

    def _finish(self, finals: FinalObservations, ids: NDArray[np.int32], failed: NDArray[np.bool_]) -> None:
        """Write the final stacks of episodes that ended in a same_step batch, whose rows already show the next ones."""
        self._newest[ids] = (self._newest[ids] + ~failed) % self.stack_size
        slots = self._slots(ids)
        for position, frames in enumerate(self._frames):
            frames[ids[~failed], self._newest[ids[~failed]]] = np.stack(finals.leaf(position))[~failed]
            finals.replace(position, _picked(frames, slots))
        finals.write(self._join)

    def _slots(self, ids: NDArray[np.int32]) -> NDArray[np.intp]:
        """Return the indices of these envs' frames, oldest first."""
        within = (self._newest[ids][:, None] + self._oldest_first) % self.stack_size
        slots: NDArray[np.intp] = ids[:, None] * self.stack_size + within
        return slots


def _picked(frames: NDArray[Any], slots: NDArray[np.intp]) -> NDArray[Any]:
    # One index for both axes: several times faster than frames[ids, slots].
    picked: NDArray[Any] = frames.reshape(-1, *frames.shape[2:]).take(slots, axis=0)
    return picked
