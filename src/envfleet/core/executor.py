"""Executor: the contract between a Pool and the code that runs its envs.

An executor runs envs and fills rows; it knows no api and keeps no call-order rules beyond its own safety. The Pool
decides which calls are allowed, explains wrong input, and handles envs that raise.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, Literal, NoReturn, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from envfleet import _native
from envfleet.core.autoreset import Phase
from envfleet.core.batch import Batch, Fault
from envfleet.core.errors import ConfigError
from envfleet.core.seeding import Words
from envfleet.core.spec import EnvSpec
from envfleet.core.statistics import PoolStats

NO_TIMEOUT = -1.0  # as timeout_s: wait as long as it takes
CLOSE_TIMEOUT_S = 5.0  # how long close() waits for envs; kCloseTimeoutNs in native/bindings is the same

NativeT = TypeVar("NativeT", _native.NativePool, _native.PythonPool)


# The result for input that the fast path does not accept; no env has moved. It is what the native pools return.
Refused: TypeAlias = Literal[False]
REFUSED: Final[Refused] = False


def all_env_ids(num_envs: int) -> NDArray[np.int32]:
    """Return the ids of all envs, read-only: it is the env_id of every batch of all envs."""
    env_ids = np.arange(num_envs, dtype=np.int32)
    env_ids.flags.writeable = False
    return env_ids


def split_envs(num_envs: int, num_workers: int) -> list[range]:
    """Return the contiguous env ids of each worker."""
    firsts = [_native.first_env_of(num_envs, num_workers, worker) for worker in range(num_workers + 1)]
    return [range(first, end) for first, end in itertools.pairwise(firsts)]


class Executor(ABC):
    """Runs num_envs envs. One caller at a time: call_guard raises for a second one.

    step(), send() and recv() are guarded calls by themselves; everything else may also be part of a method that the
    Pool runs through call_guard.run(). For any thread: close(), terminate(), params_of(), num_in_flight.

    Input is accepted or REFUSED: an executor accepts input that it can see at once to be right (arrays in canonical
    form: contiguous, of the space's dtype; int32 ids that are distinct and idle) and refuses the rest. It must accept
    everything that envfleet.core.validation has passed. env_ids=None stands for all envs.

    An env that raises completes its row, and the batch has a Fault of it; it is BROKEN until rebuild(). The observation
    of that row is zeros or, with on_error="restart", the last one that the env delivered, whatever the caller did to
    its arrays.

    Methods under "Python envs only" have default implementations that raise ConfigError; an executor that has Python
    objects for envs overrides them.
    """

    spec: EnvSpec
    num_envs: int
    call_guard: _native.CallGuard
    takes_leaves = False  # True: checked actions are always passed as LeafColumns

    # --- stepping ------------------------------------------------------------------------

    @abstractmethod
    def step(self, actions: Any, env_ids: Any, timeout_s: float) -> Batch | Refused | None:
        """Step these envs and return their rows in this order.

        Returns None after timeout_s (NO_TIMEOUT: no limit); the batch is then in flight.
        """

    @abstractmethod
    def send(self, actions: Any, env_ids: Any) -> bool:
        """Start a step of these envs. Returns False if the input is refused."""

    def step_checked(self, actions: Any, env_ids: Any, timeout_s: float) -> Batch | Refused | None:
        """step() for input that envfleet.core.validation has passed, as part of a guarded method."""
        return self.step(actions, env_ids, timeout_s)

    def send_checked(self, actions: Any, env_ids: Any) -> bool:
        """send() for input that envfleet.core.validation has passed, as part of a guarded method."""
        return self.send(actions, env_ids)

    def sender(self) -> Callable[[Any, Any], bool]:
        """Return send() with as little overhead as possible, for callers that send often."""
        return self.send

    @abstractmethod
    def recv(self, timeout_s: float) -> Batch | Refused | None:
        """Return the batch that was sent (synchronous), or the first batch_size rows to finish (asynchronous).

        Returns REFUSED if fewer envs are in flight, and None after timeout_s.
        """

    def native_pool(self) -> _native.NativePool | None:
        """Return the pool in C++ that threads without the GIL may step, or None: this executor needs Python."""
        return None

    def check_reset_options(self, options: Mapping[str, Any]) -> None:  # noqa: B027 (most accept any)
        """Raise if the envs of this executor cannot take these options."""

    @abstractmethod
    def reset(self, env_ids: NDArray[np.int32] | None, options: Mapping[str, Any], timeout_s: float) -> Batch | None:
        """Reset idle envs and return their rows in this order. Returns None after timeout_s."""

    @abstractmethod
    def send_reset(self, env_ids: NDArray[np.int32] | None, options: Mapping[str, Any]) -> None:
        """Start a reset of idle envs."""

    @abstractmethod
    def drop_pending(self, timeout_s: float) -> bool:
        """Wait for everything in flight and discard it, calls that were interrupted included.

        Returns False after timeout_s. It can be called again then, and after an interruption.
        """

    def unreported_faults(self) -> tuple[Fault, ...]:
        """Return the faults of rows that left the executor and that clear_faults() has not been called for since."""
        return ()

    def clear_faults(self) -> None:
        """Forget the faults of unreported_faults(): they have been reported, or their envs restarted."""
        self.call_guard.has_unreported = False

    # --- Python envs only ----------------------------------------------------------------

    def reset_each(
        self, env_ids: NDArray[np.int32] | None, arguments: Sequence[Mapping[str, Any]], timeout_s: float
    ) -> Batch | None:
        """Reset idle envs with env.reset(**arguments[row]), unchanged, and return their rows in this order.

        The arguments replace a pending seed and options. Returns None after timeout_s.
        """
        self._refuse("reset arguments per env", "pass seed and options instead")

    def send_reset_each(self, env_ids: NDArray[np.int32] | None, arguments: Sequence[Mapping[str, Any]]) -> None:
        """Start a reset of idle envs with env.reset(**arguments[row])."""
        self._refuse("reset arguments per env", "pass seed and options instead")

    def step_objects(
        self, actions: Sequence[Any], env_ids: NDArray[np.int32] | None, timeout_s: float
    ) -> Batch | Refused | None:
        """Step these envs with env.step(actions[row]): any Python objects, unchanged, past the action columns."""
        self._refuse("actions as Python objects", "pass actions of the action space")

    def send_objects(self, actions: Sequence[Any], env_ids: NDArray[np.int32] | None) -> bool:
        """Start a step of these envs with env.step(actions[row])."""
        self._refuse("actions as Python objects", "pass actions of the action space")

    def set_phase(self, env_id: int, phase: int) -> None:
        """Put an idle env into this phase without touching it.

        Phase.RUNNING lets an env be stepped as it is: before its first reset, after its episode ended, or after it
        raised.
        """
        self._refuse("envs that are stepped without a reset", "reset them first")

    def apply(
        self, env_ids: Sequence[int], function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> list[Any]:
        """Return function(env, *args, **kwargs) for each of these envs, called where the env lives."""
        self._refuse("functions of an env", "read attributes with get_attr()")

    def local_envs(self) -> list[Any]:
        """Return the env objects in the order of their ids. Raises ConfigError unless they live in this process."""
        raise ConfigError(
            f"local_envs() expected envs of this process, got backend={self.spec.backend!r}; "
            "use call(), get_attr() and set_attr(), or backend='serial'"
        )

    def _refuse(self, what: str, remedy: str) -> NoReturn:
        raise ConfigError(
            f"{what} expected Python envs on the backend serial, threads or processes, "
            f"got backend={self.spec.backend!r}; {remedy}"
        )

    # --- between batches -----------------------------------------------------------------

    @abstractmethod
    def seed(self, env_ids: NDArray[np.int32], words: Words) -> None:
        """Seed these envs; the seed takes effect at their next reset."""

    @abstractmethod
    def rebuild(self, env_id: int, phase: int, words: Words | None = None) -> None:
        """Build one env again and leave it in this phase. Raises EnvError if its constructor raises.

        words: the env's seed, of shape (1, 4). It is in place before the env leaves BROKEN, so that Ctrl-C never
        leaves a working env without it.
        """

    @abstractmethod
    def observe(self) -> tuple[Any, NDArray[np.int32]]:
        """Return the current observations of all envs and their elapsed steps, as in their last rows."""

    @abstractmethod
    def get_state(self, env_id: int) -> bytes:
        """Return the complete state of an env. Raises StateError if it cannot be saved."""

    @abstractmethod
    def set_state(self, env_id: int, state: bytes) -> None:
        """Restore a state of get_state(). Raises StateError if it does not fit."""

    @abstractmethod
    def render(self, env_ids: Sequence[int]) -> list[Any]:
        """Return what each of these envs renders: an RGB image, or None if it renders none."""

    @abstractmethod
    def get_attr(self, env_ids: Sequence[int], name: str) -> list[Any]:
        """Return an attribute of each of these envs. Raises AttributeError if they have none of this name."""

    @abstractmethod
    def get_attrs(self, env_id: int) -> dict[str, Any]:
        """Return the attributes of one env by name, if it can list them, else an empty dict."""

    @abstractmethod
    def set_attrs(self, env_ids: Sequence[int], name: str, values: Sequence[Any]) -> None:
        """Set an attribute of each of these envs. Raises AttributeError if it cannot be set.

        If an env refuses its value, native envs of one process all keep their old values. Python envs are independent
        of each other: those that did not refuse have their new values.
        """

    @abstractmethod
    def call(self, env_ids: Sequence[int], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """Call a method of each of these envs. Non-callable attributes are returned unchanged."""

    # --- status ----------------------------------------------------------------------------

    @abstractmethod
    def params_of(self, env_id: int) -> Mapping[str, Any]:
        """Return the parameters that an env was made with."""

    @property
    @abstractmethod
    def num_in_flight(self) -> int:
        """The number of envs that were sent and not yet received."""

    @property
    @abstractmethod
    def has_ordered_batch(self) -> bool:
        """Whether a batch in the order of its env_ids was started and has not been received yet."""

    @abstractmethod
    def in_flight(self) -> NDArray[np.bool_]:
        """Return a mask of the envs in flight, by env id."""

    @abstractmethod
    def phases(self) -> NDArray[np.uint8]:
        """Return the phase of each env (autoreset.Phase), by env id."""

    def broken(self) -> NDArray[np.bool_]:
        """Return a mask of the envs that must be rebuilt before they can be reset, by env id."""
        broken: NDArray[np.bool_] = self.phases() == Phase.BROKEN
        return broken

    @abstractmethod
    def stats(self) -> PoolStats:
        """Return the counters since the envs were made. For any thread at any time; raises in a forked child."""

    # --- life cycle ------------------------------------------------------------------------

    def close(self) -> None:
        """End threads or processes. Idempotent, bounded in time, for any thread.

        New calls raise at once; a call in progress may finish its batch. Inside a call of its own thread (from a
        signal handler or an env) this returns at once; that call then raises PoolClosedError and ends the workers.
        """
        found = self.call_guard.close(self._end, self._interrupt, self.close, self._close_wait_s())
        if found is None:
            found = [
                ResourceWarning(
                    f"a call in another thread did not return within {CLOSE_TIMEOUT_S:g} s of close(); "
                    "the pool closes when it does"
                )
            ]
        for warning in found:
            warnings.warn(warning, stacklevel=3)

    def terminate(self) -> None:
        """close() without waiting for envs: kill worker processes at once. Without processes, the same as close()."""
        self.close()

    def __del__(self) -> None:
        # Only for an executor that Ctrl-C kept from reaching its pool; the others were closed with the pool.
        if hasattr(self, "call_guard"):
            with contextlib.suppress(Exception):
                self.close()

    def _close_wait_s(self) -> float:
        """Return how long close() waits for a call in progress; 0 in a thread that this call waits for."""
        return CLOSE_TIMEOUT_S

    def _interrupt(self) -> None:  # noqa: B027 (most calls look at the guard often enough)
        """Wake up the call in progress, which then finds that it was interrupted. For any thread."""

    @abstractmethod
    def _end(self) -> list[Warning]:
        """End threads or processes, with no call in progress. Returns warnings.

        Called again if it was interrupted.
        """


class PoolBackedExecutor(Executor, Generic[NativeT]):
    """An executor over a pool in C++, which keeps the state of its envs."""

    _native: NativeT
    _params: Sequence[Mapping[str, Any]]  # one mapping for all envs, or one per env

    def params_of(self, env_id: int) -> Mapping[str, Any]:
        """Return the parameters that an env was made with."""
        return self._params[env_id if len(self._params) > 1 else 0]

    @property
    def num_in_flight(self) -> int:
        """The number of envs that were sent and not yet received."""
        return self._native.num_in_flight

    @property
    def has_ordered_batch(self) -> bool:
        """Whether a batch in the order of its env_ids was started and has not been received yet."""
        return self._native.has_ordered_batch

    def in_flight(self) -> NDArray[np.bool_]:
        """Return a mask of the envs in flight, by env id."""
        return np.frombuffer(self._native.in_flight(), dtype=np.bool_)

    def phases(self) -> NDArray[np.uint8]:
        """Return the phase of each env (autoreset.Phase), by env id."""
        return np.frombuffer(self._native.phases(), dtype=np.uint8)
