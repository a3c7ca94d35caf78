"""ProcessesBackend: each generator in a worker process, trajectories through shared memory.

    the caller's thread         SchedulerQueue           the scheduler thread          worker processes
    start_stream, next_event <- events, late faults   <- _Scheduler: all sockets,  <-> worker.py
    restart, broadcast ...   -> commands              -> who is asked next

The scheduler thread serves the workers whatever the caller does meanwhile. The caller's thread takes events from a
list, and the scheduler derives from that list which workers to ask for more.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import cloudpickle

from envfleet.core.batch import Fault
from envfleet.core.errors import EnvfleetError
from envfleet.core.executor import CLOSE_TIMEOUT_S
from envfleet.core.tracebacks import message_of
from envfleet.executors.process_context import ProcessContext
from envfleet.executors.processes.launcher import WorkerProcess, describe_exit, start_worker
from envfleet.sampling.backend import Event, EventKind, GeneratorBackend
from envfleet.sampling.generators import START, TRAJS, GeneratorFactory, start_error
from envfleet.sampling.serialization import Header, ReceivedObject, pickle_argument, pickle_factory
from envfleet.sampling.worker import GeneratorJob

_KILL_TIMEOUT_S = 5.0
_GRACE_S = 1.0  # for the trajectory that is running when the runner is closed
_SEND_TIMEOUT_S = 10


class ProcessesBackend(GeneratorBackend):
    """Runs each generator in a process of its own."""

    def __init__(
        self,
        factories: Sequence[GeneratorFactory],
        start_method: str,
        prefetch: int,
        max_ahead_bytes: int,
        traj_timeout: float | None,
    ) -> None:
        worker_ahead_bytes = max(1, max_ahead_bytes // len(factories))
        # Pickled before anything is started.
        jobs = [
            GeneratorJob(pickle_factory(cloudpickle.dumps, factory, generator, "processes"), worker_ahead_bytes)
            for generator, factory in enumerate(factories)
        ]
        self._queue = SchedulerQueue()
        self._workers: list[_Worker] = []
        self._scheduler = _Scheduler(self._workers, self._queue, prefetch, worker_ahead_bytes, traj_timeout)
        try:
            for generator, job in enumerate(jobs):
                self._workers.append(_Worker(generator, job, start_method))
            self._scheduler.start()
            self._await_start()
        except BaseException:
            self.close()
            raise

    def start_stream(self, request: Any) -> list[Fault]:
        """Start a stream; trajectories of the previous one are dropped where they are."""
        header, fd = pickle_argument(request, "trajs()")
        stream, late_faults = self._queue.open_stream()
        self._queue.submit(partial(self._scheduler.begin, stream, header, fd))
        return late_faults

    def next_event(self, generator: int | None) -> Event | None:
        """Wait for the next event."""
        return self._queue.take(generator)

    def restart_generator(self, generator: int) -> None:
        """Start a generator again, in a new process if the old one is gone."""
        self._queue.submit(partial(self._scheduler.restart, self._workers[generator]))

    def stop_stream(self) -> None:
        """Drop finished trajectories and pending requests."""
        self._queue.end_stream()
        self._queue.submit(self._scheduler.stop)

    def broadcast(self, weights: Any, version: int) -> None:
        """Write the weights into shared memory once; the workers map them."""
        self._queue.submit(partial(self._scheduler.broadcast, version, *pickle_argument(weights, "broadcast()")))

    @property
    def worker_pids(self) -> list[int]:
        """The process id of each generator."""
        pids = []
        for worker in self._workers:
            while worker.process.pid is None and not worker.process.wait(0.001):
                pass
            pids.append(worker.process.pid or -1)
        return pids

    def close(self) -> list[Fault]:
        """Let the workers close their generators, then kill those that do not."""
        # Garbage collection may run in the scheduler thread, or while the lock is held, where waiting would deadlock.
        if self._scheduler.is_this_thread or self._queue.is_locked_by_this_thread:
            threading.Thread(target=self.close, name="envfleet-closing").start()
            return []
        if not self._queue.close():
            return []
        has_scheduler = self._scheduler.is_alive
        try:
            if has_scheduler:
                self._queue.submit(self._scheduler.close_workers)
                deadline = time.monotonic() + CLOSE_TIMEOUT_S
                for worker in self._workers:
                    worker.process.wait(max(0.0, deadline - time.monotonic()))
        finally:
            for worker in self._workers:
                worker.process.kill()
            for worker in self._workers:
                worker.process.wait(_KILL_TIMEOUT_S)
            if has_scheduler:
                self._queue.submit(self._scheduler.finish)
                self._scheduler.join()
            for worker in self._workers:
                worker.close(_KILL_TIMEOUT_S)
            self._scheduler.close_files()
            self._queue.close_pipe()
        return [
            replace(worker.close_report, env_id=worker.generator) for worker in self._workers if worker.close_report
        ]

    def _await_start(self) -> None:
        while True:
            fault = self._queue.first_fault()
            if fault is not None:
                raise start_error(replace(fault, method=START)) from fault.cause
            if all(worker.is_started for worker in self._workers):
                return
            self._queue.wait_for_change()


# --- between the threads -------------------------------------------------------------------------


class _Ahead(NamedTuple):
    """How much of a stream is finished and not yet taken, by generator."""

    stream: int
    num_ready: Counter[int]
    ready_bytes: Counter[int]


_Command = Callable[[], None]
_Exit = tuple["_Worker", int, int]  # the worker, which of its processes, exit code


class SchedulerQueue:
    """Passes events to the caller's thread, and commands and process exits to the scheduler thread.

    Everything mutable is protected by the lock, except that the scheduler reads `stream` without it: an event for an
    old stream is rejected in post(). Neither side polls: the caller waits for a lock, the scheduler for a byte in a
    pipe, together with its sockets.

    stream: counts the streams and the gaps between them. late_faults: faults that belong to no stream.
    """

    def __init__(self) -> None:
        # Reentrant: garbage collection may end a stream at any point.
        self._lock = threading.RLock()
        self.stream = 0
        self.events: list[Event] = []
        self.late_faults: list[Fault] = []
        self._is_streaming = False
        self._commands: list[_Command] = []
        self._exits: list[_Exit] = []
        self._is_closed = False
        self._scheduler_error: BaseException | None = None
        # Held while nothing has changed. A plain lock: notify() may be called in garbage collection, whatever is held.
        self._unchanged = threading.Lock()
        self._unchanged.acquire()
        self.wake_read, self._wake_write = os.pipe()
        os.set_blocking(self.wake_read, False)
        os.set_blocking(self._wake_write, False)

    # --- the caller's thread -------------------------------------------------------------------------

    def open_stream(self) -> tuple[int, list[Fault]]:
        """Open a stream; return its number and the faults that belong to none."""
        with self._lock:
            self.stream += 1
            stream = self.stream
            self._is_streaming = True
            self.events = []
            late_faults, self.late_faults = self.late_faults, []
        return stream, late_faults

    def end_stream(self) -> None:
        """Drop the events of the stream, now and from now on."""
        with self._lock:
            self._is_streaming = False
            self.stream += 1
            self.events = []
        self.notify()

    def take(self, generator: int | None) -> Event | None:
        """Wait for an event, of this generator only if one is given. None if closed, or if the stream was ended."""
        while True:
            with self._lock:
                if self._is_closed or not self._is_streaming:
                    return None
                self._check_scheduler()
                events = self.events
                index = next((i for i, event in enumerate(events) if generator in (None, event.generator)), None)
                event = None if index is None else events.pop(index)
            self._wake()  # there is room for more
            if event is not None:
                return event
            self.wait_for_change()

    def submit(self, command: _Command) -> None:
        """Have the scheduler thread run this."""
        with self._lock:
            self._commands.append(command)
        self._wake()

    def first_fault(self) -> Fault | None:
        """Return the first fault, of the stream or of none."""
        with self._lock:
            self._check_scheduler()
            faults = [event.fault for event in self.events if event.fault is not None] + self.late_faults
        return faults[0] if faults else None

    def _check_scheduler(self) -> None:
        if self._scheduler_error is not None:
            raise RuntimeError(
                "the runner's scheduler thread failed, which is a bug; please report it"
            ) from self._scheduler_error

    def wait_for_change(self) -> None:
        """Wait until something may have changed."""
        self._unchanged.acquire()

    @property
    def is_locked_by_this_thread(self) -> bool:
        """Whether this thread holds the lock, and so must not wait for another."""
        return self._lock._is_owned()  # type: ignore[attr-defined,no-any-return]  # as Condition

    def close(self) -> bool:
        """Stop passing events; commands still pass. Return whether this was the first call."""
        with self._lock:
            if self._is_closed:
                return False
            self._is_closed = True
            self.events = []
        self.notify()
        return True

    def close_pipe(self) -> None:
        """Close the pipe, after the scheduler thread has ended."""
        with self._lock:
            os.close(self.wake_read)
            os.close(self._wake_write)
            self._wake_write = -1

    def _wake(self) -> None:
        with self._lock:
            if self._wake_write >= 0:
                with contextlib.suppress(BlockingIOError):  # full of earlier wake-ups
                    os.write(self._wake_write, b"!")

    # --- the launcher's thread -----------------------------------------------------------------------

    def note_exit(self, worker: _Worker, process: WorkerProcess, start_count: int) -> None:
        """Report that a process has exited."""
        with self._lock:
            assert process.exit_code is not None, "it has exited"
            self._exits.append((worker, start_count, process.exit_code))
        self._wake()

    # --- the scheduler thread ------------------------------------------------------------------------

    def drain_pipe(self) -> None:
        """Read the wake-ups, so that the next one is noticed."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.wake_read, 4096):
                pass

    def collect(self) -> tuple[list[_Command], list[_Exit]]:
        """Return the commands and the exits since the last call."""
        with self._lock:
            commands, self._commands = self._commands, []
            exits, self._exits = self._exits, []
        return commands, exits

    def post(self, event: Event, stream: int) -> None:
        """Pass an event of this stream to the caller. Of an event for an old stream only the fault is kept."""
        with self._lock:
            if self._is_closed:
                return
            if stream == self.stream and self._is_streaming:
                self.events.append(event)
            elif event.fault is not None:
                self.late_faults.append(event.fault)
        self.notify()

    def ahead(self) -> _Ahead | None:
        """Return what the caller has not taken yet; None if there is no stream."""
        with self._lock:
            if not self._is_streaming or self._is_closed:
                return None
            ahead = _Ahead(self.stream, Counter(), Counter())
            for event in self.events:
                ahead.num_ready[event.generator] += 1
                ahead.ready_bytes[event.generator] += event.num_bytes
        return ahead

    def fail(self, error: BaseException) -> None:
        """Report that the scheduler thread failed: take() raises."""
        self._scheduler_error = error
        self.notify()

    def notify(self) -> None:
        """Have the caller look again."""
        with contextlib.suppress(RuntimeError):  # it was notified already
            self._unchanged.release()


# --- the scheduler thread ------------------------------------------------------------------------


class _Worker:
    """One generator and the process that runs it. Only the scheduler thread touches it, once that runs.

    num_requested, num_done: requests of the present stream. arrived_bytes, acknowledged_bytes: of the trajectories
    that arrived, and how many of those bytes the worker knows to be taken. waiting_since: when it started what it owes.
    is_starting: it is starting its generator. is_started: it has done so once. is_halted: it receives no further
    requests in this stream. is_lost: its process is gone or useless. kill_reason: why it was killed.
    """

    def __init__(self, generator: int, job: GeneratorJob, start_method: str) -> None:
        self.generator = generator
        self._job = job
        self._start_method = start_method
        self.start_count = 0
        self.close_report: Fault | None = None
        self.start()

    def start(self) -> None:
        """Start a process; the previous one, if any, is gone."""
        process = start_worker(self._start_method)  # first: if that fails, the state of the old one stays
        if self.start_count:
            self.process.channel.close()
        self.start_count += 1
        self.process: WorkerProcess = process
        self.is_starting = self.is_started = self.is_lost = self.is_halted = self.has_failed = False
        self.is_readable = True
        self.kill_reason: str | None = None
        self.begin(0)

    def send_job(self, has_weights: bool) -> None:
        """Tell the process what to run. has_weights: the next message is the newest weights."""
        job = replace(self._job, has_weights=has_weights)
        self._send(pickle.dumps((ProcessContext.capture(), job)), None)
        # Later messages are short, and the worker's reading thread takes them at once: one that does not is stuck.
        with socket.socket(fileno=os.dup(self.process.channel.fileno())) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_TIMEOUT_S, 0))

    def begin(self, num_requested: int) -> None:
        """Reset the counters for a new stream."""
        self.num_requested, self.num_done = num_requested, 0
        self.arrived_bytes = self.acknowledged_bytes = 0
        self.waiting_since = time.monotonic()
        self.is_halted = self.is_lost

    def tell(self, command: str, stream: int, detail: Any = None, fd: int | None = None) -> None:
        """Send a command. The death of a worker is noticed elsewhere."""
        if not self.is_lost:
            self._send(pickle.dumps((command, stream, detail)), fd)

    def _send(self, data: bytes, fd: int | None) -> None:
        try:
            self.process.channel.send(data, [] if fd is None else [fd])
        except BlockingIOError:
            self.kill(f"did not read its messages for {_SEND_TIMEOUT_S} s")
        except OSError:
            pass

    def kill(self, reason: str) -> None:
        """Kill a worker that does not respond."""
        if self.kill_reason is None:
            self.kill_reason = reason
            self.process.kill()

    @property
    def owes_trajectory(self) -> bool:
        """Whether a requested trajectory has not arrived yet."""
        return self.is_started and not self.is_halted and self.num_requested > self.num_done

    def death(self, exit_code: int) -> Fault:
        """Return the fault of a worker whose process has exited."""
        how = f"{self.kill_reason} and was killed" if self.kill_reason is not None else describe_exit(exit_code)
        method = TRAJS if self.is_started and not self.is_starting else START
        return Fault(self.generator, method, f"its worker process {how}", exit_code=exit_code)

    def close(self, timeout_s: float) -> None:
        """Kill the process if it is alive, and close the channel."""
        self.process.kill()
        self.process.wait(timeout_s)
        with contextlib.suppress(OSError):
            self.process.channel.close()


class _Scheduler:
    """Serves the workers. The methods under "commands" are for SchedulerQueue.submit().

    workers: the list may grow until start(). worker_ahead_bytes: how much one worker may have finished ahead.
    """

    def __init__(
        self,
        workers: list[_Worker],
        queue: SchedulerQueue,
        prefetch: int,
        worker_ahead_bytes: int,
        traj_timeout: float | None,
    ) -> None:
        self._workers = workers
        self._queue = queue
        self._prefetch = prefetch
        self._worker_ahead_bytes = worker_ahead_bytes
        self._traj_timeout = traj_timeout
        self._is_finished = False
        self._begun_stream = 0  # the stream that the workers' counters are about
        self._request: tuple[Header, int | None] = ((), ()), None
        self._weights: tuple[int, Header, int | None] | None = None
        self._thread = threading.Thread(target=self._run, name="envfleet-scheduler", daemon=True)

    # --- the caller's thread -------------------------------------------------------------------------

    def start(self) -> None:
        """Tell the workers what to run, then serve them in a thread."""
        # After all processes were started: sending large arguments waits until they are read.
        for worker in self._workers:
            self._send_job(worker)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread is running."""
        return self._thread.is_alive()

    @property
    def is_this_thread(self) -> bool:
        """Whether the caller is the scheduler thread."""
        return threading.current_thread() is self._thread

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def close_files(self) -> None:
        """Close the files that were kept for workers that start later. After the thread has ended."""
        for fd in (self._request[1], self._weights[2] if self._weights else None):
            if fd is not None:
                os.close(fd)

    # --- the scheduler thread ------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_finished:
                self._wait()
                commands, exits = self._queue.collect()
                for worker, start_count, exit_code in exits:
                    if start_count == worker.start_count:
                        self._on_exit(worker, exit_code)
                for command in commands:
                    command()
                self._request_more()
        except BaseException as error:
            self._queue.fail(error)

    def _wait(self) -> None:
        """Wait until there is something to read or to do, or a worker is overdue."""
        wake_read = self._queue.wake_read
        poll = select.poll()
        poll.register(wake_read, select.POLLIN)
        readers = {worker.process.channel.fileno(): worker for worker in self._workers if worker.is_readable}
        for fd in readers:
            poll.register(fd, select.POLLIN)
        now = time.monotonic()
        deadlines = {worker: due for worker in self._workers if (due := self._deadline_of(worker)) is not None}
        timeout_ms = max(0.0, min(deadlines.values()) - now) * 1000 + 1 if deadlines else None
        heard = set()
        for fd, _ in poll.poll(timeout_ms):
            if fd == wake_read:
                self._queue.drain_pipe()
            else:
                heard.add(readers[fd])
                self._read(readers[fd])
        # Only now, and only for deadlines that had passed before the poll: this thread may have been delayed itself,
        # with the worker's message waiting in its socket.
        for worker, deadline in deadlines.items():
            if deadline <= now and worker not in heard:
                missed = "reached no first yield" if worker.is_starting else "returned no trajectory"
                worker.kill(f"{missed} within traj_timeout={self._traj_timeout:g} s")

    def _deadline_of(self, worker: _Worker) -> float | None:
        """Return when the worker will have been silent for too long; None if it owes nothing."""
        if self._traj_timeout is None or worker.is_lost or worker.kill_reason is not None:
            return None
        is_full = worker.arrived_bytes - worker.acknowledged_bytes >= self._worker_ahead_bytes
        is_current = self._queue.stream == self._begun_stream
        if worker.is_starting or (worker.owes_trajectory and is_current and not is_full):
            return worker.waiting_since + self._traj_timeout
        return None

    def _read(self, worker: _Worker) -> None:
        message = worker.process.channel.recv()
        if message is None:
            worker.is_readable = False
            return
        data, fds = message
        event, stream, detail = pickle.loads(data)
        if event in ("starting", "ready", "begun"):
            # Each has the whole timeout: the start, the rest of an earlier stream's trajectory, the first trajectory.
            worker.waiting_since = time.monotonic()
            worker.is_starting = event == "starting"
            worker.is_started = worker.is_started or event == "ready"
            self._queue.notify()
        elif event == "closed":
            worker.close_report = detail
        elif event == "trajectory":
            self._on_trajectory(worker, stream, detail, fds[0] if fds else None)
        elif event == "returned":
            worker.is_halted = worker.is_halted or stream == self._queue.stream
            self._queue.post(Event(worker.generator, "returned"), stream)
        else:  # raised, failed
            worker.is_starting = False
            if event == "failed":  # the process exits, so the generator needs another one
                worker.has_failed = worker.is_lost = True
            self._fail(worker, replace(detail, env_id=worker.generator), stream or self._queue.stream)

    def _on_trajectory(self, worker: _Worker, stream: int, header: Header, fd: int | None) -> None:
        if stream != self._queue.stream:
            if fd is not None:
                os.close(fd)
            return
        worker.num_done += 1
        worker.waiting_since = time.monotonic()
        try:
            received = ReceivedObject(header, fd)
        except Exception as error:
            self._fail(worker, Fault.of(error, TRAJS, worker.generator), stream)
            return
        worker.arrived_bytes += received.num_bytes
        event = Event(worker.generator, "trajectory", received.load, num_bytes=received.num_bytes)
        self._queue.post(event, stream)

    def _fail(self, worker: _Worker, fault: Fault, stream: int, kind: EventKind = "raised") -> None:
        worker.is_halted = worker.is_halted or stream == self._queue.stream
        self._queue.post(Event(worker.generator, kind, fault=fault), stream)

    def _on_exit(self, worker: _Worker, exit_code: int) -> None:
        """Handle the exit of a process, after the messages that it sent before."""
        poll = select.poll()
        poll.register(worker.process.channel.fileno(), select.POLLIN)
        while worker.is_readable and poll.poll(0):
            self._read(worker)
        worker.is_readable = False
        worker.is_lost = True
        if not worker.has_failed:
            self._fail(worker, worker.death(exit_code), self._queue.stream, "died")

    def _request_more(self) -> None:
        ahead = self._queue.ahead()
        if ahead is None or ahead.stream != self._begun_stream:
            return  # in the latter case its begin() is still among the commands
        for worker in self._workers:
            missing = self._prefetch - ahead.num_ready[worker.generator] - (worker.num_requested - worker.num_done)
            if missing > 0 and not worker.is_halted:
                taken_bytes = worker.arrived_bytes - ahead.ready_bytes[worker.generator] - worker.acknowledged_bytes
                if worker.num_requested == worker.num_done or taken_bytes:
                    worker.waiting_since = time.monotonic()
                worker.num_requested += missing
                worker.acknowledged_bytes += taken_bytes
                worker.tell("more", ahead.stream, (missing, taken_bytes))

    # --- commands ------------------------------------------------------------------------------------

    def begin(self, stream: int, header: Header, fd: int | None) -> None:
        """Send this request to all workers, and start lost ones again."""
        if self._request[1] is not None:
            os.close(self._request[1])
        self._request = header, fd
        self._begun_stream = stream
        for worker in self._workers:
            if not worker.is_lost or self._restart_process(worker):
                self._begin(worker)

    def restart(self, worker: _Worker) -> None:
        """Start a generator again, in a new process if the old one is gone."""
        if worker.is_lost:
            if self._restart_process(worker):
                self._begin(worker)
        else:
            worker.begin(self._prefetch)
            worker.tell("restart", self._begun_stream, self._prefetch)

    def stop(self) -> None:
        """Drop the requests that were not started."""
        for worker in self._workers:
            worker.tell("stop", self._begun_stream)

    def broadcast(self, version: int, header: Header, fd: int | None) -> None:
        """Send these weights to all workers, and to those that start later."""
        if self._weights is not None and self._weights[2] is not None:
            os.close(self._weights[2])
        self._weights = version, header, fd
        for worker in self._workers:
            worker.tell("weights", 0, (version, header), fd)

    def close_workers(self) -> None:
        """Have the workers close their generators and exit."""
        for worker in self._workers:
            worker.tell("close", 0, _GRACE_S)

    def finish(self) -> None:
        """End the thread."""
        self._is_finished = True

    def _begin(self, worker: _Worker) -> None:
        header, fd = self._request
        worker.begin(self._prefetch)
        worker.tell("begin", self._begun_stream, (self._prefetch, header), fd)

    def _restart_process(self, worker: _Worker) -> bool:
        """Start a new process; return whether that worked. If not, only this generator has failed."""
        if not worker.process.wait(_KILL_TIMEOUT_S):
            worker.process.kill()  # it should have exited by itself
        try:
            worker.start()
            self._send_job(worker)
        except (OSError, EnvfleetError) as error:  # no descriptors, processes or memory left, or no fork server
            worker.process.kill()
            worker.is_lost, worker.is_readable = True, False
            message = f"its worker process could not be started: {message_of(error)}"
            self._fail(worker, Fault(worker.generator, START, message, cause=error), self._begun_stream)
            return False
        return True

    def _send_job(self, worker: _Worker) -> None:
        worker.send_job(has_weights=self._weights is not None)
        worker.process.on_exit(partial(self._queue.note_exit, worker, worker.process, worker.start_count))
        if self._weights is not None:
            version, header, fd = self._weights
            worker.tell("weights", 0, (version, header), fd)
