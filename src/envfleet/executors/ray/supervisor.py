"""Actors from the caller's side: their placement, start, connections, death, restart and end.

ActorLauncher is for actors of any class (envfleet.sampling uses it too); Worker and what follows are for EnvActor.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet.core.batch import Fault
from envfleet.core.errors import EnvError, PlacementError
from envfleet.core.executor import all_env_ids
from envfleet.executors.env_reports import BUILD_REMEDY, build_remedy
from envfleet.executors.process_context import ProcessContext
from envfleet.executors.python.building import EnvDescription
from envfleet.executors.ray.actor import EnvActor
from envfleet.executors.ray.batches import Rows
from envfleet.executors.ray.cluster import default_scheduling_strategy, is_encrypted, refused_by_ray
from envfleet.executors.ray.connection import SECRET_BYTES, SERVE_ID, STOP_SERVING, CallerConnection, connect_all
from envfleet.executors.ray.messages import RemoteCallError, decode_result

# The exit code that is reported for an actor that ended without a message: that of kill -9.
KILLED = -9
# How often a restart is attempted. No user code has run when an actor dies that early: it was killed from outside,
# and that may end.
_MAX_START_ATTEMPTS = 5
# How long to wait on a connection before asking Ray whether a silent worker is alive: a machine that loses power
# closes no connection.
HEARTBEAT_S = 1.0
_CONNECT_TIMEOUT_S = 3.0
# A lost connection is made again after a delay that doubles with each loss; if an actor cannot be reached at all,
# much later.
_FIRST_RECONNECT_S = 1.0
_MAX_RECONNECT_S = 60.0
_UNREACHABLE_S = 120.0

# --- actors of any class -------------------------------------------------------------------------


class ActorLauncher:
    """Creates actors of one class with the user's options, and explains what Ray reports about them."""

    def __init__(
        self, ray: ModuleType, actor_class: Any, options: Mapping[str, Any], placement_timeout_s: float
    ) -> None:
        """actor_class: decorated by ray.remote. options: as for .options() of an actor."""
        self.ray = ray
        self.placement_timeout_s = placement_timeout_s
        self._options = {"scheduling_strategy": default_scheduling_strategy(ray), **options}
        with refused_by_ray(self._options):
            self._actor_class = actor_class.options(**self._options)

    def create(self, *arguments: Any) -> Any:
        """Create an actor, which Ray places later; return its handle."""
        with refused_by_ray(self._options):
            return self._actor_class.remote(*arguments)

    def kill(self, handle: Any) -> None:
        """Kill an actor, if there is still one."""
        with contextlib.suppress(Exception):  # it is gone, or Ray is
            self.ray.kill(handle)

    def placement_error(self, num_waiting: int, num_actors: int) -> PlacementError:
        """Return the error for actors that were not placed in time. It says what they need and what is free."""
        wanted = {
            name: self._options[name]
            for name in ("num_cpus", "num_gpus", "memory", "resources", "label_selector", "scheduling_strategy")
            if self._options.get(name) is not None
        }
        free = {
            name: amount
            for name, amount in self.ray.available_resources().items()
            if ":" not in name and "_group_" not in name  # a node's own name, and resources of placement groups
        }
        where = f"the cluster has {free or 'nothing'} free"
        group = getattr(wanted.get("scheduling_strategy"), "placement_group", None)
        if group is not None:
            where = f"its placement group has bundles of {group.bundle_specs}, shared by this task and others"
            wanted["scheduling_strategy"] = "this placement group"
        elif self.ray.util.get_current_placement_group() is not None:
            where += (
                " outside the current placement group, which does not capture child tasks (to place the actors inside, "
                "set placement_group_capture_child_tasks, or pass actor_options={'scheduling_strategy': "
                "PlacementGroupSchedulingStrategy(group)} in ray=RayConfig(...))"
            )
        return PlacementError(
            f"{num_waiting} of {num_actors} Ray actors found no machine within placement_timeout_s="
            f"{self.placement_timeout_s:g}; each requests {wanted}, {where}; "
            "request less in actor_options, use fewer workers, add machines, or raise placement_timeout_s"
        )


def describe_death(error: BaseException) -> str:
    """Summarize in a few words what Ray knows about the death of an actor."""
    text = _short_text(error)
    for mark, summary in (
        ("node died", "died with its node"),
        ("node is dead", "died with its node"),
        ("node has", "died with its node"),
        ("ray.kill", "was killed by ray.kill()"),
        # Ray lists guesses when a process ended unannounced: kill -9, a crash, the kernel's OOM killer.
        ("Some common causes", "was killed or crashed; Ray reports no cause, the logs of its node may"),
        ("potential root causes", "was killed or crashed; Ray reports no cause, the logs of its node may"),
        ("memory pressure", "was killed: its node ran out of memory"),
        ("unavailable", "cannot be reached"),
    ):
        if mark in text:
            return summary
    return f"died ({text})" if text else "died"


def _short_text(error: BaseException) -> str:
    """Return the informative lines of Ray's long message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    skipped = ("class_name:", "actor_id:", "pid:", "namespace:", "ip:", "name:", "The actor died unexpectedly")
    return " ".join([line for line in lines if not line.startswith(skipped)] or lines)[:500]


# --- workers -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkerConfig:
    """What all workers of a pool have in common. step_timeout_s: after which a silent worker is killed."""

    launcher: ActorLauncher
    autoreset_mode: AutoresetMode
    step_timeout_s: float | None

    @staticmethod
    def create(
        ray: ModuleType,
        options: Mapping[str, Any],
        placement_timeout_s: float,
        autoreset_mode: AutoresetMode,
        step_timeout_s: float | None,
    ) -> WorkerConfig:
        """Return the config of workers whose actors have these Ray options."""
        launcher = ActorLauncher(ray, ray.remote(EnvActor), options, placement_timeout_s)
        return WorkerConfig(launcher, autoreset_mode, step_timeout_s)


@dataclass(eq=False)
class Worker:
    """One actor and its envs.

    death: how the actor ended; "" while it lives. connection: carries its messages; None: Ray does.
    num_losses, reconnect_at: how many connections were lost, and when to connect again without being asked to.
    serve_id: the last serve() call, by which the actor answers on the connection; stopped_serve_id: the last one that
    was told to return; serve_ref: the reference to the result of the present one.
    commands: what to tell the actor with the next message. pending: its requests, oldest first; only the Dispatcher
    changes it.
    """

    config: WorkerConfig
    envs: range
    builder: bytes
    handle: Any = None
    pid: int = -1
    death: str = ""
    last_death: str = ""
    connection: CallerConnection | None = None
    num_losses: int = 0
    reconnect_at: float = 0.0
    serve_id: int = 0
    stopped_serve_id: int = 0
    serve_ref: Any = None
    commands: list[tuple[Any, ...]] = field(default_factory=list)
    next_number: int = 0
    pending: deque[Any] = field(default_factory=deque)

    @property
    def is_dead(self) -> bool:
        """Whether it has no actor."""
        return bool(self.death)

    @property
    def current(self) -> Any:
        """The request that the actor is working on; None if it is idle."""
        return self.pending[0] if self.pending else None

    def silent_since(self) -> float:
        """Return the time since which the actor could have responded and has not."""
        current = self.current
        if current is None:
            return time.monotonic()
        started_at = float(current.started_at)
        return started_at if self.connection is None else max(started_at, self.connection.last_activity)

    @property
    def is_overdue(self) -> bool:
        """Whether it has been silent for longer than step_timeout, with a request pending."""
        limit_s = self.config.step_timeout_s
        return limit_s is not None and self.current is not None and time.monotonic() - self.silent_since() >= limit_s

    def defer(self, *command: Any) -> None:
        """Have the actor run a command before its next message."""
        self.commands.append(command)

    def ensure_serving(self) -> None:
        """Have the actor answer on the connection, if it does not already."""
        if self.serve_ref is not None:
            return
        self.serve_id += 1
        self.serve_ref = self.handle.serve.remote(self.serve_id)

    def send(self, number: int, data: bytes) -> CallerConnection:
        """Send a request on the connection; return that connection."""
        assert self.connection is not None
        self.ensure_serving()
        self.connection.send(number, data)
        return self.connection

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the actor through Ray, after what is on the connection; return the reference."""
        if self.connection is not None:
            self._stop_serving(self.connection)
        return getattr(self.handle, method).remote(*arguments)

    def _stop_serving(self, connection: CallerConnection) -> None:
        if connection.is_lost or self.stopped_serve_id == self.serve_id:
            return
        connection.send(STOP_SERVING, SERVE_ID.pack(self.serve_id))
        while not connection.flush(HEARTBEAT_S):
            ray = self.config.launcher.ray
            has_ended = self.serve_ref is None or bool(ray.wait([self.serve_ref], timeout=0)[0])
            if has_ended or self.is_overdue:
                connection.close()  # it died silently or is stuck: whoever waits for its response finds out
        self.stopped_serve_id, self.serve_ref = self.serve_id, None

    def fault(self, env_id: int, method: str, death: str = "") -> Fault:
        """Return the fault of an env that died with its actor."""
        return Fault(env_id, method, f"its Ray actor {death or self.death or self.last_death}", exit_code=KILLED)

    def mark_dead(self, death: str) -> None:
        """Give the actor up. Everything pending on it is lost."""
        if not self.is_dead:
            self.death = self.last_death = death
        self.commands.clear()
        self.kill()

    def disconnect(self) -> None:
        """Close the connection, which makes the actor return to Ray's calls."""
        if self.connection is not None:
            self.connection.close()
        self.serve_ref = None

    def kill(self) -> None:
        """Kill the actor."""
        self.disconnect()
        handle, self.handle = self.handle, None
        if handle is not None:
            self.config.launcher.kill(handle)


def start_workers(workers: Sequence[Worker]) -> list[EnvDescription]:
    """Create the actors of these workers, all at once, and build their envs; return a description per worker."""
    try:
        for worker in workers:
            worker.handle = worker.config.launcher.create(worker.envs.start)
            worker.serve_id = worker.stopped_serve_id = worker.num_losses = 0
            worker.death = ""
            worker.next_number = 0
            worker.pending.clear()
        _await_placement(workers)
        return _build_envs(workers)
    except BaseException:
        for worker in workers:
            worker.mark_dead("was given up while it was started")
        raise


def restart_worker(worker: Worker) -> None:
    """Start a new actor wherever there is room, and build all envs of the worker again."""
    for attempt in range(_MAX_START_ATTEMPTS):
        try:
            start_workers([worker])
            return
        except EnvError as error:
            # A constructor that raised would raise again.
            if error.faults[0].exit_code is None or attempt == _MAX_START_ATTEMPTS - 1:
                raise


def stop_workers(workers: Sequence[Worker], timeout_s: float) -> list[str]:
    """Have the workers close their envs, then kill them whether or not they did in time; return the warnings."""
    ray = workers[0].config.launcher.ray
    texts: list[str] = []
    try:
        refs = [worker.handle.close.remote() for worker in workers if worker.handle is not None]
        ready = ray.wait(refs, num_returns=len(refs), timeout=timeout_s)[0] if refs else []
        for ref in ready:
            with contextlib.suppress(ray.exceptions.RayError):  # it died before the call
                texts += decode_result(ray.get(ref), "")
    finally:
        for worker in workers:
            worker.kill()
    return texts


def _await_placement(workers: Sequence[Worker]) -> None:
    """Wait until every actor runs. Ray itself would wait indefinitely for a machine with room."""
    launcher = workers[0].config.launcher
    ray = launcher.ray
    waiting = {worker.handle.ping.remote(): worker for worker in workers}
    deadline = time.monotonic() + launcher.placement_timeout_s
    while waiting:
        ready, _ = ray.wait(list(waiting), num_returns=1, timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            raise launcher.placement_error(len(waiting), len(workers))
        worker = waiting.pop(ready[0])
        try:
            ray.get(ready[0])
        except ray.exceptions.RuntimeEnvSetupError as error:
            raise PlacementError(f"runtime_env cannot be set up on a machine of the cluster: {error}") from error
        except ray.exceptions.RayActorError as error:
            if getattr(error, "actor_init_failed", False):
                raise PlacementError(
                    f"an actor could not start: {_short_text(error)}; install envfleet on every machine of the cluster"
                ) from error
            raise _died_during_start(worker, error) from error
        except ray.exceptions.RayError as error:
            raise PlacementError(f"an actor could not start: {_short_text(error)}") from error


def _build_envs(workers: Sequence[Worker]) -> list[EnvDescription]:
    ray = workers[0].config.launcher.ray
    context = (
        ray.put(ProcessContext.capture(is_same_machine=False))
        if len(workers) > 1
        else ProcessContext.capture(is_same_machine=False)
    )
    refs = [worker.handle.build.remote(context, worker.builder, worker.config.autoreset_mode) for worker in workers]
    descriptions = []
    for worker, ref in zip(workers, refs, strict=True):
        try:
            description, worker.pid = decode_result(ray.get(ref), BUILD_REMEDY)
        except RemoteCallError as error:
            fault = Fault(worker.envs.start, "__init__", str(error), error.traceback, error.cause)
            raise EnvError((fault,), None, build_remedy(fault)) from error.cause
        except ray.exceptions.RayError as error:
            raise _died_during_start(worker, error) from error
        descriptions.append(description)
    return descriptions


def _died_during_start(worker: Worker, error: BaseException) -> EnvError:
    fault = worker.fault(worker.envs.start, "__init__", describe_death(error))
    return EnvError.of((fault,), None, "the constructor of an env ended the process, or it was killed from outside")


class WorkerTable:
    """The workers of a pool and their envs, contiguous and in order."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.all_ids = all_env_ids(workers[-1].envs.stop)
        self.workers = workers
        self._worker_ids = [self.all_ids[worker.envs.start : worker.envs.stop] for worker in workers]
        self._first_ids = np.array([worker.envs.start for worker in workers])

    def worker_of(self, env_id: int) -> Worker:
        """Return the worker of this env."""
        return self.workers[int(np.searchsorted(self._first_ids, env_id, side="right")) - 1]

    def group(self, env_ids: Sequence[int]) -> dict[Worker, list[int]]:
        """Return these envs by worker."""
        groups: dict[Worker, list[int]] = {}
        for env_id in env_ids:
            groups.setdefault(self.worker_of(env_id), []).append(int(env_id))
        return groups

    def split(self, env_ids: Any) -> Iterator[tuple[Worker, NDArray[np.int32], bool, Rows]]:
        """Yield for each worker concerned its envs in the given order, whether these are all it has, and their rows."""
        if env_ids is None:
            for worker, ids in zip(self.workers, self._worker_ids, strict=True):
                yield worker, ids, True, slice(worker.envs.start, worker.envs.stop)
            return
        owners = np.searchsorted(self._first_ids, env_ids, side="right") - 1
        order = np.argsort(owners, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(owners[order])) + 1):
            index = int(owners[rows[0]])
            ids = np.ascontiguousarray(env_ids[rows])
            is_all = len(ids) == len(self._worker_ids[index]) and np.array_equal(ids, self._worker_ids[index])
            # As a slice where possible: numpy copies runs faster than single rows.
            is_run = bool((np.diff(rows) == 1).all())
            yield self.workers[index], ids, is_all, slice(int(rows[0]), int(rows[-1]) + 1) if is_run else rows


# --- connections ---------------------------------------------------------------------------------


class Connections:
    """The caller's connections to its workers, made together and polled together.

    is_enabled: False sends every message through Ray.
    """

    def __init__(self, ray: ModuleType, is_enabled: bool) -> None:
        self._ray = ray
        self._poll = select.poll()
        self._by_fd: dict[int, tuple[Worker, CallerConnection]] = {}
        self._with_unsent: set[CallerConnection] = set()
        # Where Ray was told to encrypt, nothing may cross the network in the clear.
        self._is_enabled = is_enabled and not is_encrypted()
        self._not_before = 0.0

    def reconnect_if_due(self, worker: Worker) -> None:
        """Connect to a worker that has lost its connection, if it is time for that."""
        if worker.num_losses and time.monotonic() >= worker.reconnect_at:
            self.connect([worker])

    def connect(self, workers: Sequence[Worker]) -> None:
        """Connect to those of these workers that are alive, idle and not connected.

        If one of them cannot be reached, none is connected, and it is not tried again for two minutes: otherwise each
        reset would wait for a timeout.
        """
        workers = [
            worker for worker in workers if worker.connection is None and not worker.is_dead and worker.current is None
        ]
        if not self._is_enabled or not workers or time.monotonic() < self._not_before:
            return
        secrets = {worker: os.urandom(SECRET_BYTES) for worker in workers}
        addresses = self._call_all(workers, "listen", secrets)
        endpoints = {
            worker: ((address[0], address[1]), secrets[worker]) for worker, address in addresses.items() if address
        }
        connections = connect_all(endpoints, _CONNECT_TIMEOUT_S)
        # A worker that was not reached and does not answer a ping either has died: its next message tells how.
        unreached = [worker for worker in addresses if worker not in connections]
        if self._call_all(unreached, "ping"):
            self._not_before = time.monotonic() + _UNREACHABLE_S
            for connection in connections.values():
                connection.close()
            return
        for worker, connection in connections.items():
            self._by_fd[connection.fileno()] = (worker, connection)
            self._poll.register(connection, select.POLLIN)
            worker.connection = connection
            worker.ensure_serving()  # so that the actor stops listening for others

    def _call_all(
        self, workers: Sequence[Worker], method: str, argument: Mapping[Worker, bytes] | None = None
    ) -> dict[Worker, Any]:
        """Call a method of these actors at once; return the results of those that answered."""
        refs = {
            worker: worker.call(method, *([argument[worker]] if argument is not None else [])) for worker in workers
        }
        results = {}
        for worker, ref in refs.items():
            with contextlib.suppress(self._ray.exceptions.RayError):  # it died, or Ray cannot reach it now
                results[worker] = self._ray.get(ref)
        return results

    def poll(self, timeout_s: float) -> list[tuple[int, int]]:
        """Wait until connections have news, which pump() takes in."""
        self._with_unsent = {own for own in self._with_unsent if own.has_unsent and not own.is_lost}
        for connection in self._with_unsent:
            self._poll.modify(connection, select.POLLIN | select.POLLOUT)
        try:
            return self._poll.poll(timeout_s * 1000)
        finally:
            for connection in self._with_unsent:
                self._poll.modify(connection, select.POLLIN)

    def pump(self, ready: Sequence[tuple[int, int]]) -> list[Worker]:
        """Take in the news, a loss included; return the workers concerned. Frames are in `received`."""
        workers = []
        for fd, _ in ready:
            worker, connection = self._by_fd[fd]
            connection.pump()
            if connection.is_lost:
                self._forget(fd)
            workers.append(worker)
        return workers

    def watch_unsent(self, connection: CallerConnection) -> None:
        """Note that a connection has more to send than the socket took at once."""
        self._with_unsent.add(connection)

    def note_loss(self, worker: Worker) -> None:
        """Close a lost connection whose worker may be alive, and schedule the next one."""
        self.close(worker)
        delay_s = min(_FIRST_RECONNECT_S * 2.0**worker.num_losses, _MAX_RECONNECT_S)
        worker.reconnect_at = time.monotonic() + delay_s
        worker.num_losses += 1

    def close(self, worker: Worker) -> None:
        """Close the connection of a worker, if it has one."""
        for fd in [fd for fd, (owner, _) in self._by_fd.items() if owner is worker]:
            self._forget(fd)
        worker.disconnect()
        worker.connection = None

    def close_all(self, workers: Sequence[Worker]) -> None:
        """Close every connection, whatever an interruption has left unfinished."""
        self._poll, self._with_unsent = select.poll(), set()
        while self._by_fd:
            self._by_fd.popitem()[1][1].close()
        for worker in workers:
            worker.disconnect()
            worker.connection = None

    def _forget(self, fd: int) -> None:
        self._poll.unregister(fd)
        del self._by_fd[fd]
