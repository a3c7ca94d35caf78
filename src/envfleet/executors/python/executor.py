"""RowsExecutor: the caller's side of a board. Who runs the envs is for its subclasses to say."""

from __future__ import annotations

import pickle
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from envfleet import _native
from envfleet.autoreset import NATIVE_CODES, Phase
from envfleet.batch import Batch, Fault, Final
from envfleet.errors import EnvError
from envfleet.executors.base import REFUSED, Executor, Refused
from envfleet.executors.env_reports import EnvCloseWarning, EnvStateError
from envfleet.executors.python.faults import NoSuchAttributeError, Trouble, message_of
from envfleet.executors.python.info_columns import InfoColumns
from envfleet.executors.python.layout import Layout, native_action_space, plain_array_leaf, read_text
from envfleet.executors.python.mailbox import Mailbox
from envfleet.infos import merge
from envfleet.seeding import Words
from envfleet.spaces import batched_leaf, join
from envfleet.spec import EnvSpec, PoolConfig
from envfleet.statistics import EnvStats, PoolStats, WorkerStats
from envfleet.validation import LeafColumns

# Of an env that raised twice: in the call, and while that was written down.
_NO_ANSWER: dict[str, Any] = {"fault": (Trouble("call", "it raised, and how could not be told", ""), None)}


class RowsExecutor(Executor):
    """Runs Python envs that write their rows into a board."""

    takes_leaves = True

    def __init__(
        self,
        spec: EnvSpec,
        config: PoolConfig,
        params: Sequence[Mapping[str, Any]],
        layout: Layout,
        buffer: NDArray[np.uint8],
        mailbox: Mailbox,
        *,
        may_spin: bool,
        run_inline: Callable[[int], None] | None = None,
        on_overdue: Callable[[int], None] | None = None,
    ) -> None:
        self.spec = spec
        self.num_envs = config.num_envs
        self._layout = layout
        self._columns = layout.columns(buffer)
        self._mailbox = mailbox
        self._params = params
        all_ids = np.arange(config.num_envs, dtype=np.int32)
        # Handed out with every whole batch, so nobody may write to it.
        all_ids.flags.writeable = False
        self._all_ids = all_ids
        self._board = _native.PythonPool(
            buffer=buffer,
            num_envs=config.num_envs,
            num_workers=layout.num_workers,
            batch_size=config.batch_size,
            autoreset=NATIVE_CODES[config.autoreset_mode],
            may_spin=may_spin,
            step_timeout_s=-1.0 if config.step_timeout is None else config.step_timeout,
            obs=[column for column in self._columns.obs if column is not None],
            final_obs=[column for column in self._columns.final if column is not None],
            action=self._columns.action[0] if len(self._columns.action) == 1 else None,
            action_space=native_action_space(layout.action_leaves) if config.check_actions else None,
            info=self._columns.info,
            all_ids=all_ids,
            copy=config.copy,
            is_plain=plain_array_leaf(layout.obs_leaves) is not None and not layout.has_finals,
            run_inline=run_inline,
            on_overdue=on_overdue,
        )
        # Without a reference to this executor: one that Ctrl-C kept from its pool ends when it is dropped.
        self._info_columns = InfoColumns(partial(_publish, self._board, mailbox))
        self._join_obs = join(layout.observation_space)
        self._is_plain = plain_array_leaf(layout.obs_leaves) is not None and not layout.has_finals
        # What observe() gives of observations that have no column.
        self._last_loose: list[Sequence[Any] | None] = [None] * config.num_envs
        # Envs that died with their worker and that its successor has not built yet.
        self._lost: set[int] = set()
        self.call_guard = self._board.call_guard

    # --- stepping ------------------------------------------------------------------------

    def step(self, actions: Any, env_ids: Any, timeout_s: float) -> Batch | Refused | None:
        if type(actions) is LeafColumns:
            return self.step_checked(actions, env_ids, timeout_s)
        return self._answer(self._board.step(self, actions, env_ids, timeout_s))

    def step_checked(self, actions: LeafColumns, env_ids: Any, timeout_s: float) -> Batch | Refused | None:
        self._store_actions(actions, env_ids)
        return self._answer(self._board.step_stored(self, env_ids, timeout_s))

    def send(self, actions: Any, env_ids: Any) -> bool:
        if type(actions) is LeafColumns:
            return self.send_checked(actions, env_ids)
        return self._board.send(actions, env_ids)

    def send_checked(self, actions: LeafColumns, env_ids: Any) -> bool:
        self._store_actions(actions, env_ids)
        return self._board.send_stored(env_ids)

    def recv(self, timeout_s: float) -> Batch | Refused | None:
        return self._answer(self._board.recv(self, timeout_s))

    def _answer(self, answer: _native.Rows | Batch | Literal[False] | None) -> Batch | Refused | None:
        if type(answer) is _native.Rows:
            # One observation array, nothing in the mail, no last rows: the most common case.
            return Batch(
                answer.obs[0],
                answer.reward,
                answer.terminated,
                answer.truncated,
                answer.env_id,
                answer.elapsed_step,
                answer.info or {},
                None,
                (),
            )
        return REFUSED if answer is False else answer  # type: ignore[return-value]  # neither Rows nor bool any more

    def _store_actions(self, leaves: LeafColumns, env_ids: NDArray[np.int32] | None) -> None:
        """Writes checked actions where their envs find them."""
        self._board.finish_abandoned_call()
        rows = slice(None) if env_ids is None else env_ids
        loose = []
        for column, values in zip(self._columns.action, leaves, strict=True):
            if column is None or isinstance(values, list):
                loose.append(values)
            else:
                column[rows] = values
        for row, env_id in enumerate(self._all_ids if env_ids is None else env_ids):
            letter = [values[row] for values in loose]
            num_bytes = self._mailbox.put_request(int(env_id), letter) if letter else 0
            self._board.set_request_bytes(int(env_id), num_bytes)

    def reset(self, env_ids: NDArray[np.int32] | None, options: Mapping[str, Any], timeout_s: float) -> Batch | None:
        self._put_options(env_ids, options)
        batch = self._answer(self._board.reset(self, env_ids, timeout_s))
        assert not isinstance(batch, Refused), "a reset is taken or raises"
        return batch

    def send_reset(self, env_ids: NDArray[np.int32] | None, options: Mapping[str, Any]) -> None:
        self._put_options(env_ids, options)
        self._board.send_reset(env_ids)

    def _put_options(self, env_ids: NDArray[np.int32] | None, options: Mapping[str, Any]) -> None:
        self._board.finish_abandoned_call()
        for env_id in self._all_ids if env_ids is None else env_ids:
            num_bytes = self._mailbox.put_request(int(env_id), dict(options)) if options else 0
            self._board.set_request_bytes(int(env_id), num_bytes)

    def abandon(self, timeout_s: float) -> bool:
        return self._board.abandon(timeout_s)

    # --- batches -------------------------------------------------------------------------

    def make_batch(self, rows: _native.Rows) -> Batch:
        """A batch that is more than its arrays. Called by the board, inside the call that gives it out."""
        special = _Special(self, rows.replies or (), len(rows.reward))
        info = merge(special.infos, rows.info or {})
        self._info_columns.learn(special.infos)
        final = None
        if self._layout.has_finals:
            final_info = merge(special.final_infos, rows.final_info or {})
            self._info_columns.learn(special.final_infos)
            final = Final(self._obs(rows.final_obs, special.loose_finals), rows.final_elapsed_step, final_info)
        for row, loose in enumerate(special.loose_obs):
            if loose is not None:
                self._last_loose[rows.env_id[row]] = loose
        obs = self._obs(rows.obs, special.loose_obs)
        faults = tuple(special.faults)
        return Batch(
            obs, rows.reward, rows.terminated, rows.truncated, rows.env_id, rows.elapsed_step, info, final, faults
        )

    def _obs(self, stored: Sequence[Any], loose: Sequence[Sequence[Any] | None]) -> Any:
        """The observation of a batch from its columns, and what its rows have in the mail."""
        if self._is_plain:
            return stored[0]
        columns: list[Any] = []
        rest = iter(stored)
        position = 0
        for leaf in self._layout.obs_leaves:
            if leaf.kind == "array":
                columns.append(next(rest))
            elif leaf.kind == "text":
                columns.append(batched_leaf(leaf, [read_text(row) for row in next(rest)]))
            else:
                # A row whose env raised has none.
                columns.append(batched_leaf(leaf, [None if own is None else own[position] for own in loose]))
                position += 1
        return self._join_obs(columns)

    def take_letter(self, env_id: int, num_bytes: int) -> dict[str, Any]:
        """What an env sent beside its row. One that cannot be read is that env's fault and nobody else's."""
        try:
            letter: dict[str, Any] = self._mailbox.take_reply(env_id, num_bytes)
            return letter
        except Exception as error:
            self._board.set_phase(env_id, int(Phase.BROKEN))
            what = f"what it sent cannot be read here: {message_of(error)}; send plain values in infos"
            return {"fault": (Trouble(self.method_of(env_id), what, ""), error)}

    def method_of(self, env_id: int) -> str:
        """What an env was last asked to do."""
        return "reset" if self._board.was_reset(env_id) else "step"

    @abstractmethod
    def death_of(self, env_id: int, method: str) -> Fault:
        """The fault of an env whose worker died."""

    # --- between batches -----------------------------------------------------------------

    def seed(self, env_ids: NDArray[np.int32], words: Words) -> None:
        self._board.seed(env_ids, words)

    def rebuild(self, env_id: int, phase: int) -> None:
        self._revive(env_id)
        self._ask([env_id], ("rebuild", phase), "__init__", "its constructor must not raise")
        self._lost.discard(env_id)

    def set_phase(self, env_id: int, phase: int) -> None:
        """Puts an idle env into this phase, as it is."""
        self._board.set_phase(env_id, phase)

    @abstractmethod
    def _revive(self, env_id: int) -> None:
        """Starts the worker of this env anew if it died."""

    def broken(self) -> NDArray[np.bool_]:
        """Also those that are idle and whose worker died."""
        is_dead = [self._board.is_dead(worker) for worker in range(self._layout.num_workers)]
        broken: NDArray[np.bool_] = self.phases() == Phase.BROKEN
        if any(is_dead):
            broken |= np.array([is_dead[self._board.worker_of(i)] for i in range(self.num_envs)])
        broken[list(self._lost)] = True
        return broken

    def observe(self) -> Any:
        return self._obs(self._board.observe(), self._last_loose)

    def get_state(self, env_id: int) -> bytes:
        try:
            (state,) = self._ask([env_id], ("save",), "get_state", "mend the env")
        except EnvError as error:
            problem = f"cannot be saved: {error.faults[0].message}"
            raise EnvStateError(env_id, self.spec.id, problem) from error.__cause__
        rows = [None if column is None else column[env_id].copy() for column in self._columns.obs]
        return pickle.dumps((self._board.get_episode(env_id), rows, self._last_loose[env_id], state))

    def set_state(self, env_id: int, state: bytes) -> None:
        try:
            episode, rows, loose, env = pickle.loads(state)
            for column, row in zip(self._columns.obs, rows, strict=True):
                if column is not None and (row.shape, row.dtype) != (column.shape[1:], column.dtype):
                    raise ValueError(f"expected an observation of {column.shape[1:]}, got {row.shape}")
        except Exception as error:
            problem = f"cannot take this state: it is not the state of such a Python env ({message_of(error)})"
            raise EnvStateError(env_id, self.spec.id, problem) from error
        before = self._board.get_episode(env_id)
        # Until all of it is there: an env that Ctrl-C leaves with half a state must be reset before it is stepped.
        self._board.set_phase(env_id, int(Phase.BROKEN))
        try:
            self._ask([env_id], ("load", env), "set_state", "mend the env")
        except EnvError as error:
            self._board.set_episode(env_id, **before)
            problem = f"cannot take this state: {error.faults[0].message}"
            raise EnvStateError(env_id, self.spec.id, problem) from error.__cause__
        for column, row in zip(self._columns.obs, rows, strict=True):
            if column is not None:
                column[env_id] = row
        self._last_loose[env_id] = loose
        self._board.set_episode(env_id, **episode)

    def render(self, env_ids: Sequence[int]) -> list[Any]:
        return self._ask(env_ids, ("call", "render", (), {}), "render", "mend its render()")

    def call(self, env_ids: Sequence[int], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        return self._ask(env_ids, ("call", name, args, dict(kwargs)), name, "mend the method, or its arguments")

    def get_attr(self, env_ids: Sequence[int], name: str) -> list[Any]:
        return self._ask(env_ids, ("get", name), f"get_attr({name!r})", "mend the attribute")

    def get_attrs(self, env_id: int) -> dict[str, Any]:
        return {}

    def set_attrs(self, env_ids: Sequence[int], name: str, values: Sequence[Any]) -> None:
        letters = [("set", name, value) for value in values]
        self._ask_each(env_ids, letters, f"set_attr({name!r})", "mend the attribute")

    def _ask(self, env_ids: Sequence[int], letter: tuple[Any, ...], method: str, remedy: str) -> list[Any]:
        return self._ask_each(env_ids, [letter] * len(env_ids), method, remedy)

    def _ask_each(
        self, env_ids: Sequence[int], letters: Sequence[tuple[Any, ...]], method: str, remedy: str
    ) -> list[Any]:
        """Has each env do what its letter says; the answers. Raises EnvError when one raised."""
        if not len(env_ids):
            return []
        self._board.finish_abandoned_call()
        for env_id, letter in zip(env_ids, letters, strict=True):
            self._board.set_request_bytes(int(env_id), self._mailbox.put_request(int(env_id), letter))
        answers, faults = [], []
        for sent in self._board.call(np.asarray(env_ids, dtype=np.int32)):
            env_id, num_bytes = sent.env_id, sent.num_bytes
            self._board.set_request_bytes(env_id, 0)
            if env_id in self._lost and num_bytes and not method.startswith("__init__"):
                faults.append(self.death_of(env_id, method))
                continue
            if sent.is_lost:
                faults.append(self.death_of(env_id, method))
                continue
            reply = self.take_letter(env_id, num_bytes) if num_bytes else _NO_ANSWER
            if "fault" in reply:
                trouble, cause = reply["fault"]
                fault = trouble.fault(env_id, cause)
                if isinstance(fault.cause, NoSuchAttributeError):
                    raise AttributeError(*fault.cause.args) from None
                faults.append(Fault(env_id, method, fault.message, fault.traceback, fault.cause))
            else:
                answers.append(reply["value"])
        if faults:
            raise EnvError.of(tuple(faults), None, remedy) from faults[0].cause
        return answers

    # --- what is known ---------------------------------------------------------------------

    def params_of(self, env_id: int) -> Mapping[str, Any]:
        return self._params[env_id if len(self._params) > 1 else 0]

    @property
    def num_in_flight(self) -> int:
        return self._board.num_in_flight

    @property
    def has_late_batch(self) -> bool:
        return self._board.has_late_batch

    def in_flight(self) -> NDArray[np.bool_]:
        return np.frombuffer(self._board.in_flight(), dtype=np.bool_)

    def phases(self) -> NDArray[np.uint8]:
        return np.frombuffer(self._board.phases(), dtype=np.uint8)

    def stats(self) -> PoolStats:
        envs = tuple(EnvStats(**own) for own in self._board.env_statistics())
        workers = tuple(WorkerStats(*own) for own in self._board.worker_statistics())
        return PoolStats(envs, workers)

    # --- life ------------------------------------------------------------------------------

    def _interrupt(self) -> None:
        self._board.interrupt()

    def _end(self) -> list[Warning]:
        self._board.interrupt()
        return [EnvCloseWarning(env_id, message) for env_id, message in self._end_workers()]

    @abstractmethod
    def _end_workers(self) -> list[tuple[int, str]]:
        """Waits for the workers to leave, and ends those that do not; what envs raised in close()."""


def _publish(board: _native.PythonPool, mailbox: Mailbox, entries: list[Any]) -> None:
    board.publish_schema(entries, mailbox.put_schema(board.next_schema_version, entries))


class _Special:
    """What rows of a batch have in the mail: faults, odd infos, observations of no fixed size."""

    def __init__(self, executor: RowsExecutor, replies: Sequence[_native.Reply], num_rows: int) -> None:
        self.infos: list[Mapping[str, Any] | None] = [None] * num_rows
        self.final_infos: list[Mapping[str, Any] | None] = [None] * num_rows
        self.loose_obs: list[Sequence[Any] | None] = [None] * num_rows
        self.loose_finals: list[Sequence[Any] | None] = [None] * num_rows
        self.faults: list[Fault] = []
        for reply in replies:
            row, env_id = reply.row, reply.env_id
            if reply.is_lost:
                self.faults.append(executor.death_of(env_id, executor.method_of(env_id)))
                continue
            letter = executor.take_letter(env_id, reply.num_bytes)
            if "lost" in letter:
                self.faults.append(executor.death_of(env_id, executor.method_of(env_id)))
                continue
            self.infos[row] = letter.get("info")
            self.final_infos[row] = letter.get("final_info")
            self.loose_obs[row] = letter.get("obs")
            self.loose_finals[row] = letter.get("final_obs")
            if "fault" in letter:
                trouble, cause = letter["fault"]
                self.faults.append(trouble.fault(env_id, cause))
