"""Pool: num_envs envs behind reset, step, send and recv.

The Pool holds the rules that are the same for every executor: what may be called when,
which env gets which seed, and what becomes of an env that raises. Apis are views of it.

Public methods run through the executor's call guard as a whole: guard.run() takes it, calls the method's body and
gives it back, with no bytecode in between at which Ctrl-C could come. step(), send() and recv() of plain input are
one native call, which takes the guard itself.
"""

from __future__ import annotations

import atexit
import contextlib
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.batch import Batch, empty_batch
from envfleet.errors import ActionError, CallOrderError, ConfigError, EnvfleetError, PoolClosedError, RecvTimeout
from envfleet.executors.base import Executor, Refused
from envfleet.pool_state import PoolState, fitting_state
from envfleet.restarts import Restarts
from envfleet.seeding import Seed, fresh_seeds, seeds_for, to_words
from envfleet.spec import EnvSpec, PoolConfig
from envfleet.statistics import PoolStats
from envfleet.validation import check_env_id, check_env_ids, check_step

_NO_TIMEOUT = -1.0
_open_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


@atexit.register
def _close_all_pools() -> None:
    for pool in list(_open_pools):
        pool.close()


class Pool:
    """num_envs envs, stepped in batches by an executor. One caller at a time.

    Synchronous (batch_size == num_envs): row i is env i. Asynchronous: rows come in order of
    completion and batch.env_id says whose they are.

    A second thread gets CallOrderError from whatever it calls while a call is under way, and so does a signal handler
    or an env that calls its pool back. For any thread at any time: close(), closed, num_in_flight, seeds, params_of(),
    and what never changes (num_envs, spec, config).
    """

    def __init__(self, executor: Executor, config: PoolConfig, seed: Seed = None) -> None:
        self.config = config
        self.spec: EnvSpec = executor.spec
        self.num_envs = config.num_envs
        self._executor = executor
        self._guard = executor.call_guard
        self._try_send = executor.sender()
        self._all_ids = np.arange(config.num_envs, dtype=np.int32)
        given = seeds_for(seed, self._all_ids, config.num_envs)
        if None in given:
            drawn = fresh_seeds(config.num_envs)
            given = [drawn[i] if own is None else own for i, own in enumerate(given)]
        seeds = [int(own) for own in given if own is not None]
        self._restarts = Restarts(executor, config, seeds)
        # A synchronous send() of no envs: the executor knows nothing of it, and recv() returns an empty batch.
        self._has_sent_none = False
        executor.seed(self._all_ids, to_words(seeds))
        _open_pools.add(self)

    # --- synchronous ---------------------------------------------------------------------

    def reset(
        self,
        env_ids: Any = None,
        *,
        seed: Seed = None,
        options: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Batch:
        """Resets these envs (default: all) and gives their rows in that order.

        No envs, an empty array, give an empty batch.
        A reset of all envs may come at any time: what is in flight is waited for and dropped.
        """
        return self._guard.run(self._reset, env_ids, seed, options, timeout)

    def _reset(self, env_ids: Any, seed: Seed, options: Mapping[str, Any] | None, timeout: float | None) -> Batch:
        timeout_s = _seconds(timeout)
        ids, new_seeds = self._check_reset("reset()", env_ids, seed, options)
        if self._executor.num_in_flight and ids is None:
            if not self._executor.abandon(timeout_s):
                raise RecvTimeout(f"reset() waited {timeout} s for envs in flight; call it again or recv() them")
        elif self._executor.has_late_batch:
            raise CallOrderError("reset(env_id) came while a batch is in flight; recv() it first, or reset() all")
        if ids is not None and not len(ids):
            return self._empty_batch(was_reset=True)
        self._prepare_reset(ids, new_seeds)
        batch = self._executor.reset(ids, options or {}, timeout_s)
        if batch is None:
            raise RecvTimeout(f"reset() was not done after {timeout} s; recv() gets it when it is")
        return self._restarts.settle(batch, was_reset=True)

    def step(self, actions: Any, env_ids: Any = None, timeout: float | None = None) -> Batch:
        """Steps these envs (default: all). Synchronous: their rows in that order.
        Asynchronous: send() and recv() in one. No envs, an empty array, give an empty batch."""
        timeout_s = _NO_TIMEOUT if timeout is None else _seconds(timeout)
        if self.config.is_async:
            num_rows = self._check_batch_fills(env_ids)
            self.send(actions, env_ids)
            return self.recv(timeout) if num_rows else self._empty_batch()
        batch = self._executor.step(actions, env_ids, timeout_s)
        if isinstance(batch, Refused):
            batch = self._guard.run(self._step_checked, actions, env_ids, timeout_s)
        if batch is None:
            raise RecvTimeout(f"step() was not done after {timeout} s; recv() gets it when it is")
        return batch if not batch.faults else self._settle(batch)

    def _step_checked(self, actions: Any, env_ids: Any, timeout_s: float) -> Batch | None:
        actions, env_ids = check_step("step()", actions, env_ids, self._executor, self.config)
        if env_ids is not None and not len(env_ids):
            return self._empty_batch()
        batch = self._executor.step_checked(actions, env_ids, timeout_s)
        if isinstance(batch, Refused):
            raise _changed_during_the_call()
        return batch

    def _settle(self, batch: Batch) -> Batch:
        return self._guard.run(self._restarts.settle, batch)

    # --- asynchronous, or a synchronous step in two halves ---------------------------------

    def send(self, actions: Any, env_ids: Any = None) -> None:
        """Starts a step of these envs and returns. Of no envs, an empty array, recv() gives an empty batch;
        an asynchronous pool has nothing to give for them."""
        if not self._try_send(actions, env_ids):
            self._guard.run(self._send_checked, actions, env_ids)

    def _send_checked(self, actions: Any, env_ids: Any) -> None:
        actions, env_ids = check_step("send()", actions, env_ids, self._executor, self.config)
        if env_ids is not None and not len(env_ids):
            self._has_sent_none = not self.config.is_async
            return
        if not self._executor.send_checked(actions, env_ids):
            raise _changed_during_the_call()

    def recv(self, timeout: float | None = None) -> Batch:
        """The rows that are ready: all that was sent, or the batch_size first finished."""
        batch = self._executor.recv(_NO_TIMEOUT if timeout is None else _seconds(timeout))
        if isinstance(batch, Refused):
            num_in_flight = self._executor.num_in_flight
            if num_in_flight == 0 and self._has_sent_none:
                self._has_sent_none = False
                return self._empty_batch()
            if num_in_flight == 0:
                raise CallOrderError("recv() found nothing in flight; send() or async_reset() first")
            raise CallOrderError(
                f"recv() expected at least batch_size={self.config.batch_size} envs in flight, got {num_in_flight}; "
                "send() more, or the batch could never fill"
            )
        if batch is None:
            raise RecvTimeout(f"recv() got nothing within {timeout} s; the next recv() gets what was late")
        return batch if not batch.faults else self._settle(batch)

    def async_reset(self, *, seed: Seed = None, options: Mapping[str, Any] | None = None) -> None:
        """Starts a reset of all envs; recv() gives their rows."""
        self._guard.run(self._async_reset, seed, options)

    def _async_reset(self, seed: Seed, options: Mapping[str, Any] | None) -> None:
        ids, new_seeds = self._check_reset("async_reset()", None, seed, options)
        if self._executor.num_in_flight:
            raise CallOrderError(
                f"async_reset() expected all envs idle, {self._executor.num_in_flight} are in flight; "
                "recv() them first, or call drop_pending() or reset(), which drop them"
            )
        self._prepare_reset(ids, new_seeds)
        self._executor.send_reset(ids, options or {})

    def drop_pending(self, timeout: float | None = None) -> None:
        """Wait for the envs in flight and discard their rows; without any, do nothing.

        An asynchronous reset of a busy pool is drop_pending(), async_reset() and recv().
        """
        self._guard.run(self._drop_pending, timeout)

    def _drop_pending(self, timeout: float | None) -> None:
        self._has_sent_none = False
        if self._executor.num_in_flight and not self._executor.abandon(_seconds(timeout)):
            raise RecvTimeout(
                f"drop_pending() waited {timeout} s for envs in flight; call it again, or recv() their rows"
            )

    # --- between batches -------------------------------------------------------------------

    def get_state(self) -> PoolState:
        """The state of every env: what set_state() needs to go on from here, bit for bit."""
        return self._guard.run(self._get_state)

    def _get_state(self) -> PoolState:
        self._check_idle("get_state()")
        seeds, num_restarts = tuple(self._restarts.seeds), tuple(self._restarts.counts)
        return PoolState(self.spec.id, self.num_envs, self._states(), self._params(), seeds, num_restarts)

    def _states(self) -> tuple[bytes, ...]:
        return tuple(self._executor.get_state(i) for i in range(self.num_envs))

    def _params(self) -> tuple[str, ...]:
        return tuple(repr(sorted(self._executor.params_of(i).items())) for i in range(self.num_envs))

    def set_state(self, state: PoolState | bytes) -> None:
        """Goes back to a state of get_state(), or leaves all as it was and raises, also after Ctrl-C."""
        self._guard.run(self._set_state, state)

    def _set_state(self, state: PoolState | bytes) -> None:
        self._check_idle("set_state()")
        state = fitting_state(state, self.spec.id, self._params())
        before = self._states()
        try:
            for env_id, own in enumerate(state.states):
                self._executor.set_state(env_id, own)
            self._restarts.load(state.seeds, state.num_restarts)
        except PoolClosedError:
            raise
        except BaseException:
            for env_id, own in enumerate(before):
                # An env that does not take its old state back is broken, and rebuilt at its next reset.
                with contextlib.suppress(EnvfleetError):
                    self._executor.set_state(env_id, own)
            raise

    def observe(self) -> Any:
        """The present observations of all envs, as the last rows had them."""
        return self._guard.run(self._observe)

    def _observe(self) -> Any:
        self._check_idle("observe()")
        return self._executor.observe()

    def get_attr(self, name: str, env_ids: Sequence[int] | None = None) -> tuple[Any, ...]:
        """An attribute of each env."""
        return self._guard.run(self._get_attr, name, env_ids)

    def _get_attr(self, name: str, env_ids: Sequence[int] | None) -> tuple[Any, ...]:
        self._check_idle("get_attr()")
        return tuple(self._executor.get_attr(self._chosen("get_attr()", env_ids).tolist(), name))

    def call(self, name: str, *args: Any, env_ids: Sequence[int] | None = None, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method of each env; an attribute that is none is given as it is."""
        return self._guard.run(self._call, name, args, env_ids, kwargs)

    def _call(
        self, name: str, args: tuple[Any, ...], env_ids: Sequence[int] | None, kwargs: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        self._check_idle("call()")
        return tuple(self._executor.call(self._chosen("call()", env_ids).tolist(), name, args, kwargs))

    def set_attr(self, name: str, values: Any, env_ids: Sequence[int] | None = None) -> None:
        """Sets an attribute: one value for all, or a list or tuple of one for each env."""
        self._guard.run(self._set_attr, name, values, env_ids)

    def _set_attr(self, name: str, values: Any, env_ids: Sequence[int] | None) -> None:
        self._check_idle("set_attr()")
        chosen = self._chosen("set_attr()", env_ids)
        per_env = list(values) if isinstance(values, (list, tuple)) else [values] * len(chosen)
        if len(per_env) != len(chosen):
            raise ConfigError(f"set_attr() expected {len(chosen)} values, one for each env, got {len(per_env)}")
        self._executor.set_attrs(chosen.tolist(), name, per_env)

    def render(self, env_id: int) -> Any:
        """What one env draws, or None when it cannot."""
        return self.render_all([env_id])[0]

    def render_all(self, env_ids: Sequence[int] | None = None) -> tuple[Any, ...]:
        """What each of these envs (default: all) draws, or None when it cannot."""
        return self._guard.run(self._render_all, env_ids)

    def _render_all(self, env_ids: Sequence[int] | None) -> tuple[Any, ...]:
        self._check_idle("render()")
        return tuple(self._executor.render(self._chosen("render()", env_ids).tolist()))

    def stats(self) -> PoolStats:
        """Steps, episodes, returns and times since the pool was made."""
        return self._guard.run(self._executor.stats)

    def attributes_of(self, env_id: int) -> dict[str, Any]:
        """All attributes of one env: what a renderer draws from."""
        return self._guard.run(self._attributes_of, env_id)

    def _attributes_of(self, env_id: int) -> dict[str, Any]:
        self._check_idle("attributes_of()")
        return self._executor.get_attrs(int(check_env_ids("attributes_of()", [env_id], self._executor)[0]))

    def params_of(self, env_id: int) -> Mapping[str, Any]:
        """The parameters that one env was made with."""
        return self._executor.params_of(check_env_id("params_of()", env_id, self.num_envs))

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seed that each env was last given."""
        return tuple(self._restarts.seeds)

    @property
    def num_in_flight(self) -> int:
        """How many envs were sent and not received yet."""
        return self._executor.num_in_flight

    @property
    def executor(self) -> Executor:
        """What runs the envs; for tests and tools."""
        return self._executor

    # --- life --------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._guard.is_closing

    def close(self) -> None:
        """Ends the workers. Idempotent; also run by `with`, garbage collection and at exit.

        From another thread: new calls raise PoolClosedError at once, and the present one may finish its batch. From a
        signal handler or an env in the middle of a call: returns at once, and that call raises PoolClosedError. After
        Ctrl-C in close(), close() again goes on with it.
        """
        self._executor.close()

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # A pool whose constructor raised may have no executor to close.
        if hasattr(self, "_executor"):
            self.close()

    # --- rules -------------------------------------------------------------------------------

    def _check_idle(self, call: str) -> None:
        if self._executor.num_in_flight:
            raise CallOrderError(
                f"{call} expected all envs idle, {self._executor.num_in_flight} are in flight; recv() them first"
            )

    def _chosen(self, call: str, env_ids: Any) -> NDArray[np.int32]:
        return self._all_ids if env_ids is None else check_env_ids(call, env_ids, self._executor)

    def _check_batch_fills(self, env_ids: Any) -> int:
        """Before a step of an asynchronous pool sends: would its recv() come back? How many rows are sent."""
        num_rows = self.num_envs if env_ids is None else np.size(env_ids)
        if num_rows and self._executor.num_in_flight + num_rows < self.config.batch_size:
            raise CallOrderError(
                f"step() expected at least batch_size={self.config.batch_size} envs in flight with these {num_rows}, "
                f"got {self._executor.num_in_flight + num_rows}; send() more, then recv()"
            )
        return num_rows

    def _empty_batch(self, *, was_reset: bool = False) -> Batch:
        return empty_batch(self.spec, self.config.autoreset_mode, was_reset=was_reset)

    def _check_reset(
        self, call: str, env_ids: Any, seed: Seed, options: Mapping[str, Any] | None
    ) -> tuple[NDArray[np.int32] | None, list[int | None]]:
        """The ids, None for all, and the seed of each; raises before anything has moved."""
        ids = None if env_ids is None else check_env_ids(call, env_ids, self._executor)
        if options is not None and not isinstance(options, Mapping):
            raise ConfigError(f"{call} expected options as a dict, got {type(options).__name__}: {options!r}")
        self._executor.check_reset_options(options or {})
        return ids, seeds_for(seed, self._all_ids if ids is None else ids, self.num_envs)

    def _prepare_reset(self, ids: NDArray[np.int32] | None, new_seeds: list[int | None]) -> None:
        """Rebuilds what is broken among these envs, then seeds what is asked."""
        chosen = self._all_ids if ids is None else ids
        if ids is None:
            self._has_sent_none = False
        self._restarts.rebuild_broken(chosen)
        seeded = [(int(env_id), own) for env_id, own in zip(chosen, new_seeds, strict=True) if own is not None]
        if seeded:
            self._executor.seed(
                np.array([env_id for env_id, _ in seeded], dtype=np.int32), to_words([own for _, own in seeded])
            )
            for env_id, own in seeded:
                self._restarts.reseeded(env_id, own)


def _changed_during_the_call() -> ActionError:
    return ActionError(
        "expected actions that stay as they are during the call, got an array that changed after it was checked; "
        "pass a copy of an array that another thread writes to"
    )


def _seconds(timeout: float | None) -> float:
    if timeout is None:
        return _NO_TIMEOUT
    try:
        seconds = float(timeout)
    except (TypeError, ValueError):
        seconds = -1.0
    if not seconds >= 0:
        raise ConfigError(f"timeout expected seconds from 0 on, or None for no limit, got {timeout!r}")
    return seconds
