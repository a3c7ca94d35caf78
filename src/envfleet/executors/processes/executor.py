"""ProcessesExecutor: envs in num_workers worker processes, a contiguous range of env ids per process."""

from __future__ import annotations

import contextlib
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
from envfleet.core.batch import Fault
from envfleet.core.errors import ConfigError, EnvError, WorkerDied
from envfleet.core.executor import CLOSE_TIMEOUT_S, split_envs
from envfleet.core.options import PoolConfig
from envfleet.executors.env_reports import build_remedy
from envfleet.executors.process_context import ProcessContext
from envfleet.executors.processes.launcher import WorkerProcess, describe_exit, is_launcher_thread, start_worker
from envfleet.executors.processes.memory_file import shared_memory
from envfleet.executors.processes.worker import RunnerOptions, WorkerEnvs
from envfleet.executors.python.building import (
    EnvBuilders,
    EnvDescription,
    SpecMaker,
    common_description,
    pickle_builders,
)
from envfleet.executors.python.executor import PythonExecutor
from envfleet.executors.python.layout import Layout
from envfleet.executors.python.side_channel import FileSideChannel

_KILL_TIMEOUT_S = 5.0
_DISMISS_TIMEOUT_S = 1.0
_MAX_START_ATTEMPTS = 5


class ProcessesExecutor(PythonExecutor):
    """Runs envs in worker processes."""

    def __init__(
        self, env_builders: EnvBuilders, make_spec: SpecMaker, config: PoolConfig, params: Sequence[Mapping[str, Any]]
    ) -> None:
        self._config = config
        num_envs, num_workers = config.num_envs, config.num_workers
        # Pickled once, before anything is started: a factory's captured variables must not differ between workers.
        self._worker_envs = [
            WorkerEnvs(
                pickle_builders(env_builders.builders[env_ids.start : env_ids.stop], "processes"),
                env_ids,
                build_now=True,
                worker=worker,
                affinity_offset=config.thread_affinity_offset,
            )
            for worker, env_ids in enumerate(split_envs(num_envs, num_workers))
        ]
        self._workers: list[WorkerProcess] = []
        self._memory: _native.MemoryFile | None = None
        self._file_channel: FileSideChannel | None = None
        self._kills_at_close = False
        try:
            description = self._start_all()
            layout = Layout.of(description, num_workers, config)
            self._memory = shared_memory(layout.num_bytes)
            self._file_channel = FileSideChannel(self._memory.fileno(), layout.num_bytes, num_envs)
            self._runner_options = RunnerOptions(layout, 0, env_builders.max_episode_steps, _native.usable_cores())
            for worker, process in enumerate(self._workers):
                self._send_memory(worker, process)
            for process in self._workers:
                self._expect(process, "ready")
            self._overdue: set[int] = set()  # workers that were killed because they exceeded step_timeout
            self._past_deaths: dict[int, tuple[int, int, bool]] = {}  # what _reap_worker() returned, by worker
            super().__init__(
                make_spec(description),
                config,
                params,
                layout,
                _native.map_file(self._memory.fileno(), layout.num_bytes),
                self._file_channel,
                may_spin=num_workers < _native.usable_cores(),
                # Without a reference to this executor: a pool that is dropped must be collected.
                on_overdue=partial(_kill_overdue, self._workers, self._overdue),
            )
            for worker in range(num_workers):
                self._watch(worker)
        except BaseException:
            self._dismiss()
            raise

    # --- starting ----------------------------------------------------------------------------

    def _start_all(self) -> EnvDescription:
        for worker_envs in self._worker_envs:
            self._workers.append(start_worker(self._config.start_method))
            self._send(self._workers[-1], pickle.dumps((ProcessContext.capture(), worker_envs)))
        descriptions: list[EnvDescription] = []
        for process in self._workers:
            descriptions += self._expect(process, "built")
        return common_description(descriptions)

    def _send_memory(self, worker: int, process: WorkerProcess) -> None:
        assert self._memory is not None, "it is closed with the pool"
        # With cloudpickle: the class of a space may be defined in the main module.
        options = cloudpickle.dumps(replace(self._runner_options, worker=worker))
        self._send(process, options, [self._memory.fileno()])

    def _send(self, process: WorkerProcess, data: bytes, fds: Sequence[int] = ()) -> None:
        with contextlib.suppress(OSError):  # it died: _expect() says how
            process.channel.send(data, fds)

    def _expect(self, process: WorkerProcess, kind: str) -> Any:
        """Receive a worker's next message of the handshake, which must be of this kind."""
        message = process.channel.recv()
        env_ids = self._worker_envs[self._workers.index(process)].env_ids
        if message is None:
            process.wait(_KILL_TIMEOUT_S)
            code = process.exit_code if process.exit_code is not None else -int(signal.SIGKILL)
            death = Fault(env_ids[0], "__init__", f"its worker process {process.exit_reason}", exit_code=code)
            raise EnvError.of((death,), None, "an env of this worker ended the process while it was being built")
        received, *details = pickle.loads(message[0])
        if received == "failed":
            fault: Fault = details[0]
            if isinstance(fault.cause, ConfigError):
                raise fault.cause
            raise EnvError.of((fault,), None, build_remedy(fault)) from fault.cause
        assert received == kind, f"a worker sent {received}, expected {kind}"
        return details[0]

    def _watch(self, worker: int) -> None:
        self._workers[worker].on_exit(partial(self._native.mark_dead, worker))

    # --- dead workers ------------------------------------------------------------------------

    def worker_death(self, env_id: int, method: str) -> Fault:
        worker = self._native.worker_of(env_id)
        if worker in self._past_deaths and not self._native.is_dead(worker):
            culprit, code, is_overdue = self._past_deaths[worker]
        else:
            culprit, code, is_overdue = self._reap_worker(worker)
        what = describe_exit(code)
        if is_overdue:
            what = f"did not answer within step_timeout={self._config.step_timeout:g} s and was killed"
        during = ""
        if culprit >= 0:
            during = " while it ran this env" if culprit == env_id else f" while it ran env {culprit}"
        return Fault(env_id, method, f"its worker process {what}{during}", exit_code=code)

    def _reap_worker(self, worker: int) -> tuple[int, int, bool]:
        """Return the env that a dead worker ran (-1: none), its exit code, and whether it exceeded step_timeout."""
        process = self._workers[worker]
        process.kill()  # it may be alive: a worker that corrupted its queue counts as dead
        process.wait(_KILL_TIMEOUT_S)
        code = process.exit_code if process.exit_code is not None else -int(signal.SIGKILL)
        return self._native.current_env(worker), code, worker in self._overdue

    def _restart_worker(self, env_id: int) -> None:
        worker = self._native.worker_of(env_id)
        if not self._native.is_dead(worker):
            return
        self._past_deaths[worker] = self._reap_worker(worker)
        self._overdue.discard(worker)
        worker_envs = self._worker_envs[worker]
        self._lost.update(worker_envs.env_ids)
        for attempt in range(_MAX_START_ATTEMPTS):
            self._workers[worker].channel.close()
            self._workers[worker] = process = start_worker(self._config.start_method)
            try:
                unbuilt = replace(worker_envs, build_now=False)
                self._send(process, pickle.dumps((ProcessContext.capture(), unbuilt)))
                self._expect(process, "built")
                # After the old worker can no longer write to its queue, before the new one reads it.
                self._native.revive(worker)
                self._watch(worker)
                self._send_memory(worker, process)
                self._expect(process, "ready")
                return
            except BaseException as error:
                # Including Ctrl-C: a worker that is half started must not be used.
                process.kill()
                process.wait(_KILL_TIMEOUT_S)
                self._native.mark_dead(worker)
                # No user code has run yet, so something outside kills workers, and may stop.
                if not isinstance(error, WorkerDied) or attempt == _MAX_START_ATTEMPTS - 1:
                    raise

    @property
    def worker_pids(self) -> list[int]:
        """The pid of each worker, in order."""
        pids = []
        for process in self._workers:
            while process.pid is None and not process.wait(0.001):
                pass
            pids.append(process.pid or -1)
        return pids

    # --- closing ---------------------------------------------------------------------------------

    def close(self) -> None:
        if is_launcher_thread():
            # Garbage collection may run in this thread, which must not wait for exits that it reports itself.
            threading.Thread(target=super().close, name="envfleet-closing").start()
        else:
            super().close()

    def terminate(self) -> None:
        self._kills_at_close = True
        self.close()

    def _end_workers(self) -> list[tuple[int, str]]:
        if self._kills_at_close:
            self._kill_all()
            return []
        for worker, process in enumerate(self._workers):
            if self._native.is_at_prompt(worker):  # its answer is not awaited
                process.kill()
        try:
            return self._await_exits(CLOSE_TIMEOUT_S)
        finally:
            self._kill_all()

    def _dismiss(self) -> None:
        """End the workers of a pool that cannot be made. Workers that have built their envs may close them."""
        try:
            for process in self._workers:
                process.channel.shutdown_write()
            self._await_exits(_DISMISS_TIMEOUT_S)
        finally:
            self._kill_all()

    def _await_exits(self, timeout_s: float) -> list[tuple[int, str]]:
        """Wait for the workers to exit and return what envs raised in close().

        Reads at the same time: a worker whose message does not fit into the socket's buffer would block.
        """
        deadline = time.monotonic() + timeout_s
        faults: list[tuple[int, str]] = []
        open_channels = {process.channel.fileno(): process for process in self._workers}
        poll = select.poll()
        for fd in open_channels:
            poll.register(fd, select.POLLIN)
        with contextlib.suppress(TimeoutError):
            while open_channels and (ready := poll.poll(max(0.0, deadline - time.monotonic()) * 1000)):
                for fd, _ in ready:
                    message = open_channels[fd].channel.recv(deadline)
                    if message is None:
                        poll.unregister(fd)
                        del open_channels[fd]
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
        while self._workers:  # one by one: after Ctrl-C, the next close() continues with the rest
            self._workers[-1].wait(_KILL_TIMEOUT_S)
            self._workers.pop().channel.close()
        if self._file_channel is not None:
            self._file_channel.close()
        if self._memory is not None:
            self._memory.close()


def _kill_overdue(workers: list[WorkerProcess], overdue: set[int], worker: int) -> None:
    overdue.add(worker)
    workers[worker].kill()
