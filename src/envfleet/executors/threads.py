"""ThreadsExecutor: envs on threads of this process, a contiguous range of env ids per thread.

For simulators that release the GIL, and for any env on free-threaded Python.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from envfleet import _native
from envfleet.core.batch import Fault
from envfleet.core.errors import EnvfleetError
from envfleet.core.executor import CLOSE_TIMEOUT_S, split_envs
from envfleet.core.options import PoolConfig
from envfleet.core.tracebacks import message_of
from envfleet.executors.python.building import EnvBuilders, SpecMaker, build_envs, close_on_error, describe_envs
from envfleet.executors.python.executor import PythonExecutor
from envfleet.executors.python.layout import Layout, anonymous_memory
from envfleet.executors.python.runner import EnvRunner, pin_worker
from envfleet.executors.python.side_channel import LocalSideChannel


class ThreadsExecutor(PythonExecutor):
    """Runs envs on num_workers threads."""

    def __init__(
        self, env_builders: EnvBuilders, make_spec: SpecMaker, config: PoolConfig, params: Sequence[Mapping[str, Any]]
    ) -> None:
        envs = build_envs(env_builders.builders, range(config.num_envs))
        num_workers = config.num_workers
        self._affinity_offset = config.thread_affinity_offset
        self._threads: list[threading.Thread] = []
        self._runners: list[EnvRunner] = []
        self._loops: list[_native.StepLoop] = []
        self._failures: dict[int, str] = {}
        self._close_faults: list[tuple[int, str]] = []
        with close_on_error(envs):
            description = describe_envs(envs)
            layout = Layout.of(description, num_workers, config)
            buffer = anonymous_memory(layout.num_bytes)
            side_channel = LocalSideChannel(config.num_envs)
            self._env_builders = env_builders
            self._shared = (layout, buffer, side_channel)
            self._worker_envs = split_envs(config.num_envs, num_workers)
            super().__init__(make_spec(description), config, params, layout, buffer, side_channel, may_spin=False)
        for worker in range(num_workers):
            self._runners.append(self._make_runner(worker, envs))
            self._loops.append(self._make_loop(worker))
            self._threads.append(self._make_thread(worker))
            self._start_thread(worker)

    def _make_runner(self, worker: int, envs: Mapping[int, Any]) -> EnvRunner:
        """Return the runner of a worker, with those of its envs that are already built."""
        layout, buffer, side_channel = self._shared
        env_ids = self._worker_envs[worker]
        built = {env_id: envs[env_id] for env_id in env_ids if env_id in envs}
        builders = self._env_builders.builders[env_ids.start : env_ids.stop]
        check_process = partial(_native.exit_if_forked, _native.fork_generation())
        return EnvRunner(layout, buffer, worker, side_channel, builders, built, check_process)

    def _make_loop(self, worker: int) -> _native.StepLoop:
        return self._runners[worker].make_loop(self._env_builders.max_episode_steps, _native.usable_cores())

    def _make_thread(self, worker: int) -> threading.Thread:
        # Without a reference to this executor: a pool that is dropped must be collected.
        return threading.Thread(
            target=_serve,
            args=(
                self._runners[worker],
                self._loops[worker],
                worker,
                self._affinity_offset,
                self._native,
                self._failures,
                self._close_faults,
            ),
            name=f"envfleet-{worker}",
            daemon=True,
        )

    def _start_thread(self, worker: int) -> None:
        try:
            self._threads[worker].start()
        except RuntimeError as error:
            raise EnvfleetError(
                f"worker {worker + 1} of {len(self._worker_envs)} could not be started: {error}; pass a smaller "
                "num_workers, or raise the limits of threads and memory (ulimit -u, ulimit -v)"
            ) from error

    def local_envs(self) -> list[Any]:
        return [env for runner in self._runners for env in runner.envs]

    def worker_death(self, env_id: int, method: str) -> Fault:
        failure = self._failures.get(self._native.worker_of(env_id), "its thread ended")
        return Fault(env_id, method, failure)

    def _restart_worker(self, env_id: int) -> None:
        worker = self._native.worker_of(env_id)
        if not self._native.is_dead(worker):
            return
        self._threads[worker].join()
        self._lost.update(self._worker_envs[worker])
        try:
            self._native.revive(worker)
            self._runners[worker] = self._make_runner(worker, {})
            self._loops[worker] = self._make_loop(worker)
            self._threads[worker] = self._make_thread(worker)
            self._start_thread(worker)
        except BaseException:
            # Including Ctrl-C: the caller would wait forever for a worker without a thread.
            self._native.mark_dead(worker)
            raise

    def _close_wait_s(self) -> float:
        # An env on a worker closes the pool: the call in progress waits for this very thread.
        return 0.0 if threading.current_thread() in self._threads else super()._close_wait_s()

    def _end_workers(self) -> list[tuple[int, str]]:
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        # Skip this thread, if an env of the pool closes it, and threads that Ctrl-C kept from being started.
        others = [thread for thread in self._threads if thread is not threading.current_thread() and thread.ident]
        for thread in others:
            thread.join(max(0.0, deadline - time.monotonic()))
        stuck = [thread.name for thread in others if thread.is_alive()]
        if stuck:
            names = ", ".join(stuck)
            self._close_faults.append((-1, f"threads {names} did not end within {CLOSE_TIMEOUT_S:g} s: left behind"))
        return self._close_faults


def _serve(
    runner: EnvRunner,
    loop: _native.StepLoop,
    worker: int,
    affinity_offset: int,
    pool: _native.PythonPool,
    failures: dict[int, str],
    close_faults: list[tuple[int, str]],
) -> None:
    try:
        pin_worker(affinity_offset, worker)
        loop.serve()
    except BaseException as error:  # never an env's: those are caught where they happen
        failures[worker] = message_of(error)
        pool.mark_dead(worker)
    loop.detach()
    close_faults.extend(runner.close())
