"""Pool: num_envs envs behind reset, step, send and recv.

The Pool holds the rules that are the same for every executor: which call is allowed when, which env gets which seed,
and what happens to an env that raises. The apis are views of it.

A public method that reaches the envs is one call under the executor's call guard (@_guarded). step(), send() and
recv() with plain input are one native call, which enters the guard by itself; it refuses if an earlier call was
interrupted or lost the rows of an env that raised, which the guarded methods deal with first (_attend()).
"""

from __future__ import annotations

import atexit
import contextlib
import pickle
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from envfleet import _native
from envfleet.core.autoreset import Phase
from envfleet.core.batch import Batch, empty_batch
from envfleet.core.errors import (
    ActionError,
    CallOrderError,
    ConfigError,
    EnvfleetError,
    RecvTimeout,
    StateError,
    short_repr,
)
from envfleet.core.executor import NO_TIMEOUT, REFUSED, Executor
from envfleet.core.options import PoolConfig
from envfleet.core.restarts import Restarts
from envfleet.core.seeding import Seed, fresh_seeds, seeds_for, to_words
from envfleet.core.spec import EnvSpec
from envfleet.core.statistics import PoolStats
from envfleet.core.validation import check_can_step, check_env_id, check_env_ids, check_step

_P = ParamSpec("_P")
_T = TypeVar("_T")

_open_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


@atexit.register
def _close_all_pools() -> None:
    for pool in list(_open_pools):
        pool.close()


@dataclass(frozen=True)
class PoolState:
    """The state of a whole pool between batches. It can be pickled, and fits pools of the same env and size."""

    env_id: str
    num_envs: int
    states: tuple[bytes, ...]
    params: tuple[str, ...]  # repr of what each env was made with
    seeds: tuple[int, ...]
    num_restarts: tuple[int, ...]  # since each env was seeded


def _guarded(method: Callable[Concatenate[Pool, _P], _T]) -> Callable[Concatenate[Pool, _P], _T]:
    """Make a method one call of its pool: no other call of the pool runs before it returns."""

    @wraps(method)
    def guarded(self: Pool, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return self._guard.run(_run, self, method, args, kwargs)

    return guarded


def _run(pool: Pool, method: Callable[..., _T], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _T:
    if pool._guard.needs_attention and method.__name__ not in ("reset", "async_reset"):  # which attend to it themselves
        pool._attend()
    return method(pool, *args, **kwargs)


class Pool:
    """num_envs envs, stepped in batches by an executor. One caller at a time.

    Synchronous (batch_size == num_envs): row i is env i. Asynchronous: rows come in order of completion and
    batch.env_id identifies them.

    While a call is in progress, every other call raises CallOrderError: from a second thread, from a signal handler,
    and from an env that calls its own pool. For any thread at any time: close(), closed, stats(), num_in_flight, seeds,
    params_of(), local_envs(), and what never changes (num_envs, spec, config).

    An exception of a signal handler, such as Ctrl-C, that arrives while a call waits for envs: what was sent may finish
    for up to a second more, which a second one ends at once. Then the call counts as done. Otherwise the pool is
    interrupted, and every call but reset() and async_reset() of all envs and close() raises CallOrderError.
    """

    def __init__(self, executor: Executor, config: PoolConfig, seed: Seed = None) -> None:
        self.config = config
        self.spec: EnvSpec = executor.spec
        self.num_envs = config.num_envs
        self._executor = executor
        self._is_async = config.is_async  # a property, which would be a call per step
        self._guard = executor.call_guard
        self._try_send = executor.sender()
        self._all_ids = np.arange(config.num_envs, dtype=np.int32)
        given = seeds_for(seed, self._all_ids, config.num_envs)
        if None in given:
            drawn = fresh_seeds(config.num_envs)
            given = [drawn[i] if own is None else own for i, own in enumerate(given)]
        seeds = [int(own) for own in given if own is not None]
        self._restarts = Restarts(executor, config, seeds)
        # After a synchronous send() of no envs, which the executor never sees: recv() returns an empty batch.
        self._has_sent_none = False
        # For rollout(), which continues only from envs that it knows. Steps are not counted: that would slow them down.
        self.num_resets = 0  # calls of reset(), async_reset() and set_state()
        self.is_restored = False  # set_state() was called after the last reset of all envs
        if config.seed_envs:
            executor.seed(self._all_ids, to_words(seeds))
        _open_pools.add(self)

    def __repr__(self) -> str:
        size = f"num_envs={self.num_envs}" + (f", batch_size={self.config.batch_size}" if self._is_async else "")
        return f"<Pool of {self.spec.id}: {size}, backend={self.spec.backend}{', closed' if self.closed else ''}>"

    # --- synchronous ---------------------------------------------------------------------

    @_guarded
    def reset(
        self,
        env_ids: Any = None,
        *,
        seed: Seed = None,
        options: Mapping[str, Any] | None = None,
        arguments: Sequence[Mapping[str, Any]] | None = None,
        timeout: float | None = None,
    ) -> Batch:
        """Reset these envs (default: all) and return their rows in this order.

        An empty array of ids returns an empty batch. All envs may be reset at any time: rows in flight are waited for
        and dropped.

        arguments: keyword arguments for the reset() of each env, passed on unchanged in place of seed and options
        (Python envs on serial, threads and processes).
        """
        timeout_s = timeout_seconds(timeout)
        if env_ids is not None:
            self._attend()
        ids, new_seeds = self._check_reset("reset()", env_ids, seed, options, arguments)
        if ids is None:
            if not self._drop_all(timeout_s):
                raise RecvTimeout(f"reset() waited {timeout} s for the envs in flight; call it again, or recv() them")
        elif self._executor.has_ordered_batch:
            raise CallOrderError(
                "reset() of some envs expected no batch in flight; recv() it first, or reset() all envs"
            )
        elif not len(ids):
            return self._empty_batch(was_reset=True)
        self._prepare_reset(ids, new_seeds)
        if arguments is None:
            batch = self._executor.reset(ids, options or {}, timeout_s)
        else:
            batch = self._executor.reset_each(ids, arguments, timeout_s)
        self._finish_reset()
        if batch is None:
            raise RecvTimeout(f"reset() did not finish within {timeout} s; recv() returns it when it does")
        return self._restarts.handle_faults(batch, was_reset=True)

    def step(self, actions: Any, env_ids: Any = None, timeout: float | None = None) -> Batch:
        """Step these envs (default: all). Synchronous pools return their rows in this order.

        On an asynchronous pool: send() and recv() in one call. An empty array of ids returns an empty batch.
        """
        # For apis: validation.LeafColumns are actions that the caller has already checked.
        timeout_s = NO_TIMEOUT if timeout is None else timeout_seconds(timeout)
        batch = self._executor.step(actions, env_ids, timeout_s)
        if type(batch) is Batch and not batch.faults:  # first, since it is nearly always so
            return batch
        if batch is REFUSED:
            batch = self._step_checked(actions, env_ids, timeout_s)
        if batch is None:
            raise RecvTimeout(f"step() did not finish within {timeout} s; recv() returns it when it does")
        return batch if not batch.faults else self._handle_faults(batch)

    @_guarded
    def _step_checked(self, actions: Any, env_ids: Any, timeout_s: float) -> Batch | None:
        self._check_batch_fills("step()", env_ids)
        actions, env_ids = check_step("step()", actions, env_ids, self._executor, self.config)
        if env_ids is not None and not len(env_ids):
            return self._empty_batch()
        batch = self._executor.step_checked(actions, env_ids, timeout_s)
        if batch is REFUSED:
            raise _changed_during_the_call()
        return batch

    def step_objects(self, actions: Sequence[Any], env_ids: Any = None, timeout: float | None = None) -> Batch:
        """Step these envs (default: all) with one Python object per env, passed to env.step() unchanged.

        For actions that are not of the action space's dtype or structure (Python envs on serial, threads and
        processes). On an asynchronous pool: send_objects() and recv() in one call.
        """
        timeout_s = timeout_seconds(timeout)
        batch = self._step_objects(actions, env_ids, timeout_s)
        if batch is None:
            raise RecvTimeout(f"step_objects() did not finish within {timeout} s; recv() returns it when it does")
        return batch if not batch.faults else self._handle_faults(batch)

    @_guarded
    def _step_objects(self, actions: Sequence[Any], env_ids: Any, timeout_s: float) -> Batch | None:
        self._check_batch_fills("step_objects()", env_ids)
        actions, ids = self._check_objects("step_objects()", actions, env_ids)
        if ids is not None and not len(ids):
            return self._empty_batch()
        batch = self._executor.step_objects(actions, ids, timeout_s)
        assert batch is not REFUSED, "checked actions are accepted"
        return batch

    def _handle_faults(self, batch: Batch) -> Batch:
        return self._guard.run(self._restarts.handle_faults, batch)

    # --- asynchronous, or a synchronous step in two halves ---------------------------------

    def send(self, actions: Any, env_ids: Any = None) -> None:
        """Start a step of these envs and return.

        After an empty array of ids, recv() returns an empty batch; an asynchronous pool sends nothing for it.
        """
        if not self._try_send(actions, env_ids):
            self._send_checked(actions, env_ids)

    @_guarded
    def _send_checked(self, actions: Any, env_ids: Any) -> None:
        actions, env_ids = check_step("send()", actions, env_ids, self._executor, self.config)
        if env_ids is not None and not len(env_ids):
            self._has_sent_none = not self._is_async
            return
        if not self._executor.send_checked(actions, env_ids):
            raise _changed_during_the_call()

    @_guarded
    def send_objects(self, actions: Sequence[Any], env_ids: Any = None) -> None:
        """Start a step of these envs with one Python object per env; see step_objects()."""
        actions, ids = self._check_objects("send_objects()", actions, env_ids)
        if ids is not None and not len(ids):
            self._has_sent_none = not self._is_async
            return
        is_sent = self._executor.send_objects(actions, ids)
        assert is_sent, "checked actions are accepted"

    def _check_objects(
        self, call: str, actions: Sequence[Any], env_ids: Any
    ) -> tuple[list[Any], NDArray[np.int32] | None]:
        ids = check_can_step(call, env_ids, self._executor, self.config)
        objects = list(actions)
        num_rows = self.num_envs if ids is None else len(ids)
        if len(objects) != num_rows:
            raise ActionError(f"{call} expected {num_rows} actions, one per env, got {len(objects)}")
        return objects, ids

    @_guarded
    def check_can_step(self, call: str, env_ids: Any = None) -> None:
        """Raise what a step of these envs (default: all) would raise now, for any actions; no env moves."""
        check_can_step(call, env_ids, self._executor, self.config)

    def recv(self, timeout: float | None = None) -> Batch:
        """Return the rows that are ready: everything that was sent, or the first batch_size rows to finish."""
        batch = self._executor.recv(NO_TIMEOUT if timeout is None else timeout_seconds(timeout))
        if type(batch) is Batch and not batch.faults:  # first, since it is nearly always so
            return batch
        if batch is REFUSED:
            if self._check_can_recv():
                return self._empty_batch()
            batch = self._executor.recv(timeout_seconds(timeout))
            assert batch is not REFUSED, "what can be received is not refused"
        if batch is None:
            raise RecvTimeout(f"recv() got no batch within {timeout} s; the next recv() returns the late rows")
        return batch if not batch.faults else self._handle_faults(batch)

    @_guarded
    def _check_can_recv(self) -> bool:
        """Raise if recv() would never return. Return whether its batch is empty: that of a step of no envs."""
        num_in_flight = self._executor.num_in_flight
        if num_in_flight == 0 and self._has_sent_none:
            self._has_sent_none = False
            return True
        if num_in_flight == 0:
            raise CallOrderError("recv() has nothing in flight to receive; call send() or async_reset() first")
        if num_in_flight < self.config.batch_size and not self._executor.has_ordered_batch:
            raise CallOrderError(
                f"recv() expected at least batch_size={self.config.batch_size} envs in flight, got {num_in_flight}; "
                "send() more, or the batch would never fill"
            )
        return False

    @_guarded
    def async_reset(
        self,
        *,
        seed: Seed = None,
        options: Mapping[str, Any] | None = None,
        arguments: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Start a reset of all envs; recv() returns their rows. arguments: as in reset()."""
        ids, new_seeds = self._check_reset("async_reset()", None, seed, options, arguments)
        if self._guard.is_interrupted:
            self._drop_all(NO_TIMEOUT)
        elif self._executor.num_in_flight:
            raise CallOrderError(
                f"async_reset() expected all envs idle, got {self._executor.num_in_flight} in flight; "
                "recv() them first, or discard them with reset() or drop_pending()"
            )
        self._prepare_reset(ids, new_seeds)
        if arguments is None:
            self._executor.send_reset(ids, options or {})
        else:
            self._executor.send_reset_each(ids, arguments)
        self._finish_reset()

    @_guarded
    def drop_pending(self, timeout: float | None = None) -> None:
        """Wait for the envs in flight and discard their rows; without any, do nothing.

        An asynchronous reset of a busy pool is drop_pending(), async_reset() and recv().
        """
        self._has_sent_none = False
        if not self._drop_all(timeout_seconds(timeout)):
            raise RecvTimeout(
                f"drop_pending() waited {timeout} s for the envs in flight; call it again, or recv() their rows"
            )
        self._executor.clear_faults()  # of the rows that were discarded; the next reset rebuilds their envs

    @_guarded
    def native_pool(self) -> _native.NativePool | None:
        """Return the pool in C++ that threads without the GIL may step, or None: these envs need Python.

        For envfleet.apis.jax.
        """
        return self._executor.native_pool()

    # --- between batches -------------------------------------------------------------------

    @_guarded
    def get_state(self) -> PoolState:
        """Return the state of every env, from which set_state() continues bit for bit."""
        self._check_idle("get_state()")
        seeds, num_restarts = tuple(self._restarts.seeds), tuple(self._restarts.counts)
        return PoolState(self.spec.id, self.num_envs, self._states(), self._params(), seeds, num_restarts)

    def _states(self) -> tuple[bytes, ...]:
        return tuple(self._executor.get_state(i) for i in range(self.num_envs))

    def _params(self) -> tuple[str, ...]:
        return tuple(repr(sorted(self._executor.params_of(i).items())) for i in range(self.num_envs))

    @_guarded
    def set_state(self, state: PoolState | bytes) -> None:
        """Restore a state that get_state() returned. If that fails, every env keeps its current state."""
        self._check_idle("set_state()")
        state = _fitting_state(state, self.spec.id, self._params())
        before = self._states()
        self._guard.begin_parts()
        try:
            for env_id, env_state in enumerate(state.states):
                self._executor.set_state(env_id, env_state)
        except StateError:
            for env_id, env_state in enumerate(before):
                # An env that cannot restore its old state is broken, and rebuilt at its next reset.
                with contextlib.suppress(EnvfleetError):
                    self._executor.set_state(env_id, env_state)
            raise
        self._restarts.load(state.seeds, state.num_restarts)
        self.num_resets += 1
        self.is_restored = True

    def observe(self) -> Any:
        """Return the current observations of all envs, as in their last rows."""
        return self.observe_episodes()[0]

    @_guarded
    def observe_episodes(self) -> tuple[Any, NDArray[np.int32]]:
        """Return the current observations of all envs and their elapsed steps, as in their last rows."""
        self._check_idle("observe()")
        return self._executor.observe()

    @_guarded
    def get_attr(self, name: str, env_ids: Sequence[int] | None = None) -> tuple[Any, ...]:
        """Return an attribute of each env."""
        self._check_idle("get_attr()")
        return tuple(self._executor.get_attr(self._chosen("get_attr()", env_ids).tolist(), name))

    @_guarded
    def call(self, /, name: str, *args: Any, env_ids: Sequence[int] | None = None, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each env. Non-callable attributes are returned unchanged."""
        self._check_idle("call()")
        return tuple(self._executor.call(self._chosen("call()", env_ids).tolist(), name, args, kwargs))

    @_guarded
    def apply(
        self, /, function: Callable[..., Any], *args: Any, env_ids: Sequence[int] | None = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """Return function(env, *args, **kwargs) for each env, called where the env lives.

        For Python envs on serial, threads and processes; processes pickle the function with cloudpickle.
        """
        self._check_idle("apply()")
        return tuple(self._executor.apply(self._chosen("apply()", env_ids).tolist(), function, args, kwargs))

    @_guarded
    def phases(self) -> NDArray[np.uint8]:
        """Return the autoreset.Phase of each env: what its next step or reset will do."""
        self._check_idle("phases()")
        return self._executor.phases()

    def local_envs(self) -> list[Any]:
        """Return the env objects, in the order of their ids; none after close().

        Raises ConfigError unless they live in this process (serial, threads).
        """
        return self._executor.local_envs()

    @_guarded
    def mark_running(self, env_ids: Sequence[int] | None = None) -> None:
        """Let the next step() step these envs (default: all) as they are.

        Otherwise step() refuses envs that were not reset, that raised, and, with autoreset disabled, that have ended.
        For Python envs on serial, threads and processes.
        """
        self._check_idle("mark_running()")
        for env_id in self._chosen("mark_running()", env_ids).tolist():
            self._executor.set_phase(env_id, int(Phase.RUNNING))

    @_guarded
    def set_attr(self, name: str, values: Any, env_ids: Sequence[int] | None = None) -> None:
        """Set an attribute: one value for all envs, or a list or tuple with one value per env.

        If an env refuses its value, this raises. Native envs then all keep their old values (on Ray, those of the same
        actor); of Python envs, the others have their new ones.
        """
        self._check_idle("set_attr()")
        chosen = self._chosen("set_attr()", env_ids)
        per_env = list(values) if isinstance(values, (list, tuple)) else [values] * len(chosen)
        if len(per_env) != len(chosen):
            raise ConfigError(f"set_attr() expected {len(chosen)} values, one per env, got {len(per_env)}")
        self._executor.set_attrs(chosen.tolist(), name, per_env)

    def render(self, env_id: int) -> Any:
        """Return what one env renders: an RGB image, or None if it renders none."""
        return self.render_all([env_id])[0]

    @_guarded
    def render_all(self, env_ids: Sequence[int] | None = None) -> tuple[Any, ...]:
        """Return what each of these envs (default: all) renders: an RGB image, or None if it renders none."""
        self._check_idle("render()")
        return tuple(self._executor.render(self._chosen("render()", env_ids).tolist()))

    def stats(self) -> PoolStats:
        """Return the steps, episodes, returns and times since the pool was made.

        PoolStats.since() gives those since an earlier call. For any thread at any time, such as a logger's, and also
        after close(). On Ray, threads other than the one that steps the pool get counts that may be a second old.
        """
        return self._executor.stats()

    @_guarded
    def get_attrs(self, env_id: int) -> dict[str, Any]:
        """Return all attributes of one env by name, if it can list them (native envs)."""
        self._check_idle("get_attrs()")
        return self._executor.get_attrs(int(check_env_ids("get_attrs()", [env_id], self._executor)[0]))

    def params_of(self, env_id: int) -> Mapping[str, Any]:
        """Return the parameters that one env was made with."""
        return self._executor.params_of(check_env_id("params_of()", env_id, self.num_envs))

    def check_env_ids(self, call: str, env_ids: Any) -> NDArray[np.int32]:
        """Return env ids as an int32 array. Raises EnvIdError unless they are in range, distinct and idle.

        call: the name of the method for the error message.
        """
        return check_env_ids(call, env_ids, self._executor)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seed that each env was last given."""
        return tuple(self._restarts.seeds)

    @property
    def num_in_flight(self) -> int:
        """The number of envs that were sent and not yet received."""
        return self._executor.num_in_flight

    @property
    def executor(self) -> Executor:
        """The executor that runs the envs; for tests and tools."""
        return self._executor

    # --- life cycle --------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._guard.is_closing

    def close(self, *, terminate: bool = False) -> None:
        """End the workers. Idempotent; also called by `with`, garbage collection and at exit.

        From another thread: new calls raise PoolClosedError at once, and the call in progress may finish its batch.
        From a signal handler or an env inside a call: returns at once, and that call raises PoolClosedError. After
        Ctrl-C in close(), another close() continues.

        terminate: kill worker processes at once instead of waiting for their envs to close.
        """
        if terminate:
            self._executor.terminate()
        else:
            self._executor.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a pool cannot be pickled or copied: expected it to stay in the process that made it; make another pool "
            "there, and take the states of the envs along with get_state() and set_state()"
        )

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # If the constructor raised there may be no executor to close.
        if hasattr(self, "_executor"):
            self.close()

    # --- rules -------------------------------------------------------------------------------

    def _attend(self) -> None:
        """Deal with what an earlier call left behind: raise if it was interrupted, handle envs that raised in it."""
        if self._guard.is_interrupted:
            raise CallOrderError(
                "expected a pool whose last call ended, got one that was interrupted; reset() all envs first"
            )
        if self._guard.has_unreported:
            self._restarts.handle_lost(self._executor.unreported_faults())

    def _drop_all(self, timeout_s: float) -> bool:
        """Discard everything in flight. Returns False after timeout_s."""
        if not self._executor.num_in_flight and not self._guard.is_interrupted:
            return True
        return self._executor.drop_pending(timeout_s)

    def _check_idle(self, call: str) -> None:
        if self._executor.num_in_flight:
            raise CallOrderError(
                f"{call} expected all envs idle, got {self._executor.num_in_flight} in flight; recv() them first"
            )

    def _chosen(self, call: str, env_ids: Any) -> NDArray[np.int32]:
        return self._all_ids if env_ids is None else check_env_ids(call, env_ids, self._executor)

    def _check_batch_fills(self, call: str, env_ids: Any) -> None:
        """Raise if a step of an asynchronous pool would never return."""
        if not self._is_async:
            return
        if self._executor.has_ordered_batch:
            raise CallOrderError(f"{call} expected no late batch in flight; recv() it first, or reset() all envs")
        num_rows = self.num_envs if env_ids is None else len(check_env_ids(call, env_ids, self._executor))
        if num_rows and self._executor.num_in_flight + num_rows < self.config.batch_size:
            raise CallOrderError(
                f"{call} expected at least batch_size={self.config.batch_size} envs in flight with these {num_rows}, "
                f"got {self._executor.num_in_flight + num_rows}; send() more, then recv()"
            )

    def _empty_batch(self, *, was_reset: bool = False) -> Batch:
        return empty_batch(self.spec, self.config.autoreset_mode, was_reset=was_reset)

    def _check_reset(
        self,
        call: str,
        env_ids: Any,
        seed: Seed,
        options: Mapping[str, Any] | None,
        arguments: Sequence[Mapping[str, Any]] | None,
    ) -> tuple[NDArray[np.int32] | None, list[int | None]]:
        """Return the ids, None for all, and the seed of each env. Raises before any env has moved."""
        ids = None if env_ids is None else check_env_ids(call, env_ids, self._executor)
        if options is not None and not isinstance(options, Mapping):
            raise ConfigError(f"{call} expected options as a dict, got {short_repr(options)}")
        if options and "reset_mask" in options:
            raise ConfigError(
                f"{call} expected options for the envs, got 'reset_mask', which only reset() of a VectorEnv takes; "
                "pass the ids of the envs instead"
            )
        self._executor.check_reset_options(options or {})
        if arguments is not None:
            self._check_arguments(call, self._all_ids if ids is None else ids, seed, options, arguments)
        return ids, seeds_for(seed, self._all_ids if ids is None else ids, self.num_envs)

    def _check_arguments(
        self,
        call: str,
        ids: NDArray[np.int32],
        seed: Seed,
        options: Mapping[str, Any] | None,
        arguments: Sequence[Mapping[str, Any]],
    ) -> None:
        if seed is not None or options is not None:
            raise ConfigError(f"{call} expected arguments or seed and options, got both; put them into arguments")
        if len(arguments) != len(ids):
            what = "1 mapping" if len(ids) == 1 else f"{len(ids)} mappings"
            raise ConfigError(f"{call} expected {what} of reset arguments, one per env, got {len(arguments)}")
        for env_id, own in zip(ids, arguments, strict=True):
            if not isinstance(own, Mapping):
                raise ConfigError(
                    f"{call} expected a mapping of reset arguments, got {type(own).__name__} for env {env_id}"
                )

    def _prepare_reset(self, ids: NDArray[np.int32] | None, new_seeds: list[int | None]) -> None:
        """Rebuild the broken ones of these envs, then set the seeds that were given.

        If the call ends before _finish_reset(), the pool is interrupted.
        """
        self._guard.begin_parts()
        chosen = self._all_ids if ids is None else ids
        self.num_resets += 1
        if ids is None:
            self._has_sent_none = False
            self.is_restored = False
            self._executor.clear_faults()  # those that raised are rebuilt now
        self._restarts.rebuild_broken(chosen)
        seeds = {int(env_id): seed for env_id, seed in zip(chosen, new_seeds, strict=True) if seed is not None}
        if seeds:
            self._executor.seed(np.array(list(seeds), dtype=np.int32), to_words(list(seeds.values())))
            for env_id, seed in seeds.items():
                self._restarts.set_seed(env_id, seed)

    def _finish_reset(self) -> None:
        self._guard.is_interrupted = False  # true only if all envs were reset
        self._guard.end_parts()


def _changed_during_the_call() -> ActionError:
    return ActionError(
        "expected actions that do not change during the call, got an array that changed after it was checked; "
        "pass a copy if another thread writes to the array"
    )


def timeout_seconds(timeout: float | None) -> float:
    """Return a timeout in seconds, NO_TIMEOUT for None. Raises ConfigError unless it is None or a number >= 0."""
    if timeout is None:
        return NO_TIMEOUT
    try:
        seconds = float(timeout)
    except (TypeError, ValueError, OverflowError):  # the last of an integer beyond the largest float
        seconds = -1.0
    if not seconds >= 0:
        raise ConfigError(f"timeout expected seconds >= 0, or None for no limit, got {timeout!r}")
    return seconds


def _is_complete(state: PoolState) -> bool:
    """Return whether a state has all its parts: a damaged pickle may hold anything."""
    parts = {"states": bytes, "params": str, "seeds": int, "num_restarts": int}
    values = {name: getattr(state, name, None) for name in ("env_id", "num_envs", *parts)}
    if not isinstance(values["env_id"], str) or not isinstance(values["num_envs"], int):
        return False
    for name, kind in parts.items():
        part = values[name]
        if not isinstance(part, tuple) or len(part) != values["num_envs"]:
            return False
        if not all(isinstance(own, kind) for own in part):
            return False
    return all(0 <= seed < 2**128 for seed in state.seeds) and min(state.num_restarts, default=0) >= 0


def _fitting_state(state: PoolState | bytes, env_id: str, params: tuple[str, ...]) -> PoolState:
    """Return the state, unpickled if need be. Raises StateError unless it fits a pool with this env and params."""
    num_envs = len(params)
    if isinstance(state, bytes):
        try:
            state = pickle.loads(state)
        except Exception as error:
            raise StateError(f"set_state() expected a pickled PoolState, got other bytes: {error}") from error
    if not isinstance(state, PoolState):
        raise StateError(f"set_state() expected a PoolState from get_state(), got {type(state).__name__}")
    if not _is_complete(state):
        raise StateError(
            "set_state() expected a PoolState with one state per env, got a damaged one; save it again with get_state()"
        )
    if (state.env_id, state.num_envs) != (env_id, num_envs):
        raise StateError(
            f"set_state() expected a state of {num_envs} x {env_id}, "
            f"got one of {state.num_envs} x {state.env_id}; make a pool like the one that was saved"
        )
    for position, (own, saved) in enumerate(zip(params, state.params, strict=True)):
        if own != saved:
            raise StateError(f"set_state() expected env {position} with the parameters {own}, got a state with {saved}")
    return state
