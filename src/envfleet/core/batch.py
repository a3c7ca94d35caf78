"""Batch: the rows that recv() returns.

The arrays belong to the caller and never change afterwards. They share one buffer, which is reused when the last of
them is garbage-collected.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet.core.spaces import batched_leaf, join, leaves_of
from envfleet.core.tracebacks import cut_own_frames, message_of, pack, traceback_of, unpack

if TYPE_CHECKING:
    from envfleet.core.spec import EnvSpec


@dataclass(frozen=True)
class Fault:
    """An env that raised: its id, the method, and the message.

    It is made where the env raised, and travels with its exception to where the user reads it.
    """

    env_id: int
    method: str
    message: str
    traceback: str = ""
    cause: BaseException | None = field(default=None, compare=False)  # the exception itself, with the env's frames
    exit_code: int | None = None  # of a worker that died; negative: the signal that killed it; or UNKNOWN_EXIT

    @classmethod
    def of(cls, error: BaseException, method: str, env_id: int = -1) -> Fault:
        """Return the fault of an env that raised this, without envfleet's own frames in its traceback.

        env_id: -1 where it is not known, as in a worker with generators.
        """
        cut_own_frames(error)
        return cls(env_id, method, message_of(error), traceback_of(error), error)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "cause": None if self.cause is None else pack(self.cause)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        cause = state["cause"]
        self.__dict__.update(state, cause=None if cause is None else unpack(cause))


class FinalRows:
    """The final rows of the episodes that ended in a same_step batch.

    Only rows where the batch is terminated or truncated are meaningful.
    """

    __slots__ = ("elapsed_step", "info", "obs")

    def __init__(self, obs: Any, elapsed_step: NDArray[np.int32], info: dict[str, NDArray[Any]]) -> None:
        self.obs = obs
        self.elapsed_step = elapsed_step
        self.info = info


@final
class Batch:
    """Rows of observations, rewards, flags and ids. Row r is env env_id[r].

    obs has the structure of the observation space: an array, a dict or a tuple of arrays.
    info holds the env's own columns; a key that some rows have no value for comes with a mask of those that have one,
    under _key. final is set in same_step mode only.
    """

    # The native executor makes plain batches by filling in the slots.
    __slots__ = ("elapsed_step", "env_id", "faults", "final", "info", "obs", "reward", "terminated", "truncated")

    def __init__(
        self,
        obs: Any,
        reward: NDArray[np.float64],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        env_id: NDArray[np.int32],
        elapsed_step: NDArray[np.int32],
        info: dict[str, Any],
        final: FinalRows | None,
        faults: tuple[Fault, ...],
    ) -> None:
        self.obs = obs
        self.reward = reward
        self.terminated = terminated
        self.truncated = truncated
        self.env_id = env_id
        self.elapsed_step = elapsed_step
        self.info = info
        self.final = final
        self.faults = faults

    def __len__(self) -> int:
        return len(self.reward)


def empty_batch(spec: EnvSpec, mode: AutoresetMode, *, was_reset: bool) -> Batch:
    """Return the batch of a call with no env ids: all columns, with no rows."""

    def obs() -> Any:
        leaves = leaves_of(spec.observation_space)
        columns = [
            np.zeros((0, *leaf.shape), leaf.dtype) if leaf.kind == "array" else batched_leaf(leaf, ())
            for leaf in leaves
        ]
        return join(spec.observation_space)(columns)

    def info(on_reset: bool) -> dict[str, Any]:
        arrays = [array for array in spec.info_arrays if (array.on_reset if on_reset else array.on_step)]
        return {array.name: np.zeros((0, *(array.space.shape or ())), array.space.dtype) for array in arrays}

    is_same_step = mode is AutoresetMode.SAME_STEP
    final = FinalRows(obs(), np.zeros(0, np.int32), info(on_reset=False)) if is_same_step else None
    reward, env_id, elapsed_step = np.zeros(0, np.float64), np.zeros(0, np.int32), np.zeros(0, np.int32)
    terminated, truncated = np.zeros(0, np.bool_), np.zeros(0, np.bool_)
    return Batch(obs(), reward, terminated, truncated, env_id, elapsed_step, info(was_reset), final, ())
