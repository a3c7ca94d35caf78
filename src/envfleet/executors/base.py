"""Executor: the seam between a Pool and what runs its envs.

An executor runs envs and fills rows; it knows no api and keeps no call-order rules beyond
its own safety. The Pool decides what is allowed, explains what is wrong, and handles what
an env's fault means.
"""

from __future__ import annotations

import contextlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from envfleet import _native
from envfleet.autoreset import Phase
from envfleet.batch import Batch
from envfleet.seeding import Words
from envfleet.spec import EnvSpec
from envfleet.statistics import PoolStats

_CLOSE_TIMEOUT_S = 5.0


class Refused:
    """The answer to input that is not plainly right; nothing has moved."""


REFUSED: Final = Refused()


class Executor(ABC):
    """Runs num_envs envs. One caller at a time: call_guard turns a second one away.

    step(), send() and recv() are calls by themselves; everything else may also be part of a method that the Pool
    runs through call_guard.run(). For any thread: close(), params_of(), num_in_flight.

    Input is taken or REFUSED: an executor takes what it sees at once to be right (arrays in
    canonical form: contiguous, the space's dtype, int32 ids that are distinct and idle) and
    refuses the rest. It must take whatever envfleet.validation has passed. env_ids None stands
    for all envs.

    An env that raises completes its row (zeros, and a Fault in the batch) and is BROKEN
    until rebuild().
    """

    spec: EnvSpec
    num_envs: int
    call_guard: _native.CallGuard
    takes_leaves = False  # checked actions as LeafColumns, whatever the space

    # --- stepping ------------------------------------------------------------------------

    @abstractmethod
    def step(self, actions: Any, env_ids: Any, timeout_s: float) -> Batch | Refused | None:
        """Steps these envs and gives their rows in that order.

        None after timeout_s (negative: no limit): then the batch is in flight.
        """

    @abstractmethod
    def send(self, actions: Any, env_ids: Any) -> bool:
        """Starts a step of these envs. False: refused."""

    def step_checked(self, actions: Any, env_ids: Any, timeout_s: float) -> Batch | Refused | None:
        """step() with input that envfleet.validation has passed, as part of a method."""
        return self.step(actions, env_ids, timeout_s)

    def send_checked(self, actions: Any, env_ids: Any) -> bool:
        """send() with input that envfleet.validation has passed, as part of a method."""
        return self.send(actions, env_ids)

    def sender(self) -> Callable[[Any, Any], bool]:
        """send() in its shortest form, for callers who send often."""
        return self.send

    @abstractmethod
    def recv(self, timeout_s: float) -> Batch | Refused | None:
        """The batch that was sent (synchronous), or the batch_size rows that were finished
        first (asynchronous). REFUSED when so many are not in flight; None after timeout_s."""

    def check_reset_options(self, options: Mapping[str, Any]) -> None:  # noqa: B027 (most take any)
        """Raises when an env of this executor could not take these options."""

    @abstractmethod
    def reset(self, env_ids: NDArray[np.int32] | None, options: Mapping[str, Any], timeout_s: float) -> Batch | None:
        """Resets idle envs and gives their rows in that order. None after timeout_s."""

    @abstractmethod
    def send_reset(self, env_ids: NDArray[np.int32] | None, options: Mapping[str, Any]) -> None:
        """Starts a reset of idle envs."""

    @abstractmethod
    def abandon(self, timeout_s: float) -> bool:
        """Waits for all that is in flight and throws it away. False after timeout_s."""

    # --- between batches -----------------------------------------------------------------

    @abstractmethod
    def seed(self, env_ids: NDArray[np.int32], words: Words) -> None:
        """Seeds these envs; their next reset draws from it."""

    @abstractmethod
    def rebuild(self, env_id: int, phase: int) -> None:
        """Builds one env anew and leaves it in this phase. Raises EnvError when its constructor does."""

    @abstractmethod
    def observe(self) -> Any:
        """The present observations of all envs."""

    @abstractmethod
    def get_state(self, env_id: int) -> bytes:
        """The env's whole state. Raises StateError when it has none to give."""

    @abstractmethod
    def set_state(self, env_id: int, state: bytes) -> None:
        """Brings a state of get_state() back. Raises StateError when it does not fit."""

    @abstractmethod
    def render(self, env_ids: Sequence[int]) -> list[Any]:
        """What each of these envs draws: a picture, or None when it cannot."""

    @abstractmethod
    def get_attr(self, env_ids: Sequence[int], name: str) -> list[Any]:
        """One attribute of each of these envs. Raises AttributeError when there is none of that name."""

    @abstractmethod
    def get_attrs(self, env_id: int) -> dict[str, Any]:
        """The attributes of one env by name, where it can list them."""

    @abstractmethod
    def set_attrs(self, env_ids: Sequence[int], name: str, values: Sequence[Any]) -> None:
        """Sets one attribute of each of these envs, or none. Raises AttributeError when it cannot be set."""

    @abstractmethod
    def call(self, env_ids: Sequence[int], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """Calls a method of each of these envs; an attribute that is none is given as it is."""

    # --- what is known ---------------------------------------------------------------------

    @abstractmethod
    def params_of(self, env_id: int) -> Mapping[str, Any]:
        """The parameters that one env was made with."""

    @property
    @abstractmethod
    def num_in_flight(self) -> int:
        """How many envs were sent and not received yet."""

    @property
    @abstractmethod
    def has_late_batch(self) -> bool:
        """Whether a batch in order was started, or ran into its time limit, and is still to be received."""

    @abstractmethod
    def in_flight(self) -> NDArray[np.bool_]:
        """Which of them, by env id."""

    @abstractmethod
    def phases(self) -> NDArray[np.uint8]:
        """Where each env stands (autoreset.Phase), by env id."""

    def broken(self) -> NDArray[np.bool_]:
        """Which envs must be rebuilt before they can be reset, by env id."""
        broken: NDArray[np.bool_] = self.phases() == Phase.BROKEN
        return broken

    @abstractmethod
    def stats(self) -> PoolStats:
        """What was counted since the envs were made."""

    # --- life ------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends threads or processes. Idempotent, bounded in time, for any thread.

        New calls are turned away at once; the present one may finish its batch. In the middle of a call of its own
        thread (a signal handler, an env) this returns at once: that call raises PoolClosedError and ends the workers.
        """
        found = self.call_guard.close(self._end, self._interrupt, self.close, self._close_patience_s())
        if found is None:
            found = [
                ResourceWarning(
                    "a call in another thread did not return within 5 s of close(); its end closes the pool"
                )
            ]
        for warning in found:
            warnings.warn(warning, stacklevel=3)

    def __del__(self) -> None:
        # One that Ctrl-C kept from its pool. What has a pool was closed with it.
        if hasattr(self, "call_guard"):
            with contextlib.suppress(Exception):
                self.close()

    def _close_patience_s(self) -> float:
        """How long close() waits for the present call; 0 in a thread that this call waits for."""
        return _CLOSE_TIMEOUT_S

    def _interrupt(self) -> None:  # noqa: B027 (most calls look at the guard often enough)
        """Wakes the present call up, which then finds that it was interrupted. From any thread."""

    @abstractmethod
    def _end(self) -> list[Warning]:
        """Ends threads or processes, with no call inside; what to warn of. Again, if the last time was interrupted."""
