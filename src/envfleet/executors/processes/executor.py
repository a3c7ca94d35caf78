"""ProcessesExecutor: a contiguous share of the envs in each of num_workers processes."""

from __future__ import annotations

import contextlib
import itertools
import pickle
import select
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import cloudpickle

from envfleet import _native
from envfleet.batch import Fault
from envfleet.errors import ConfigError, EnvError, WorkerDied
from envfleet.executors.processes.launcher import WorkerProcess, end_of, is_launcher_thread, start_worker
from envfleet.executors.processes.memory_file import shared_memory
from envfleet.executors.processes.worker import BoardPlan, Share, Surroundings
from envfleet.executors.python.building import pickled_factories
from envfleet.executors.python.env_description import Portrait, one_portrait
from envfleet.executors.python.executor import RowsExecutor
from envfleet.executors.python.layout import Layout
from envfleet.executors.python.mailbox import FileMailbox
from envfleet.executors.python.spec_of import SpecMaker
from envfleet.making.builders import EnvBuilders
from envfleet.spec import PoolConfig

_CLOSE_TIMEOUT_S = 5.0
_KILL_TIMEOUT_S = 5.0
_DISMISS_TIMEOUT_S = 1.0
_MAX_BIRTHS = 5


class ProcessesExecutor(RowsExecutor):
    """Runs envs in worker processes."""

    def __init__(
        self, recipe: EnvBuilders, make_spec: SpecMaker, config: PoolConfig, params: Sequence[Mapping[str, Any]]
    ) -> None:
        self._config = config
        num_envs, num_workers = config.num_envs, config.num_workers
        firsts = [_native.first_env_of(num_envs, num_workers, worker) for worker in range(num_workers + 1)]
        shares = [range(first, end) for first, end in itertools.pairwise(firsts)]
        # Pickled before anything is started, and once: what was captured later must not differ between workers.
        self._shares = [
            Share(
                pickled_factories(recipe.builders[own.start : own.stop], "processes"),
                own,
                are_built_now=True,
                worker=worker,
                affinity_offset=config.thread_affinity_offset,
            )
            for worker, own in enumerate(shares)
        ]
        self._workers: list[WorkerProcess] = []
        self._memory: _native.MemoryFile | None = None
        self._messages: FileMailbox | None = None
        try:
            portrait = self._start_all()
            self._layout_ = Layout(
                portrait.observation_space, portrait.action_space, num_envs, num_workers, config.autoreset_mode
            )
            self._memory = shared_memory(self._layout_.num_bytes)
            self._messages = FileMailbox(self._memory.fileno(), self._layout_.num_bytes, num_envs)
            self._plan = BoardPlan(self._layout_, 0, recipe.max_episode_steps, max_spinners=_native.usable_cores())
            for worker, process in enumerate(self._workers):
                self._hand_over(worker, process)
            for process in self._workers:
                self._expect(process, "ready")
            # Of workers that were given up for their silence: worker -> seconds.
            self._overdue: dict[int, float] = {}
            self._past_deaths: dict[int, tuple[int, int, float | None]] = {}
            super().__init__(
                make_spec(portrait),
                config,
                params,
                self._layout_,
                _native.map_file(self._memory.fileno(), self._layout_.num_bytes),
                self._messages,
                may_spin=num_workers < _native.usable_cores(),
                # Without a reference to this executor: a pool that is dropped must be collected.
                on_overdue=partial(_give_up, self._workers, self._overdue, config.step_timeout),
            )
            for worker in range(num_workers):
                self._watch(worker)
        except BaseException:
            self._dismiss()
            raise

    # --- starting ----------------------------------------------------------------------------

    def _start_all(self) -> Portrait:
        for share in self._shares:
            self._workers.append(start_worker(self._config.start_method))
            self._send(self._workers[-1], pickle.dumps((Surroundings.here(), share)))
        portraits: list[Portrait] = []
        for process in self._workers:
            portraits += self._expect(process, "built")
        return one_portrait(portraits)

    def _hand_over(self, worker: int, process: WorkerProcess) -> None:
        assert self._memory is not None, "it is closed with the pool"
        plan = BoardPlan(self._plan.layout, worker, self._plan.max_episode_steps, self._plan.max_spinners)
        # By cloudpickle: a space may be of a class that the main module defines.
        self._send(process, cloudpickle.dumps(plan), [self._memory.fileno()])

    def _send(self, process: WorkerProcess, data: bytes, fds: Sequence[int] = ()) -> None:
        with contextlib.suppress(OSError):  # it died: _expect() tells how
            process.channel.send(data, fds)

    def _expect(self, process: WorkerProcess, kind: str) -> Any:
        """What a worker answers in its handshake."""
        message = process.channel.recv()
        share = self._shares[self._workers.index(process)]
        if message is None:
            process.wait(_KILL_TIMEOUT_S)
            code = process.exit_code if process.exit_code is not None else -int(signal.SIGKILL)
            fault = Fault(share.env_ids[0], "__init__", f"its worker process {process.exit_reason}", exit_code=code)
            raise EnvError.of((fault,), None, "an env of this worker ended its process while it was made")
        answer, *details = pickle.loads(message[0])
        if answer == "failed":
            env_id, trouble = details
            fault = trouble.fault(env_id)
            if isinstance(fault.cause, ConfigError):
                raise fault.cause
            raise EnvError.of((fault,), None, "its constructor must not raise") from fault.cause
        assert answer == kind, f"a worker answered {answer} where {kind} was expected"
        return details[0]

    def _watch(self, worker: int) -> None:
        self._workers[worker].on_exit(partial(_bury, self._board, worker))

    # --- deaths ------------------------------------------------------------------------------

    def death_of(self, env_id: int, method: str) -> Fault:
        worker = self._board.worker_of(env_id)
        if worker in self._past_deaths and not self._board.is_dead(worker):
            culprit, code, silence = self._past_deaths[worker]
        else:
            culprit, code, silence = self._death_of_worker(worker)
        if silence is not None:
            what = f"did not answer within step_timeout={silence:g} s and was killed"
        else:
            what = end_of(code)
        during = ""
        if culprit >= 0:
            during = " in this env" if culprit == env_id else f" in env {culprit}, which it ran too"
        return Fault(env_id, method, f"its worker process {what}{during}", exit_code=code)

    def _death_of_worker(self, worker: int) -> tuple[int, int, float | None]:
        process = self._workers[worker]
        process.kill()  # a worker that wrote nonsense on the board is given up too
        process.wait(_KILL_TIMEOUT_S)
        code = process.exit_code if process.exit_code is not None else -int(signal.SIGKILL)
        return self._board.current_env(worker), code, self._overdue.get(worker)

    def _revive(self, env_id: int) -> None:
        worker = self._board.worker_of(env_id)
        if not self._board.is_dead(worker):
            return
        self._past_deaths[worker] = self._death_of_worker(worker)
        self._overdue.pop(worker, None)
        share = self._shares[worker]
        self._lost.update(share.env_ids)
        for attempt in range(_MAX_BIRTHS):
            self._workers[worker].channel.close()
            self._workers[worker] = process = start_worker(self._config.start_method)
            try:
                unbuilt = replace(share, are_built_now=False)
                self._send(process, pickle.dumps((Surroundings.here(), unbuilt)))
                self._expect(process, "built")
                # Before the worker looks at its words, after the old one can no longer write them.
                self._board.revive(worker)
                self._watch(worker)
                self._hand_over(worker, process)
                self._expect(process, "ready")
                return
            except BaseException as error:
                # Whatever it was, Ctrl-C too: half a worker is none.
                process.kill()
                process.wait(_KILL_TIMEOUT_S)
                self._board.mark_dead(worker)
                # Nothing of the user's has run yet: somebody kills workers, and may stop doing so.
                if not isinstance(error, WorkerDied) or attempt == _MAX_BIRTHS - 1:
                    raise

    @property
    def worker_pids(self) -> list[int]:
        """The process of each worker, in their order."""
        pids = []
        for process in self._workers:
            while process.pid is None and not process.wait(0.001):
                pass
            pids.append(process.pid or -1)
        return pids

    # --- ends ------------------------------------------------------------------------------------

    def close(self) -> None:
        if is_launcher_thread():
            # Garbage collection may run here, and this thread must not wait for ends that it reports.
            threading.Thread(target=super().close, name="envfleet-closing").start()
        else:
            super().close()

    def _end_workers(self) -> list[tuple[int, str]]:
        try:
            return self._await_leaving(_CLOSE_TIMEOUT_S)
        finally:
            self._kill_all()

    def _dismiss(self) -> None:
        """Ends workers of a pool that cannot be made. Those who have built their envs get to close them."""
        try:
            for process in self._workers:
                process.channel.hang_up()
            self._await_leaving(_DISMISS_TIMEOUT_S)
        finally:
            self._kill_all()

    def _await_leaving(self, timeout_s: float) -> list[tuple[int, str]]:
        """Waits for the workers to leave; what envs raised in close().

        Reads meanwhile: a worker that has more to say than its socket holds would wait for us.
        """
        deadline = time.monotonic() + timeout_s
        faults: list[tuple[int, str]] = []
        talking = {process.channel.fileno(): process for process in self._workers}
        poll = select.poll()
        for fd in talking:
            poll.register(fd, select.POLLIN)
        with contextlib.suppress(TimeoutError):
            while talking and (ready := poll.poll(max(0.0, deadline - time.monotonic()) * 1000)):
                for fd, _ in ready:
                    message = talking[fd].channel.recv(deadline)
                    if message is None:
                        poll.unregister(fd)
                        del talking[fd]
                        continue
                    kind, *details = pickle.loads(message[0])
                    if kind == "closed":
                        faults += details[0]
        for process in self._workers:
            process.wait(max(0.0, deadline - time.monotonic()))
        return faults

    def _kill_all(self) -> None:
        for process in self._workers:
            process.kill()
        while self._workers:  # one by one: a close() that goes on after Ctrl-C in the last one finds the rest
            self._workers[-1].wait(_KILL_TIMEOUT_S)
            self._workers.pop().channel.close()
        if self._messages is not None:
            self._messages.close()
        if self._memory is not None:
            self._memory.close()


def _bury(board: _native.PythonPool, worker: int) -> None:
    board.mark_dead(worker)


def _give_up(workers: list[WorkerProcess], overdue: dict[int, float], step_timeout: float | None, worker: int) -> None:
    overdue[worker] = step_timeout or 0.0
    workers[worker].kill()
