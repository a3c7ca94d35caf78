"""EnvRunner: the worker's side of a board, for all that is not the plain case.

The native StepLoop takes the requests and does the plain case of a step itself; for the rest
it calls this: building, seeds, nested spaces, odd results, faults, calls by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from envfleet import _native
from envfleet.autoreset import NATIVE_CODES
from envfleet.errors import StateError
from envfleet.executors.python.faults import (
    NoSuchAttributeError,
    WrongResultError,
    clean,
    message_of,
    shown,
    trouble_of,
)
from envfleet.executors.python.layout import Layout, plain_array_leaf, write_text
from envfleet.executors.python.mailbox import LocalMailbox, Mailbox, NoRoomError
from envfleet.making.builders import EnvBuilder
from envfleet.spaces import Leaf, join, path_text, split


class EnvRunner:
    """Runs one worker's share of the envs. One thread at a time."""

    def __init__(
        self,
        layout: Layout,
        buffer: NDArray[np.uint8],
        worker: int,
        mailbox: Mailbox,
        builders: Sequence[EnvBuilder],
        envs: Mapping[int, Any],
        max_episode_steps: int | None,
        max_spinners: int,
    ) -> None:
        """builders: of this worker's envs, in their order; envs: those that are built already, by env id."""
        self._layout = layout
        self._columns = layout.columns(buffer)
        self._mailbox = mailbox
        self._is_local = isinstance(mailbox, LocalMailbox)
        self._first_env = _native.first_env_of(layout.num_envs, layout.num_workers, worker)
        self._builders = builders
        self._envs: dict[int, Any] = {}
        self._close_faults: list[tuple[int, str]] = []
        self._split_obs = split(layout.observation_space, "observation")
        self._join_action = join(layout.action_space)
        is_plain_obs = plain_array_leaf(layout.obs_leaves) is not None
        self._rows = self._columns.obs[0] if is_plain_obs else None
        is_plain_action = plain_array_leaf(layout.action_leaves) is not None
        self.loop = _native.StepLoop(
            buffer=buffer,
            num_envs=layout.num_envs,
            num_workers=layout.num_workers,
            worker=worker,
            autoreset=NATIVE_CODES[layout.autoreset_mode],
            max_episode_steps=max_episode_steps or 0,
            max_spinners=max_spinners,
            obs=self._columns.obs[0] if is_plain_obs else None,
            action=self._columns.action[0] if is_plain_action else None,
            info=self._columns.info,
            runner=self,
        )
        for env_id, env in envs.items():
            self._install(env_id, env)

    # --- called by the native loop -----------------------------------------------------------

    def reset(self, env_id: int, has_options: int) -> BaseException | None:
        """A reset with a seed or options."""
        try:
            options = self._mailbox.take_request(env_id, self.loop.request_bytes(env_id)) if has_options else None
            seed = self.loop.take_seed(env_id)
            given = {name: value for name, value in (("seed", seed), ("options", options)) if value is not None}
            result = self._envs[env_id].reset(**given)
        except BaseException as error:
            return self.fault(env_id, "reset", error)
        return self.finish_reset(env_id, result)

    def finish_reset(self, env_id: int, result: Any) -> BaseException | None:
        """Writes the row of a reset that returned this."""
        letter: dict[str, Any] = {}
        try:
            obs, info = _read_reset(result)
            self._write_obs(env_id, self._checked(obs), letter, "obs")
            self._pack_info(env_id, info, letter, is_final=False)
            self.loop.count_reset(env_id, False)
            self._send(env_id, letter)
            self._refresh(env_id)
        except BaseException as error:
            return self.fault(env_id, "reset", error)
        return None

    def finish_step(self, env_id: int, result: Any, then_reset: bool) -> BaseException | None:
        """Writes the row of a step that returned this; resets after an end where the mode says so."""
        letter: dict[str, Any] = {}
        try:
            obs, reward, terminated, truncated, info = _read_step(result)
            leaves = self._checked(obs)
            ended = self.loop.count_step(env_id, reward, terminated, truncated)
            is_last = ended and then_reset
            self._write_obs(env_id, leaves, letter, "final_obs" if is_last else "obs")
            self._pack_info(env_id, info, letter, is_final=is_last)
            if not is_last:
                self._send(env_id, letter)
                return None
        except BaseException as error:
            return self.fault(env_id, "step", error)
        try:
            obs, info = _read_reset(self._envs[env_id].reset())
            self._write_obs(env_id, self._checked(obs), letter, "obs")
            self._pack_info(env_id, info, letter, is_final=False)
            self.loop.count_reset(env_id, True)
            self._send(env_id, letter)
            self._refresh(env_id)
        except BaseException as error:
            return self.fault(env_id, "reset", error)
        return None

    def fault(self, env_id: int, method: str, error: BaseException) -> BaseException | None:
        """Completes the row or call of an env that raised. Gives a KeyboardInterrupt back, which is the caller's."""
        if method != "call":
            self.loop.count_fault(env_id, method == "reset")
            for column in self._columns.obs:
                if column is not None:
                    column[env_id] = 0
        trouble = trouble_of(error, method, is_leaving=not self._is_local)
        self._send(env_id, {"fault": (trouble, error if self._is_local else None)})
        return error if isinstance(error, KeyboardInterrupt) else None

    def lost(self, env_id: int, is_reset: int) -> None:
        """Completes the row of an env that died with this worker's predecessor."""
        if env_id in self._envs:  # it lives, but somebody has set its step or reset to None
            self.fault(env_id, "reset" if is_reset else "step", TypeError("the env's step is None"))
            return
        self.loop.count_fault(env_id, bool(is_reset))
        for column in self._columns.obs:
            if column is not None:
                column[env_id] = 0
        self._send(env_id, {"lost": True})

    def action(self, env_id: int) -> Any:
        """The action of an env whose action space is not one array."""
        num_bytes = self.loop.request_bytes(env_id)
        loose = iter(self._mailbox.take_request(env_id, num_bytes) if num_bytes else ())
        values = []
        for leaf, column in zip(self._layout.action_leaves, self._columns.action, strict=True):
            if leaf.kind == "array":
                assert column is not None
                # A scalar of numpy for shape (), else the env's own copy: it may keep what it is given.
                values.append(column[env_id].copy() if leaf.shape else column[env_id])
            else:
                values.append(next(loose))
        return self._join_action(values)

    def send_extras(self, env_id: int, extras: dict[str, Any]) -> None:
        """Sends what the info columns have no place for."""
        self._send(env_id, {"info": extras})

    def schema(self, version: int) -> list[Any]:
        """The info columns as the caller has published them."""
        return self._mailbox.take_schema(version, self.loop.schema_bytes(version))

    def call(self, env_id: int) -> BaseException | None:
        """Does what a letter asks of an env, and answers."""
        try:
            what, *details = self._mailbox.take_request(env_id, self.loop.request_bytes(env_id))
            answer: Any = getattr(self, f"_do_{what}")(env_id, *details)
            self._send(env_id, {"value": answer})
        except BaseException as error:
            return self.fault(env_id, "call", error)
        return None

    # --- what calls ask for --------------------------------------------------------------------

    def _do_rebuild(self, env_id: int, phase: int) -> None:
        old = self._envs.pop(env_id, None)
        if old is not None:
            _close_quietly(old)
        self._install(env_id, self._builders[env_id - self._first_env].build(env_id))
        self.loop.set_phase(env_id, phase)

    def _do_call(self, env_id: int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        attribute = self._do_get(env_id, name)
        return attribute(*args, **kwargs) if callable(attribute) else attribute

    def _do_get(self, env_id: int, name: str) -> Any:
        env = self._envs[env_id]
        try:
            # Wrappers hide attributes of what they wrap; Gymnasium's way looks through them.
            return env.get_wrapper_attr(name) if hasattr(env, "get_wrapper_attr") else getattr(env, name)
        except AttributeError as error:
            raise NoSuchAttributeError(*error.args) from error

    def _do_set(self, env_id: int, name: str, value: Any) -> None:
        env = self._envs[env_id]
        if hasattr(env, "set_wrapper_attr"):
            env.set_wrapper_attr(name, value)
        else:
            setattr(env, name, value)
        # step or reset may be what was set.
        self._install(env_id, env)

    def _do_save(self, env_id: int) -> bytes:
        try:
            state: bytes = cloudpickle.dumps(self._envs[env_id])
        except Exception as error:
            raise StateError(f"it cannot be pickled: {message_of(error)}") from error
        return state

    def _do_load(self, env_id: int, state: bytes) -> None:
        try:
            env = cloudpickle.loads(state)
        except Exception as error:
            raise StateError(f"it cannot be unpickled: {message_of(error)}") from error
        old = self._envs.get(env_id)
        self._install(env_id, env)
        if old is not None:
            _close_quietly(old)

    # --- ends ------------------------------------------------------------------------------------

    def close(self, in_callers_thread: bool = False) -> list[tuple[int, str]]:
        """Closes the envs; what they raised, by env id. Ctrl-C in the caller's thread is raised: close again for the
        rest.
        """
        for env_id in list(self._envs):
            self.loop.set_env(env_id, None, None, None)
            try:
                self._envs[env_id].close()
            except BaseException as error:
                if in_callers_thread and isinstance(error, KeyboardInterrupt):
                    del self._envs[env_id]
                    raise
                self._close_faults.append((env_id, message_of(error)))
            del self._envs[env_id]
        self.loop.detach()
        return self._close_faults

    # --- parts of a row ----------------------------------------------------------------------------

    def _install(self, env_id: int, env: Any) -> None:
        if self._rows is not None and self._envs.get(env_id) is not env:
            # Envs of ours that observe into memory given to them save a copy of each large observation.
            observe_into = getattr(env, "envfleet_observe_into", None)
            if observe_into is not None:
                observe_into(self._rows[env_id])
        self._envs[env_id] = env
        self.loop.set_env(env_id, env, env.step, env.reset)

    def _refresh(self, env_id: int) -> None:
        """An env may bind another step in its reset."""
        self._install(env_id, self._envs[env_id])

    def _send(self, env_id: int, letter: dict[str, Any]) -> None:
        if not letter:
            return
        try:
            num_bytes = self._mailbox.put_reply(env_id, letter)
        except NoRoomError:
            raise
        except Exception as error:
            raise WrongResultError(
                f"expected infos and observations that can be pickled, got {', '.join(letter)} that cannot: "
                f"{message_of(error)}; keep such objects in the env and reach them by call()"
            ) from error
        self.loop.set_reply_bytes(env_id, num_bytes)

    def _checked(self, obs: Any) -> list[Any]:
        """The leaves of an observation, each as its column takes it."""
        try:
            values = self._split_obs(obs)
        except ValueError as error:
            raise WrongResultError(f"{error}; return what observation_space says") from None
        return [
            _checked_leaf(leaf, value) if leaf.kind != "object" else value
            for leaf, value in zip(self._layout.obs_leaves, values, strict=True)
        ]

    def _write_obs(self, env_id: int, leaves: list[Any], letter: dict[str, Any], name: str) -> None:
        columns = self._columns.final if name == "final_obs" else self._columns.obs
        loose = []
        for leaf, column, value in zip(self._layout.obs_leaves, columns, leaves, strict=True):
            if column is None:
                loose.append(value)
            elif leaf.kind == "text":
                write_text(column[env_id], value)
            else:
                column[env_id] = value
        if loose:
            letter[name] = loose

    def _pack_info(self, env_id: int, info: dict[str, Any], letter: dict[str, Any], *, is_final: bool) -> None:
        extras = self.loop.pack_info(env_id, info, is_final)
        if extras:
            letter["final_info" if is_final else "info"] = extras


def _read_step(result: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
    if not isinstance(result, tuple) or len(result) != 5:
        got = f"a tuple of {len(result)}" if isinstance(result, tuple) else shown(result)
        raise WrongResultError(
            f"expected step() to return (obs, reward, terminated, truncated, info), got {got}; "
            "return those five (an env in the old gym's style must not derive from gymnasium.Env)"
        )
    obs, reward, terminated, truncated, info = result
    try:
        number = float(reward)
    except (TypeError, ValueError):
        raise WrongResultError(f"expected a number as the reward, got {shown(reward)}; return float(reward)") from None
    flags = []
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, (bool, np.bool_, int, np.integer)) and np.ndim(flag) > 0:
            raise WrongResultError(f"expected True or False as {name}, got {shown(flag)}; return bool({name})")
        if flag is None or isinstance(flag, (str, bytes, Mapping)):
            raise WrongResultError(f"expected True or False as {name}, got {shown(flag)}; return bool({name})")
        flags.append(bool(flag))
    return obs, number, flags[0], flags[1], _checked_info(info, "step()")


def _read_reset(result: Any) -> tuple[Any, dict[str, Any]]:
    if not isinstance(result, tuple) or len(result) != 2:
        got = f"a tuple of {len(result)}" if isinstance(result, tuple) else shown(result)
        raise WrongResultError(f"expected reset() to return (obs, info), got {got}; return both")
    return result[0], _checked_info(result[1], "reset()")


def _checked_info(info: Any, call: str) -> dict[str, Any]:
    if type(info) is dict:
        return info
    if isinstance(info, Mapping):
        return dict(info)
    raise WrongResultError(f"expected {call} to return a dict as info, got {shown(info)}; return {{}} for none")


def _checked_leaf(leaf: Leaf, value: Any) -> Any:
    where = f"the observation{path_text(leaf.path)}"
    if leaf.kind == "text":
        longest = leaf.space.max_length  # type: ignore[attr-defined]  # a Text space
        if not isinstance(value, str) or len(value) > longest:
            raise WrongResultError(f"expected {where} as a str of at most {longest} characters, got {shown(value)}")
        return value
    if value is None:
        raise WrongResultError(f"expected {where} of shape {leaf.shape} and dtype {leaf.dtype}, got None")
    try:
        array = np.asarray(value)
    except Exception as error:
        raise WrongResultError(f"expected {where} as an array, got {shown(value)}: {clean(str(error))}") from None
    if array.dtype == object:
        raise WrongResultError(f"expected {where} as an array of dtype {leaf.dtype}, got {shown(value)}")
    if array.shape != leaf.shape:
        raise WrongResultError(
            f"expected {where} of shape {leaf.shape}, got {array.shape}; return what observation_space says"
        )
    if not np.can_cast(array.dtype, leaf.dtype, "same_kind"):
        raise WrongResultError(
            f"expected {where} of dtype {leaf.dtype}, got {array.dtype}, which would lose its values; "
            f"return it as np.asarray(obs, dtype=np.{leaf.dtype})"
        )
    return array


def _close_quietly(env: Any) -> None:
    """Closes an env that is given up: it may be in any state."""
    try:
        env.close()
    except BaseException:
        return
