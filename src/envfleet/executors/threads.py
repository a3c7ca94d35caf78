"""The threads executor: envs on threads of this process, a contiguous share each.

For simulators that let go of the GIL, and for any env on free-threaded Python.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from envfleet import _native
from envfleet.batch import Fault
from envfleet.executors.affinity import pin_worker
from envfleet.executors.python.building import anonymous_memory, build_all, closed_on_error, common_portrait
from envfleet.executors.python.executor import RowsExecutor
from envfleet.executors.python.faults import message_of
from envfleet.executors.python.layout import Layout
from envfleet.executors.python.mailbox import LocalMailbox
from envfleet.executors.python.runner import EnvRunner
from envfleet.executors.python.spec_of import SpecMaker
from envfleet.making.builders import EnvBuilders
from envfleet.spec import PoolConfig

_CLOSE_TIMEOUT_S = 5.0


class ThreadsExecutor(RowsExecutor):
    """Runs envs on num_workers threads."""

    def __init__(
        self, recipe: EnvBuilders, make_spec: SpecMaker, config: PoolConfig, params: Sequence[Mapping[str, Any]]
    ) -> None:
        envs = build_all(recipe.builders, range(config.num_envs))
        num_workers = config.num_workers
        self._affinity_offset = config.thread_affinity_offset
        self._threads: list[threading.Thread] = []
        self._failures: dict[int, str] = {}
        self._close_faults: list[tuple[int, str]] = []
        with closed_on_error(envs):
            portrait = common_portrait(envs)
            layout = Layout(
                portrait.observation_space, portrait.action_space, config.num_envs, num_workers, config.autoreset_mode
            )
            buffer = anonymous_memory(layout.num_bytes)
            mailbox = LocalMailbox(config.num_envs)
            self._recipe = recipe
            self._shared = (layout, buffer, mailbox)
            super().__init__(make_spec(portrait), config, params, layout, buffer, mailbox, may_spin=False)
        for worker in range(num_workers):
            self._threads.append(self._thread_of(worker, envs))
            self._threads[worker].start()

    def _thread_of(self, worker: int, envs: Mapping[int, Any]) -> threading.Thread:
        """A worker, not started yet, with those of its envs that are built already."""
        layout, buffer, mailbox = self._shared
        share = self._share_of(worker)
        own = {env_id: envs[env_id] for env_id in share if env_id in envs}
        builders = self._recipe.builders[share.start : share.stop]
        runner = EnvRunner(
            layout, buffer, worker, mailbox, builders, own, self._recipe.max_episode_steps, _native.usable_cores()
        )
        # Without a reference to this executor: a pool that is dropped must be collected.
        return threading.Thread(
            target=_serve,
            args=(
                runner,
                worker,
                self._affinity_offset,
                self._board,
                self._failures,
                self._close_faults,
            ),
            name=f"envfleet-{worker}",
            daemon=True,
        )

    def _share_of(self, worker: int) -> range:
        first, end = (_native.first_env_of(self.num_envs, self._layout.num_workers, k) for k in (worker, worker + 1))
        return range(first, end)

    def death_of(self, env_id: int, method: str) -> Fault:
        failure = self._failures.get(self._board.worker_of(env_id), "its thread ended")
        return Fault(env_id, method, failure)

    def _revive(self, env_id: int) -> None:
        worker = self._board.worker_of(env_id)
        if not self._board.is_dead(worker):
            return
        self._threads[worker].join()
        self._lost.update(self._share_of(worker))
        try:
            self._board.revive(worker)
            self._threads[worker] = self._thread_of(worker, {})
            self._threads[worker].start()
        except BaseException:
            # Whatever it was, Ctrl-C too: a worker without a thread would be waited for for ever.
            self._board.mark_dead(worker)
            raise

    def _close_patience_s(self) -> float:
        # A worker's env that closes the pool: the present call waits for this very thread.
        return 0.0 if threading.current_thread() in self._threads else super()._close_patience_s()

    def _end_workers(self) -> list[tuple[int, str]]:
        deadline = time.monotonic() + _CLOSE_TIMEOUT_S
        # Not this thread, where an env of the pool closes it; nor one that Ctrl-C kept from being started.
        others = [thread for thread in self._threads if thread is not threading.current_thread() and thread.ident]
        for thread in others:
            thread.join(max(0.0, deadline - time.monotonic()))
        stuck = [thread.name for thread in others if thread.is_alive()]
        if stuck:
            self._close_faults.append((-1, f"{', '.join(stuck)} did not leave within {_CLOSE_TIMEOUT_S} s"))
        return self._close_faults


def _serve(
    runner: EnvRunner,
    worker: int,
    affinity_offset: int,
    board: _native.PythonPool,
    failures: dict[int, str],
    close_faults: list[tuple[int, str]],
) -> None:
    try:
        pin_worker(affinity_offset, worker)
        runner.loop.serve()
    except BaseException as error:  # never an env's: those are caught where they happen
        failures[worker] = message_of(error)
        board.mark_dead(worker)
    close_faults.extend(runner.close())
