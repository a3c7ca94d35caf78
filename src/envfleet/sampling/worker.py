"""A worker process that runs one generator.

The main thread runs the generator. A second thread reads the caller's messages, so that new weights and close() arrive
while a trajectory is running. Neither polls: one waits on a condition, the other on its socket.

    caller -> worker: begin, more, restart, stop, weights, close
    worker -> caller: starting, ready, failed, begun, trajectory, returned, raised, closed
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import threading
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

from envfleet.core.batch import Fault
from envfleet.executors import debugger
from envfleet.executors.processes.channel import Channel
from envfleet.executors.python.side_channel import dump
from envfleet.sampling.generators import START, TRAJS, GeneratorReturned, RestartableGenerator
from envfleet.sampling.serialization import ObjectPickler, ReceivedObject
from envfleet.sampling.weights import WeightsStore, set_process_store

_GRACE_S = 1.0  # for the running trajectory after the reading thread has failed


class StopWorker(BaseException):
    """Raised wherever the main thread is, by SIGTERM, so that finally blocks run on the way out."""


@dataclass(frozen=True)
class GeneratorJob:
    """What a worker runs.

    factory: pickled, since it may need the caller's sys.path. max_ahead_bytes: a worker with this much finished and
    not yet taken starts no further trajectory. has_weights: the next message is the newest weights, which the generator
    may read at its start.
    """

    factory: bytes
    max_ahead_bytes: int
    has_weights: bool = False

    def run(self, channel: Channel) -> None:
        """Serve the generator from its start to its end."""
        _Worker(channel, self.max_ahead_bytes).run(self.factory, self.has_weights)


class _Worker:
    def __init__(self, channel: Channel, max_ahead_bytes: int) -> None:
        self._channel = channel
        self._pid = os.getpid()
        self._max_ahead_bytes = max_ahead_bytes
        self._pickler = ObjectPickler()
        self._weights = WeightsStore()
        # Shared by the two threads, under the condition:
        self._changed = threading.Condition()
        self._stream = 0
        self._request: ReceivedObject | None = None
        self._num_requested = 0
        self._ahead_bytes = 0
        self._is_halted = False
        self._is_stopping = False
        self._reader_error: BaseException | None = None
        self._has_read = threading.Event()  # the first message, or that there is none
        self._has_stopped = threading.Event()

    def run(self, factory: bytes, has_weights: bool) -> None:
        set_process_store(self._weights)
        signal.signal(signal.SIGTERM, partial(_on_sigterm, os.getpid()))
        threading.Thread(target=self._read, name="envfleet-reader", daemon=True).start()
        generator: RestartableGenerator | None = None
        was_asked = True
        report: Fault | None = None
        try:
            self._tell("starting", 0)
            if has_weights:
                self._has_read.wait()
            try:
                generator = RestartableGenerator(pickle.loads(factory))
                generator.start()
            except StopWorker:
                raise
            except BaseException as error:
                self._check_process()
                self._tell("failed", 0, Fault.of(error, START))
                return
            self._check_process()
            self._tell("ready", 0)
            self._work(generator)
        except StopWorker:
            was_asked = self._is_stopping
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if generator is not None:
                try:
                    generator.close()
                except BaseException as error:
                    report = Fault.of(error, "close()")
            self._check_process()
            self._has_stopped.set()
            if self._reader_error is not None:
                # No request can arrive without that thread: the caller is told, and starts another worker.
                self._tell("failed", 0, Fault.of(self._reader_error, TRAJS))
            self._tell("closed", 0, report)
        if not was_asked:  # the signal came from elsewhere: it ends the process in the usual way
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    # --- the main thread -----------------------------------------------------------------------------

    def _work(self, generator: RestartableGenerator) -> None:
        begun_stream = 0
        while (pending := self._next_request()) is not None:
            stream, request = pending
            if stream != begun_stream:
                # The caller's timeout starts here: a trajectory of an earlier stream may have been running until now.
                self._tell("begun", stream)
                begun_stream = stream
            method = START
            try:
                if not generator.is_started:
                    self._tell("starting", stream)
                    generator.start()
                    self._check_process()
                    self._tell("ready", stream)
                method = TRAJS
                trajectory = generator.send(request.load())
                self._check_process()
                self._deliver(stream, trajectory)
            except GeneratorReturned:
                self._check_process()
                self._halt("returned", stream, None)
            except StopWorker:
                raise
            except BaseException as error:  # SystemExit too: it belongs to the generator
                self._check_process()
                with contextlib.suppress(Exception):
                    generator.close()  # it is still open if its trajectory could not be pickled
                self._halt("raised", stream, Fault.of(error, method))

    def _check_process(self) -> None:
        """End a child that the generator has forked and that came back from it: two would answer for one worker."""
        if os.getpid() != self._pid:
            os._exit(1)

    def _next_request(self) -> tuple[int, ReceivedObject] | None:
        debugger.end_prompt()
        with self._changed:
            while not self._is_stopping:
                has_room = self._ahead_bytes == 0 or self._ahead_bytes < self._max_ahead_bytes
                if self._num_requested > 0 and has_room and not self._is_halted and self._request is not None:
                    self._num_requested -= 1
                    return self._stream, self._request
                self._changed.wait()
        return None

    def _deliver(self, stream: int, trajectory: Any) -> None:
        if stream != self._stream:
            return  # its stream has ended
        pickled = self._pickler.pickle(trajectory)
        header, fd = pickled.to_message()
        try:
            with self._changed:
                if stream != self._stream:
                    return
                self._ahead_bytes += pickled.num_bytes
            self._tell("trajectory", stream, header, fd)
        finally:
            if fd is not None:
                os.close(fd)

    def _halt(self, event: str, stream: int, report: Fault | None) -> None:
        with self._changed:
            # If another stream has begun meanwhile, it starts the generator again.
            if stream == self._stream:
                self._is_halted, self._num_requested = True, 0
        self._tell(event, stream, report)

    def _tell(self, event: str, stream: int, detail: Any = None, fd: int | None = None) -> None:
        with contextlib.suppress(OSError):  # the caller is gone, which the reading thread notices
            self._channel.send(dump((event, stream, detail)), [] if fd is None else [fd])

    # --- the reading thread --------------------------------------------------------------------------

    def _read(self) -> None:
        grace_s = 0.0
        try:
            grace_s = self._read_until_close()
        except BaseException as error:  # e.g. an object without its memory, after the generator ran out of descriptors
            self._reader_error, grace_s = error, _GRACE_S
        self._has_read.set()
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        # A running trajectory may finish by itself; otherwise an exception makes its finally blocks run.
        if not self._has_stopped.wait(grace_s):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    def _read_until_close(self) -> float:
        """Handle messages until the worker is told to stop; return how long a running trajectory may go on."""
        while (message := self._channel.recv()) is not None:
            data, fds = message
            command, stream, detail = pickle.loads(data)
            fd = fds[0] if fds else None
            if command == "close":
                grace_s: float = detail
                return grace_s
            if command == "weights":
                version, header = detail
                self._weights.publish(version, ReceivedObject(header, fd, is_private=True).load)
                self._has_read.set()
                continue
            with self._changed:
                self._handle(command, stream, detail, fd)
                self._changed.notify()
        return 0.0

    def _handle(self, command: str, stream: int, detail: Any, fd: int | None) -> None:
        if command == "begin":
            num_requested, header = detail
            self._stream, self._request, self._num_requested = stream, ReceivedObject(header, fd), num_requested
            self._ahead_bytes, self._is_halted = 0, False
        elif stream != self._stream:
            return
        elif command == "more":
            num_requested, taken_bytes = detail
            self._num_requested += num_requested
            self._ahead_bytes -= taken_bytes
        elif command == "restart":
            self._num_requested, self._is_halted = detail, False
        elif command == "stop":
            self._stream, self._request, self._num_requested = 0, None, 0


def _on_sigterm(owner_pid: int, _signal: int, _frame: FrameType | None) -> None:
    if os.getpid() != owner_pid:  # a process that the generator forked: it ends in the usual way
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
        return
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once: a second one must not interrupt the finally blocks
    raise StopWorker
