"""EnvRunner: what a worker's loop leaves to Python.

The native StepLoop takes the requests, calls step() and reset() of the envs, and handles the plain case by itself. For
everything else it asks the runner, and goes on with what that returns: nested actions, results of unusual types,
messages, exceptions, calls by name. The runner knows nothing of the loop.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet import _native
from envfleet.core.autoreset import NATIVE_CODES
from envfleet.core.batch import Fault
from envfleet.core.errors import PoolClosedError, StateError, short_repr
from envfleet.core.executor import split_envs
from envfleet.core.spaces import Leaf, dtype_remedy, fits, join, path_text, plain_array_leaf, split
from envfleet.core.tracebacks import WrongResultError, encodable, message_of
from envfleet.executors import debugger
from envfleet.executors.env_reports import NoSuchAttributeError
from envfleet.executors.python.building import EnvBuilder
from envfleet.executors.python.finite import check_observation, check_reward
from envfleet.executors.python.layout import Layout, write_text
from envfleet.executors.python.side_channel import LocalSideChannel, NoRoomError, SideChannel
from envfleet.executors.python.snapshots import snapshot


@dataclass(frozen=True)
class ResetArguments:
    """A request: reset the env with these keyword arguments, unchanged, instead of a seed and options."""

    keywords: dict[str, Any]


@dataclass(frozen=True)
class ObjectAction:
    """A request: step the env with this object, unchanged, instead of a row of the action columns."""

    action: Any


_MAX_INFO_DEPTH = 100


def pin_worker(offset: int, worker: int) -> None:
    """Pin the calling thread, and what it starts, to the (offset + worker)-th core that this process may use.

    The cores of a NUMA node come one after another, as for the native engine's threads (native/engine/cores.cc):
    workers with neighbouring rows share pages of memory. A negative offset pins nothing.
    """
    if offset < 0 or not hasattr(os, "sched_setaffinity"):
        return
    cores = _native.cores_by_node(sorted(os.sched_getaffinity(0)))
    os.sched_setaffinity(0, {cores[(offset + worker) % len(cores)]})


class EnvRunner:
    """The envs of one worker, and what their loop asks of them. One thread at a time."""

    def __init__(
        self,
        layout: Layout,
        buffer: NDArray[np.uint8],
        worker: int,
        side_channel: SideChannel,
        builders: Sequence[EnvBuilder],
        envs: Mapping[int, Any],
        check_process: Callable[[], None],
    ) -> None:
        """builders: for this worker's envs, in their order; envs: those that are already built, by env id.

        check_process: called after each call of an env, as for build_envs().
        """
        self._layout = layout
        self._buffer = buffer
        self._worker = worker
        self._columns = layout.columns(buffer)
        self._side_channel = side_channel
        self._is_local = isinstance(side_channel, LocalSideChannel)
        self._env_ids = split_envs(layout.num_envs, layout.num_workers)[worker]
        self._builders = builders
        self._check_process = check_process
        self._envs: list[Any] = [None] * len(self._env_ids)  # the loop's too
        self._close_faults: list[tuple[int, str]] = []
        self._split_obs = split(layout.observation_space, "observation")
        # An array of the declared dtype and shape, as almost every one is, needs no further check.
        self._declared_arrays = [
            (leaf.dtype, leaf.shape) if leaf.kind == "array" else None for leaf in layout.obs_leaves
        ]
        self._join_action = join(layout.action_space)
        self._join_obs = join(layout.observation_space)
        for env_id, env in envs.items():
            self._install(env_id, env)

    def make_loop(self, max_episode_steps: int | None, num_cores: int) -> _native.StepLoop:
        """Return the loop that runs these envs."""
        is_plain_action = plain_array_leaf(self._layout.action_leaves) is not None
        return _native.StepLoop(
            buffer=self._buffer,
            num_envs=self._layout.num_envs,
            num_workers=self._layout.num_workers,
            worker=self._worker,
            autoreset=NATIVE_CODES[self._layout.autoreset_mode],
            max_episode_steps=max_episode_steps or 0,
            num_cores=num_cores,
            check_finite=self._layout.check_finite,
            obs=self._native_columns(),
            action=self._columns.action[0] if is_plain_action else None,
            info=self._columns.info,
            kept=self._columns.kept,
            envs=self._envs,
            runner=self,
        )

    @property
    def envs(self) -> list[Any]:
        """The env objects in the order of their ids; none after close()."""
        return [env for env in self._envs if env is not None]

    # --- what the loop asks --------------------------------------------------------------------

    def reset_arguments(self, env_id: int, num_bytes: int, seed: int | None) -> dict[str, Any]:
        """Return the keyword arguments of a reset with a seed, or with options or arguments of its own."""
        request = self._side_channel.take_request(env_id, num_bytes) if num_bytes else None
        if isinstance(request, ResetArguments):
            return request.keywords
        both = {"seed": seed, "options": request}
        return {name: value for name, value in both.items() if value is not None}

    def action(self, env_id: int, num_bytes: int) -> Any:
        """Return an action that is not a row of a single column: a nested one, or an object."""
        request = self._side_channel.take_request(env_id, num_bytes) if num_bytes else ()
        if isinstance(request, ObjectAction):
            return request.action
        objects = iter(request)
        values = []
        for leaf, column in zip(self._layout.action_leaves, self._columns.action, strict=True):
            if leaf.kind == "array":
                assert column is not None
                # A numpy scalar for shape (), else a copy: the env may keep it.
                values.append(column[env_id].copy() if leaf.shape else column[env_id])
            else:
                values.append(next(objects))
        return self._join_action(values)

    def read_step(self, result: Any) -> tuple[list[Any], float, bool, bool, dict[str, Any]]:
        """Return what step() returned in the form of a row, with the leaves of the observation."""
        obs, reward, terminated, truncated, info = _read_step(result)
        if self._layout.check_finite:
            check_reward(reward)
        return self._checked(obs), reward, terminated, truncated, info

    def read_reset(self, result: Any) -> tuple[list[Any], dict[str, Any]]:
        """Return what reset() returned in the form of a row, with the leaves of the observation."""
        obs, info = _read_reset(result)
        return self._checked(obs), info

    def write_row(
        self,
        env_id: int,
        leaves: list[Any],
        extras: dict[str, Any] | None,
        is_final: bool,
        message: dict[str, Any] | None,
    ) -> dict[str, Any] | None:
        """Write an observation into its columns, and return the message with what fits none; None if it is empty.

        extras: infos that fit no column. message: of the final row, for the row of the reset that follows it.
        """
        obs_key, info_key = ("final_obs", "final_info") if is_final else ("obs", "info")
        message = message or {}
        objects = self._write_obs(env_id, leaves, self._columns.final if is_final else self._columns.obs)
        if objects:
            message[obs_key] = objects
        if extras:
            message[info_key] = _checked_depth(extras)
        if is_final:
            # Before reset(), which may overwrite them.
            self._snapshot(message, obs_key, info_key)
        return message or None

    def send(self, env_id: int, message: dict[str, Any]) -> int:
        """Send a message and return its size."""
        if self._is_local:  # else it is pickled now
            self._snapshot(message, "obs", "info")
        try:
            return self._side_channel.put_reply(env_id, message)
        except NoRoomError:
            raise
        except PoolClosedError:
            # The env closed the descriptor of the shared memory. This worker can report nothing any more; its end is
            # noticed, and a reset starts another.
            os._exit(1)
        except Exception as error:
            what = "a result" if "value" in message else "infos and observations"
            raise WrongResultError(
                f"expected {what} that can be pickled, got {', '.join(message)} that cannot: "
                f"{message_of(error)}; keep such objects in the env and access them with call()"
            ) from error

    def send_info(self, env_id: int, extras: dict[str, Any]) -> int:
        """Send infos that fit no column, for a row with nothing else that needs a message."""
        return self.send(env_id, {"info": _checked_depth(extras)})

    def fault(self, env_id: int, method: str, error: BaseException) -> int:
        """Clear the row of an env that raised, and send the fault."""
        if method != "call":
            for column in self._columns.obs:
                if column is not None:
                    column[env_id] = 0
        return self.send(env_id, {"fault": Fault.of(error, method, env_id)})

    def call(self, env_id: int, num_bytes: int) -> int:
        """Do what a request asks of an env, and send the result. It may replace the env."""
        what, *details = self._side_channel.take_request(env_id, num_bytes)
        value: Any = getattr(self, f"_do_{what}")(env_id, *details)
        self._check_process()
        return self.send(env_id, {"value": value})

    def schema(self, version: int, num_bytes: int) -> list[Any]:
        """Return a version of the info columns' schema that the caller has published."""
        return self._side_channel.take_schema(version, num_bytes)

    def end_prompt(self, has_more: bool) -> None:
        """Hand the terminal back, at the end of a call in which an env opened a prompt, or of one after it."""
        debugger.end_prompt(has_more)

    # --- requests by name ------------------------------------------------------------------------

    def _do_rebuild(self, env_id: int) -> None:
        old = self._env(env_id)
        if old is not None:
            self._set_env(env_id, None)
            _close_quietly(old)
            self._check_process()  # a child forked in close() would build an env before call() ends it
        self._install(env_id, self._builders[env_id - self._env_ids.start].build(env_id))

    def _do_call(self, env_id: int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        attribute = self._do_get(env_id, name)
        return attribute(*args, **kwargs) if callable(attribute) else attribute

    def _do_apply(
        self, env_id: int, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return function(self._env(env_id), *args, **kwargs)

    def _do_get(self, env_id: int, name: str) -> Any:
        env = self._env(env_id)
        try:
            # Gymnasium's method finds attributes of wrapped envs too.
            return env.get_wrapper_attr(name) if hasattr(env, "get_wrapper_attr") else getattr(env, name)
        except AttributeError as error:
            raise NoSuchAttributeError(*error.args) from error

    def _do_set(self, env_id: int, name: str, value: Any) -> None:
        env = self._env(env_id)
        if hasattr(env, "set_wrapper_attr"):
            env.set_wrapper_attr(name, value)
        else:
            setattr(env, name, value)

    def _do_save(self, env_id: int) -> bytes:
        try:
            state: bytes = cloudpickle.dumps(self._env(env_id))
        except Exception as error:
            raise StateError(f"it cannot be pickled: {message_of(error)}") from error
        return state

    def _do_load(self, env_id: int, state: bytes) -> None:
        try:
            env = cloudpickle.loads(state)
        except Exception as error:
            raise StateError(f"it cannot be unpickled: {message_of(error)}") from error
        old = self._env(env_id)
        self._install(env_id, env)
        if old is not None:
            _close_quietly(old)

    # --- closing ---------------------------------------------------------------------------------

    def close(self, in_callers_thread: bool = False) -> list[tuple[int, str]]:
        """Close the envs, which no loop runs any more, and return what they raised, by env id.

        Ctrl-C in the caller's thread is raised; calling this again closes the rest.
        """
        for env_id in self._env_ids:
            env = self._env(env_id)
            if env is None:
                continue
            self._set_env(env_id, None)
            try:
                env.close()
            except BaseException as error:
                if in_callers_thread and isinstance(error, KeyboardInterrupt):
                    raise
                self._close_faults.append((env_id, message_of(error)))
            # Not after the loop: a child forked in close() would close the other envs as well, and each of them might
            # fork again.
            self._check_process()
        return self._close_faults

    # --- parts of a row ----------------------------------------------------------------------------

    def _native_columns(self) -> Any:
        """Return [column, is_text] per leaf, nested as the space is; None if the native loop cannot write them."""
        columns = self._columns.obs
        if any(column is None for column in columns):
            return None
        leaves = zip(self._layout.obs_leaves, columns, strict=True)
        return self._join_obs([[column, leaf.kind == "text"] for leaf, column in leaves])

    def _env(self, env_id: int) -> Any:
        """Return an env; None while it is not built."""
        return self._envs[env_id - self._env_ids.start]

    def _set_env(self, env_id: int, env: Any) -> None:
        self._envs[env_id - self._env_ids.start] = env

    def _install(self, env_id: int, env: Any) -> None:
        if self._env(env_id) is not env:
            # Envs of ours that write their observation into given memory save the copy of a large array.
            # Looked up in the class: an env may have a __getattr__ that returns a method for every name.
            observe_into = getattr(type(env), "envfleet_observe_into", None)
            if observe_into is not None:
                rows = [None if own is None else own[env_id, ...] for own in self._columns.obs]
                observe_into(env, self._join_obs(rows))
        self._set_env(env_id, env)

    def _snapshot(self, message: dict[str, Any], obs: str, info: str) -> None:
        """Copy what the env may overwrite later: observations, and arrays and containers in infos."""
        if info in message:
            message[info] = snapshot(message[info])
        if obs in message:
            message[obs] = [snapshot(value, copies_objects=True) for value in message[obs]]

    def _checked(self, obs: Any) -> list[Any]:
        """Return the leaves of an observation, each in the form of its column."""
        try:
            values = self._split_obs(obs)
        except ValueError as error:
            raise WrongResultError(f"{error}; return an element of observation_space") from None
        for i, (declared, value) in enumerate(zip(self._declared_arrays, values, strict=True)):
            if type(value) is not np.ndarray or (value.dtype, value.shape) != declared:
                values[i] = _checked_leaf(self._layout.obs_leaves[i], value)
        if self._layout.check_finite:
            check_observation(self._layout.obs_leaves, values)
        return values

    def _write_obs(self, env_id: int, leaves: list[Any], columns: Sequence[NDArray[Any] | None]) -> list[Any]:
        """Write an observation into these columns, and return the leaves that have none."""
        objects = []
        for leaf, column, value in zip(self._layout.obs_leaves, columns, leaves, strict=True):
            if column is None:
                objects.append(value)
            elif leaf.kind == "text":
                write_text(column[env_id], value)
            else:
                column[env_id] = value
        return objects


def _checked_depth(info: dict[str, Any]) -> dict[str, Any]:
    level = [info]
    for _ in range(_MAX_INFO_DEPTH):
        # By identity: a dict that contains itself twice would double with every level.
        inner = {id(value): value for own in level for value in own.values() if isinstance(value, dict)}
        if not inner:
            return info
        level = list(inner.values())
    raise WrongResultError(
        f"expected infos with at most {_MAX_INFO_DEPTH} dicts inside each other, got one that is deeper or "
        "contains itself; return a copy of what is of interest"
    )


def _read_step(result: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
    if not isinstance(result, tuple) or len(result) != 5:
        got = f"a tuple of {len(result)}" if isinstance(result, tuple) else short_repr(result)
        raise WrongResultError(
            f"expected step() to return (obs, reward, terminated, truncated, info), got {got}; "
            "return those five (an env in the style of old gym must not derive from gymnasium.Env)"
        )
    obs, reward, terminated, truncated, info = result
    try:
        if isinstance(reward, (str, bytes, bytearray, complex, np.complexfloating)):  # float() takes some of them
            raise TypeError
        number = float(reward)
    except (TypeError, ValueError):
        raise WrongResultError(f"expected a numeric reward, got {short_repr(reward)}; return float(reward)") from None
    flags = []
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, (bool, np.bool_, int, np.integer)) and np.ndim(flag) > 0:
            raise WrongResultError(f"expected True or False as {name}, got {short_repr(flag)}; return bool({name})")
        if flag is None or isinstance(flag, (str, bytes, Mapping)):
            raise WrongResultError(f"expected True or False as {name}, got {short_repr(flag)}; return bool({name})")
        flags.append(bool(flag))
    return obs, number, flags[0], flags[1], _checked_info(info, "step()")


def _read_reset(result: Any) -> tuple[Any, dict[str, Any]]:
    if not isinstance(result, tuple) or len(result) != 2:
        got = f"a tuple of {len(result)}" if isinstance(result, tuple) else short_repr(result)
        raise WrongResultError(f"expected reset() to return (obs, info), got {got}; return both")
    return result[0], _checked_info(result[1], "reset()")


def _checked_info(info: Any, call: str) -> dict[str, Any]:
    if type(info) is dict:
        return info
    if isinstance(info, Mapping):
        return dict(info)
    raise WrongResultError(f"expected {call} to return a dict as info, got {short_repr(info)}; return {{}} for none")


def _checked_leaf(leaf: Leaf, value: Any) -> Any:
    if leaf.kind == "object":
        return value
    where = f"the observation{path_text(leaf.path)}"
    if leaf.kind == "text":
        longest = leaf.space.max_length  # type: ignore[attr-defined]  # a Text space
        if not isinstance(value, str) or len(value) > longest:
            raise WrongResultError(f"expected {where} as a str of up to {longest} characters, got {short_repr(value)}")
        return value
    if value is None:
        raise WrongResultError(f"expected {where} of shape {leaf.shape} and dtype {leaf.dtype}, got None")
    try:
        array = np.asarray(value)
    except Exception as error:
        reason = encodable(str(error))
        raise WrongResultError(f"expected {where} as an array, got {short_repr(value)}: {reason}") from None
    if array.dtype == object:
        raise WrongResultError(f"expected {where} as an array of dtype {leaf.dtype}, got {short_repr(value)}")
    if array.shape != leaf.shape:
        raise WrongResultError(
            f"expected {where} of shape {leaf.shape}, got {array.shape}; return an element of observation_space"
        )
    if not np.can_cast(array.dtype, leaf.dtype, "same_kind"):
        raise WrongResultError(
            f"expected {where} of dtype {leaf.dtype}, got {array.dtype}; {_dtype_remedy(leaf, array)}"
        )
    if not np.can_cast(array.dtype, leaf.dtype) and not fits(array, leaf.dtype):
        raise WrongResultError(
            f"expected {where} of dtype {leaf.dtype}, got {short_repr(value)}, which it cannot hold; "
            f"{_dtype_remedy(leaf, array)}"
        )
    return array


def _dtype_remedy(leaf: Leaf, array: NDArray[Any]) -> str:
    return dtype_remedy(array, leaf.dtype, "obs", is_box=isinstance(leaf.space, spaces.Box))


def _close_quietly(env: Any) -> None:
    """Close an env that is being replaced; it may be in any state."""
    try:
        env.close()
    except BaseException:
        return
