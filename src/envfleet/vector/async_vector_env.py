"""AsyncVectorEnv: Gymnasium's, on the processes executor."""

from __future__ import annotations

import contextlib
import inspect
import multiprocessing
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium import logger, spaces
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from gymnasium.vector import AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState
from gymnasium.vector.async_vector_env import AsyncVectorEnv as GymnasiumAsyncVectorEnv

from envfleet import _native
from envfleet.apis.common.env_errors import cause_of
from envfleet.core.batch import Batch
from envfleet.core.errors import CallOrderError, EnvError, RecvTimeout
from envfleet.core.spaces import leaves_of
from envfleet.vector.base import EnvFactory, PoolVectorEnv, Seeds, Step

_NOT_BY_CALL = ("reset", "step", "close", "_setattr", "_check_spaces")
_KNOWN_SPACES = (
    spaces.Box,
    spaces.Discrete,
    spaces.MultiDiscrete,
    spaces.MultiBinary,
    spaces.Text,
    spaces.Graph,
    spaces.Sequence,
    spaces.OneOf,
)


class AsyncVectorEnv(PoolVectorEnv):
    """Runs envs in worker processes; a drop-in for gymnasium.vector.AsyncVectorEnv.

    There are as many workers as usable cores, not one per env. A worker function needs Gymnasium's own pipes: with one,
    the constructor returns Gymnasium's class.

    Args:
        env_fns: Functions that each return an env.
        shared_memory: False also accepts observation spaces that are not Gymnasium's, and sends their values by
            message. Data of fixed size is in shared memory either way.
        copy: Whether reset() and step() return copies of the observations.
        context: The start method of the workers: "forkserver" (the default), "spawn" or "fork".
        daemon: Accepted; workers always end with their parent.
        worker: A worker function of Gymnasium's class.
        observation_mode: "same", "different", or a tuple of the batched and the single observation space.
        autoreset_mode: What happens at the end of an episode.
        max_concurrency: The number of workers; None for the usable cores.
    """

    def __new__(cls, *args: Any, worker: Callable[..., Any] | None = None, **kwargs: Any) -> Any:
        """Return Gymnasium's own class if a worker function is given, which needs that class's pipes."""
        if worker is None and len(args) > _POSITION_OF_WORKER:
            worker = args[_POSITION_OF_WORKER]
        if worker is None:
            return super().__new__(cls)
        if len(args) <= _POSITION_OF_WORKER:
            kwargs["worker"] = worker
        return GymnasiumAsyncVectorEnv(*args, **kwargs)

    def __init__(
        self,
        env_fns: Sequence[EnvFactory],
        shared_memory: bool = True,
        copy: bool = True,
        context: str | None = None,
        daemon: bool = True,
        worker: Callable[..., Any] | None = None,
        observation_mode: str | tuple[gymnasium.Space[Any], gymnasium.Space[Any]] = "same",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        max_concurrency: int | None = None,
    ) -> None:
        if max_concurrency is not None:
            if not isinstance(max_concurrency, (int, np.integer)):
                raise ValueError(f"`max_concurrency` must be an integer or None, got {type(max_concurrency)}.")
            if max_concurrency < 1:
                raise ValueError(f"`max_concurrency` must be a positive or None, got {max_concurrency}.")
        if context is not None:
            multiprocessing.get_context(context)  # raises ValueError for an unknown one
        self._set_factories(env_fns)
        self.shared_memory = shared_memory
        self.copy = copy
        self.context = context
        self.daemon = daemon
        self.worker = worker
        self.observation_mode = observation_mode
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.max_concurrency = max_concurrency
        first = self.env_fns[0]()
        try:
            self._describe(first, lambda: [_observation_space_of(env_fn) for env_fn in self.env_fns])
        finally:
            first.close()
        if shared_memory:
            _check_shareable(self.single_observation_space)
        num_workers = min(self.num_envs, int(max_concurrency or _native.usable_cores()))
        self._state = AsyncState.DEFAULT
        # A call that timed out and is still running: its *_wait() may be called again.
        self._late: AsyncState | None = None
        self._pending: Future[Any] | None = None
        self._raised: set[int] = set()
        self._start("processes", num_workers=num_workers, start_method=context)

    # --- reset -------------------------------------------------------------------------------

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all envs, or those of options["reset_mask"], and return all rows."""
        self.reset_async(seed=seed, options=options)
        return self.reset_wait()

    def reset_async(self, seed: Seeds = None, options: Mapping[str, Any] | None = None) -> None:
        """Start a reset; reset_wait() returns its result. A call that timed out is waited for and dropped."""
        self._assert_is_running()
        env_ids, arguments = self._reset_arguments(seed, options)
        self._expect_default("reset_async", "")
        self._drop_late()
        if env_ids is None:
            self.pool.async_reset(arguments=arguments)
        else:
            self._pending = _run_in_background(lambda: self.pool.reset(env_ids, arguments=arguments))
        self._state = AsyncState.WAITING_RESET

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Return the result of reset_async(). Raises multiprocessing.TimeoutError after timeout seconds."""
        batch: Batch = self._wait(AsyncState.WAITING_RESET, timeout)
        self._raised.difference_update(batch.env_id.tolist())
        return self._reset_result(batch)

    # --- step --------------------------------------------------------------------------------

    def step(self, actions: Any) -> Step:
        """Step all envs."""
        self._check_step("step_async")
        try:
            batch = self._step_pool(actions)
        except EnvError as error:
            self._raise(error)
        return self._stepped(batch)

    def step_async(self, actions: Any) -> None:
        """Start a step; step_wait() returns its result."""
        self._check_step("step_async")
        self._send_to_pool(actions)
        self._state = AsyncState.WAITING_STEP

    def step_wait(self, timeout: float | None = None) -> Step:
        """Return the result of step_async(). Raises multiprocessing.TimeoutError after timeout seconds."""
        return self._stepped(self._wait(AsyncState.WAITING_STEP, timeout))

    def _check_step(self, call: str) -> None:
        self._assert_is_running()
        self._expect_default(call, ".")
        self._expect_nothing_late(call)
        if self._raised:
            raise CallOrderError(
                f"step() expected working envs, envs {sorted(self._raised)} raised earlier; "
                "call reset(), which rebuilds them"
            )

    def _stepped(self, batch: Batch) -> Step:
        if self.autoreset_mode is AutoresetMode.DISABLED:
            ended = np.flatnonzero(batch.terminated | batch.truncated)
            if ended.size:
                self.pool.mark_running(ended.tolist())  # Gymnasium's workers step an env that has ended
        return self._step_result(batch)

    # --- calls by name -----------------------------------------------------------------------

    def render(self) -> tuple[Any, ...]:
        """Return what each env renders."""
        return self.call("render")

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each env. Non-callable attributes are returned unchanged."""
        self._check_call("call_async", name)
        try:
            return self.pool.call(name, *args, **kwargs)
        except EnvError as error:
            self._raise(error)

    def call_async(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Start a call; call_wait() returns its results."""
        self._check_call("call_async", name)
        self._pending = _run_in_background(lambda: self.pool.call(name, *args, **kwargs))
        self._state = AsyncState.WAITING_CALL

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Return the results of call_async(). Raises multiprocessing.TimeoutError after timeout seconds."""
        results: tuple[Any, ...] = self._wait(AsyncState.WAITING_CALL, timeout)
        return results

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute: one value for all envs, or a list or tuple with one value per env."""
        self._check_call("set_attr", name)
        self._set_attr(name, values)

    def _check_call(self, call: str, name: str) -> None:
        self._assert_is_running()
        if call != "set_attr" and name in _NOT_BY_CALL:
            raise ValueError(f"Trying to call function `{name}` with `call`, use `{name}` directly instead.")
        self._expect_default(call, ".")
        self._expect_nothing_late(call)

    # --- waiting -----------------------------------------------------------------------------

    def _wait(self, state: AsyncState, timeout: float | None) -> Any:
        self._assert_is_running()
        if state not in (self._state, self._late):
            raise NoAsyncCallError(
                f"Calling `{state.value}_wait` without any prior call to `{state.value}_async`.", state.value
            )
        # A deadline that has passed is a timeout, as in Gymnasium. Here: below, an exception ends the call.
        limit_s = None if timeout is None else max(0.0, float(timeout))
        try:
            result = self.pool.recv(limit_s) if self._pending is None else self._pending.result(limit_s)
        except (RecvTimeout, FutureTimeout) as error:
            self._state, self._late = AsyncState.DEFAULT, state
            raise multiprocessing.TimeoutError(
                f"The call to `{state.value}_wait` has timed out after {timeout} second(s)."
            ) from error
        except Exception as error:
            self._finish_call()
            if isinstance(error, EnvError):
                self._raise(error)
            raise
        self._finish_call()
        return result

    def _finish_call(self) -> None:
        self._state, self._late, self._pending = AsyncState.DEFAULT, None, None

    def _expect_default(self, call: str, end: str) -> None:
        if self._state is not AsyncState.DEFAULT:
            raise AlreadyPendingCallError(
                f"Calling `{call}` while waiting for a pending call to `{self._state.value}` to complete{end}",
                str(self._state.value),
            )

    def _expect_nothing_late(self, call: str) -> None:
        if self._late is not None:
            raise AlreadyPendingCallError(
                f"Calling `{call}` while a call to `{self._late.value}` that timed out is still running; "
                f"`{self._late.value}_wait` returns its result, `reset` drops it.",
                str(self._late.value),
            )

    def _drop_late(self) -> None:
        """Wait for a call that timed out and drop its result."""
        if self._pending is not None:
            self._pending.exception()
        elif self.pool.num_in_flight:
            with contextlib.suppress(CallOrderError):  # of an interrupted pool, whose next reset of all envs drops it
                self.pool.drop_pending()
        self._finish_call()

    # --- closing -----------------------------------------------------------------------------

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Wait for a pending call, at most timeout seconds, and end the workers; terminate: kill them at once."""
        if not hasattr(self, "pool"):
            return
        try:
            if self._state is not AsyncState.DEFAULT:
                logger.warn(f"Calling `close` while waiting for a pending call to `{self._state.value}` to complete.")
                wait = getattr(self, f"{self._state.value}_wait")
                wait(0 if terminate else timeout)
        except multiprocessing.TimeoutError:
            terminate = True
        finally:
            self.pool.close(terminate=terminate)

    @property
    def observations(self) -> Any:
        """The current observations of all envs."""
        return self.pool.observe()

    def _raise(self, error: EnvError) -> NoReturn:
        for fault in error.faults:
            # Gymnasium's messages, which users search for in their logs. Here only the env is gone, not its worker.
            logger.error(f"Received the following error from Worker-{fault.env_id} - Shutting it down")
            logger.error(fault.traceback or fault.message)
            if fault.method in ("step", "reset"):
                self._raised.add(fault.env_id)
        logger.error("Raising the last exception back to the main process.")
        cause = cause_of(error.faults[-1], error)
        if cause is error:
            raise error
        error.__cause__ = cause  # otherwise the traceback of the first env would be printed too
        raise cause from error

    def __del__(self) -> None:
        if not self.closed and hasattr(self, "pool"):
            self.pool.close(terminate=True)


_POSITION_OF_WORKER = list(inspect.signature(AsyncVectorEnv.__init__).parameters).index("worker") - 1


def _observation_space_of(env_fn: EnvFactory) -> gymnasium.Space[Any]:
    env = env_fn()
    try:
        space: gymnasium.Space[Any] = env.observation_space
        return space
    finally:
        env.close()


def _check_shareable(space: gymnasium.Space[Any]) -> None:
    for leaf in leaves_of(space):
        if not isinstance(leaf.space, _KNOWN_SPACES):
            raise ValueError(
                f"Using `AsyncVectorEnv(..., shared_memory=True)` expected spaces of Gymnasium, got {leaf.space!r}; "
                "pass `shared_memory=False`, which sends the observations of such a space by message."
            )


def _run_in_background(call: Callable[[], Any]) -> Future[Any]:
    """Start the call in a thread; the future has its result or exception."""
    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # raised by future.result()
            future.set_exception(error)

    # Not a ThreadPoolExecutor: the interpreter waits for its threads at exit, and an env may never return.
    threading.Thread(target=work, name="envfleet-call", daemon=True).start()
    return future
