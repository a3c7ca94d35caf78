"""Asking: what envs are asked between batches, one message a worker, all under way at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import cloudpickle
import numpy as np

from envfleet.batch import Fault
from envfleet.errors import EnvError, StateError
from envfleet.executors.python.exception_report import message_of
from envfleet.executors.ray.actors import Worker
from envfleet.executors.ray.books import Books
from envfleet.executors.ray.faults import AnswerError, unpacked
from envfleet.executors.ray.messages import RowForm
from envfleet.executors.ray.shares import Shares
from envfleet.executors.ray.statistics import Counts
from envfleet.executors.ray.tower import Tower
from envfleet.spaces import join, split
from envfleet.spec import EnvSpec
from envfleet.statistics import PoolStats


class Asking:
    """Calls of the executors inside the workers."""

    def __init__(
        self, tower: Tower, spec: EnvSpec, workers: Sequence[Worker], shares: Shares, books: Books, rows: RowForm
    ) -> None:
        self._tower = tower
        self._ray_error = tower.ray_error
        self._spec = spec
        self._workers = workers
        self._shares = shares
        self._books = books
        self._rows = rows
        self.counts = Counts([worker.share for worker in workers])

    def each(self, env_ids: Sequence[int], what: str, details: tuple[Any, ...], method: str, remedy: str) -> list[Any]:
        """The answers of these envs to one question, in their order."""
        grouped = self._shares.grouped(env_ids)
        asked = {worker: (_local(worker, own), *details) for worker, own in grouped.items()}
        answers = self.ask(grouped, what, asked, method, remedy)
        by_env = {
            env_id: value for worker, own in grouped.items() for env_id, value in zip(own, answers[worker], strict=True)
        }
        return [by_env[int(env_id)] for env_id in env_ids]

    def one(self, env_id: int, what: str, details: tuple[Any, ...], method: str, remedy: str) -> Any:
        """The answer of one env."""
        worker = self._shares.worker_of(env_id)
        local_id = env_id - worker.share.start
        return self.ask({worker: [env_id]}, what, {worker: (local_id, *details)}, method, remedy)[worker]

    def state(self, env_id: int, what: str, details: tuple[Any, ...], deed: str) -> Any:
        """get_state or set_state of one env. Raises StateError."""
        try:
            return self.one(env_id, what, details, what, "mend the env")
        except EnvError as error:
            raise StateError(
                f"env {env_id} of {self._spec.id} cannot {deed}: {error.faults[0].message}"
            ) from error.__cause__

    def set_attrs(self, env_ids: Sequence[int], name: str, values: Sequence[Any]) -> None:
        """Gives each env its value of an attribute."""
        grouped = self._shares.grouped(env_ids)
        value_of = dict(zip(map(int, env_ids), values, strict=True))
        details = {
            worker: (_local(worker, own), name, [value_of[env_id] for env_id in own]) for worker, own in grouped.items()
        }
        self.ask(grouped, "set_attrs", details, f"set_attr({name!r})", "mend the attribute")

    def observe(self) -> Any:
        """The present observations of all envs; nothing of those that are no more."""
        living = [worker for worker in self._workers if not worker.is_dead]
        answers = self.ask(
            {worker: list(worker.share) for worker in living if not self._is_lost(worker)},
            "observe",
            dict.fromkeys(living, ()),
            "observe",
            "reset the env, which rebuilds it",
        )
        take_apart = split(self._spec.observation_space)
        columns = [
            take_apart(answers[worker]) if worker in answers else self._nothing(worker) for worker in self._workers
        ]
        whole = [
            np.concatenate(parts) if leaf.kind == "array" else tuple(value for part in parts for value in part)
            for leaf, parts in zip(self._rows.leaves, zip(*columns, strict=True), strict=True)
        ]
        return join(self._spec.observation_space)(whole)

    def _is_lost(self, worker: Worker) -> bool:
        return bool(self._books.is_lost[worker.share.start : worker.share.stop].any())

    def _nothing(self, worker: Worker) -> list[Any]:
        count = len(worker.share)
        return [
            np.zeros((count, *leaf.shape), leaf.dtype) if leaf.kind == "array" else (None,) * count
            for leaf in self._rows.leaves
        ]

    def stats(self) -> PoolStats:
        """What was counted. Of an actor that died since, what it had counted when it was last asked."""
        refs = {worker: worker.ask("ask", [], "stats", b"", []) for worker in self._workers if not worker.is_dead}
        for worker, ref in refs.items():
            try:
                (stats, age_ns), _ = unpacked(self._tower.answer(worker, ref), "")
                self.counts.note(self._workers.index(worker), stats, age_ns)
            except self._ray_error as error:
                self._tower.buries(worker, error)
        return self.counts.stats()

    def ask(
        self,
        env_ids: Mapping[Worker, Sequence[int]],
        what: str,
        details: Mapping[Worker, tuple[Any, ...]],
        method: str,
        remedy: str,
    ) -> dict[Worker, Any]:
        """Has workers call a method of their executors; the answers. Raises when one could not."""
        faults: list[Fault] = []
        refs: dict[Worker, Any] = {}
        for worker, own in env_ids.items():
            gone = [env_id for env_id in own if self._books.is_lost[env_id]]
            if gone:
                faults += [worker.fault(env_id, method) for env_id in gone]
                continue
            details_of = cloudpickle.dumps(details[worker])
            refs[worker] = worker.ask("ask", worker.orders, what, details_of, _local(worker, own))
            worker.orders = []
        answers: dict[Worker, Any] = {}
        for worker, ref in refs.items():
            try:
                answers[worker], phases = unpacked(self._tower.answer(worker, ref), remedy)
                self._books.phases[list(env_ids[worker])] = phases
            except EnvError as error:
                faults += [
                    Fault(own.env_id, method, own.message, own.traceback, own.cause, own.exit_code)
                    for own in error.faults
                ]
            except AnswerError as error:
                faults.append(Fault(int(env_ids[worker][0]), method, str(error), error.traceback))
            except self._ray_error as error:
                if self._tower.buries(worker, error):
                    faults += [worker.fault(int(env_id), method) for env_id in env_ids[worker]]
                else:
                    what = f"it may have done it, but Ray lost its answer: {message_of(error)}"
                    faults += [Fault(int(env_id), method, what, cause=error) for env_id in env_ids[worker]]
        if faults:
            raise EnvError.of(tuple(faults), None, remedy) from faults[0].cause
        return answers


def _local(worker: Worker, env_ids: Sequence[int]) -> list[int]:
    return [int(env_id) - worker.share.start for env_id in env_ids]
