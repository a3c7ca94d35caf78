"""Host: what an actor does. It builds its share's executor and answers requests, one at a time."""

from __future__ import annotations

import os
import pickle
import re
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet.autoreset import Phase
from envfleet.batch import Batch, Fault
from envfleet.errors import StateError
from envfleet.executors.base import Executor, Refused
from envfleet.executors.python.exception_report import message_of
from envfleet.executors.python.executor import PythonExecutor
from envfleet.executors.python.side_channel import dump
from envfleet.executors.ray.faults import Note, note_of, packed_error, packed_value
from envfleet.executors.ray.infos import Tree, taken_apart
from envfleet.executors.ray.line import LEAVE, TURN, ActorLine, Address, Door, LineLostError
from envfleet.executors.ray.messages import RESET, ActionForm, EncodedReply, Request, RowForm, cut, glued
from envfleet.executors.ray.plans import Luggage
from envfleet.spaces import split
from envfleet.statistics import PoolStats
from envfleet.validation import LeafColumns

_NO_TIMEOUT = -1.0


class Host:
    """One worker of a ray pool: the envs from first_env on, in an executor of its own."""

    def __init__(self, first_env: int) -> None:
        self._first_env = first_env
        self._executor: Executor | None = None
        # Replies that the caller may ask for again, by number.
        self._kept: dict[int, EncodedReply] = {}
        self._last_begun = -1
        self._failure = ""
        self._last_order = 0
        self._left = 0  # the last turn on the line that is over
        self._door: Door | None = None
        self._line: ActorLine | None = None

    # --- life ------------------------------------------------------------------------------

    def build(self, luggage: Luggage, plan: bytes, mode: AutoresetMode) -> bytes:
        """Builds the envs; their portrait."""
        try:
            luggage.unpack()
            executor, portrait = pickle.loads(plan).build()
        except BaseException as error:
            return packed_error(error, self._first_env)
        self._executor = executor
        self._actions = ActionForm(portrait.action_space)
        self._rows = RowForm(portrait.observation_space, mode is AutoresetMode.SAME_STEP)
        self._split_obs = split(portrait.observation_space)
        self._is_plain = len(self._rows.leaves) == 1 and self._rows.leaves[0].path == ()
        self._made_at = time.monotonic_ns()
        return packed_value((portrait, os.getpid()))

    def close(self) -> bytes:
        """Closes the envs; what they warned of."""
        executor, self._executor = self._executor, None
        if executor is None:
            return packed_value([])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            executor.close()
        texts = [str(own.message) for own in caught if issubclass(own.category, (RuntimeWarning, ResourceWarning))]
        return packed_value([self._with_own_ids(text) for text in texts])

    # --- steps and resets ------------------------------------------------------------------

    def run(self, *parts: Any) -> Any:
        """Does what a request says, once; the reply in as many parts as it asks for."""
        self._hang_up()  # the caller has given the line up
        request = self._decoded(glued(parts))
        reply = self._reply(request)
        return cut([*reply.sealed, *reply.columns], request.num_parts)

    def again(self, number: int, start: int, end: int) -> bytes:
        """A piece of a kept reply, for a caller whom the object store failed; nothing where it has none."""
        reply = self._kept.get(number)
        return b"" if reply is None else b"".join((*reply.sealed, *reply.columns))[start:end]

    def _decoded(self, data: memoryview) -> Request:
        assert self._executor is not None
        return self._actions.decode(data, self._executor.num_envs)

    def _reply(self, request: Request) -> EncodedReply:
        """What a request asks for: done now, or kept since it came for the first time."""
        for number in [number for number in self._kept if number < request.acknowledged]:
            del self._kept[number]
        if request.number not in self._kept:
            if request.number <= self._last_begun:
                raise RuntimeError(f"it was begun, and failed: {self._failure}")
            self._last_begun = request.number
            try:
                self._kept[request.number] = self._answer(request)
            except BaseException as error:
                self._failure = message_of(error)
                raise
        return self._kept[request.number]

    def _answer(self, request: Request) -> EncodedReply:
        executor = self._executor
        assert executor is not None
        extras = request.extras or {}
        self._obey(extras.get("orders", ()))
        if request.kind == RESET:
            batch: Batch | Refused | None = executor.reset(request.local_ids, extras.get("options") or {}, _NO_TIMEOUT)
        else:
            batch = self._step(executor, request, extras.get("actions"))
        assert isinstance(batch, Batch), "the inner executor refused what the caller had checked"
        return self._packed(executor, batch, "reset" if request.kind == RESET else "step")

    def _step(self, executor: Executor, request: Request, loose: Sequence[Any] | None) -> Batch | Refused | None:
        if loose is None and len(request.actions) == 1 and len(self._actions.leaves) == 1:
            batch = executor.step(request.actions[0], request.local_ids, _NO_TIMEOUT)
            if not isinstance(batch, Refused):
                return batch
        arrays, others = iter(request.actions), iter(loose or ())
        leaves = [next(arrays if leaf.kind == "array" else others) for leaf in self._actions.leaves]
        return executor.step(LeafColumns(leaves), request.local_ids, _NO_TIMEOUT)

    def _obey(self, orders: Sequence[tuple[Any, ...]]) -> None:
        """What the caller has decided since its last message; what it told twice is done once."""
        executor = self._executor
        assert executor is not None
        for number, what, *details in orders:
            if number <= self._last_order:
                continue
            self._last_order = number
            if what == "seed":
                executor.seed(*details)
            else:
                self._set_phase(executor, *details)

    def _set_phase(self, executor: Executor, local_id: int, phase: int) -> None:
        if isinstance(executor, PythonExecutor):
            executor.set_phase(local_id, phase)
        else:
            executor.rebuild(local_id, phase)

    # --- the line --------------------------------------------------------------------------

    def listen(self, secret: bytes) -> Address | None:
        """Where the caller may dial; None where nobody can be let in."""
        import ray

        self._hang_up()
        try:
            self._door = Door(str(ray.util.get_node_ip_address()), secret)  # type: ignore[no-untyped-call]
        except OSError:
            return None
        return self._door.address

    def serve(self, turn: int) -> None:
        """Answers the requests on the line, here in the thread that built the envs, until the caller has something
        to say through Ray, which ends this turn and all before it, or is gone.
        """
        try:
            if self._line is None and self._door is not None:
                door, self._door = self._door, None
                self._line = door.open()
            while self._line is not None and turn > self._left:
                number, data = self._line.take()
                if number == LEAVE:
                    self._left = max(self._left, TURN.unpack(data)[0])
                else:
                    self._line.give(number, *self._reply(self._decoded(data)))
        except LineLostError:
            self._hang_up()
        except BaseException:
            self._hang_up()
            raise

    def _hang_up(self) -> None:
        for end in (self._door, self._line):
            if end is not None:
                end.close()
        self._door = self._line = None

    # --- replies ---------------------------------------------------------------------------

    def _packed(self, executor: Executor, batch: Batch, method: str) -> EncodedReply:
        notes: list[tuple[int, Note]] = []
        if batch.faults:
            rows = {int(env_id): row for row, env_id in enumerate(batch.env_id)}
            notes = [(rows[fault.env_id], note_of(fault, self._first_env)) for fault in batch.faults]
        obs, loose_obs = self._columns(batch.obs)
        final_obs, final_elapsed, loose_final = None, None, None
        tree: Tree = {}
        final_tree: Tree = {}
        objects: dict[int, dict[str, Any]] = {}
        if batch.info:
            tree, odd = taken_apart(batch.info, len(batch))
            _note(objects, "info", odd)
        if batch.final is not None:
            final_obs, loose_final = self._columns(batch.final.obs)
            final_elapsed = batch.final.elapsed_step
            if batch.final.info:
                final_tree, odd = taken_apart(batch.final.info, len(batch))
                _note(objects, "final_info", odd)
        if loose_obs or loose_final:
            ended = batch.terminated | batch.truncated
            for row in range(len(batch)):
                mail = objects.setdefault(row, {})
                mail["obs"] = [column[row] for column in loose_obs]
                if loose_final and ended[row]:
                    mail["final_obs"] = [column[row] for column in loose_final]
        letters: dict[int, bytes] = {}
        for row, mail in objects.items():
            try:
                letters[row] = dump(mail)
            except Exception as error:  # the fault of this env and of no other
                notes.append((row, self._unfit(executor, int(batch.env_id[row]), method, mail, error)))
                for column in (*obs, batch.reward, batch.terminated, batch.truncated):
                    column[row] = 0
        extras = b""
        if tree or final_tree or letters or notes:
            extras = pickle.dumps((tree, final_tree, letters, notes), protocol=pickle.HIGHEST_PROTOCOL)
        phases = executor.phases()[batch.env_id]
        return self._rows.encode(
            obs,
            batch.reward,
            batch.elapsed_step,
            batch.terminated,
            batch.truncated,
            phases,
            final_obs,
            final_elapsed,
            extras,
        )

    def _columns(self, obs: Any) -> tuple[list[NDArray[Any]], list[Sequence[Any]]]:
        """The columns of array leaves, and those of the others."""
        values = [obs] if self._is_plain else self._split_obs(obs)
        arrays: list[NDArray[Any]] = []
        loose: list[Sequence[Any]] = []
        for leaf, column in zip(self._rows.leaves, values, strict=True):
            (arrays if leaf.kind == "array" else loose).append(column)
        return arrays, loose

    def _unfit(self, executor: Executor, local_id: int, method: str, mail: Mapping[str, Any], error: Exception) -> Note:
        """The fault of an env whose row cannot travel."""
        self._set_phase(executor, local_id, Phase.BROKEN)
        what = (
            f"expected infos and observations that can be pickled, got {', '.join(mail)} that cannot: "
            f"{message_of(error)}; keep such objects in the env and reach them by call()"
        )
        return note_of(Fault(local_id, method, what), self._first_env)

    # --- calls -------------------------------------------------------------------------------

    def ask(self, orders: Sequence[tuple[Any, ...]], what: str, pickled: bytes, env_ids: Sequence[int]) -> bytes:
        """Calls a method of the executor; its value, and the phases of these envs after it."""
        executor = self._executor
        assert executor is not None
        try:
            self._obey(orders)
            value = self._stats() if what == "stats" else getattr(executor, what)(*pickle.loads(pickled))
            return packed_value((value, executor.phases()[list(env_ids)].tolist()))
        except StateError as error:
            return packed_error(StateError(self._with_own_ids(str(error))), self._first_env)
        except BaseException as error:
            return packed_error(error, self._first_env)

    def ping(self) -> None:
        """Answers, if it lives."""

    def _stats(self) -> tuple[PoolStats, int]:
        """Of the envs, and how long they are there, in nanoseconds."""
        assert self._executor is not None
        return self._executor.stats(), time.monotonic_ns() - self._made_at

    def _with_own_ids(self, text: str) -> str:
        """A message with the ids that the envs have in the whole pool."""
        return re.sub(r"\benv (\d+)\b", lambda found: f"env {int(found[1]) + self._first_env}", text, count=1)


def _note(objects: dict[int, dict[str, Any]], name: str, odd: Mapping[int, Any]) -> None:
    for row, values in odd.items():
        objects.setdefault(row, {})[name] = values
