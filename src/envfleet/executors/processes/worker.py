"""The main function of a worker process: apply the caller's process context, then run a job.

The job of a pool's worker is a WorkerEnvs: it builds its envs, describes them to the caller and serves their requests.
Other jobs (envfleet.sampling has one) only need a method run(channel).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
import weakref
from dataclasses import dataclass
from functools import partial
from typing import Any

from envfleet import _native
from envfleet.core.batch import Fault
from envfleet.core.descriptors import open_closed_standard_streams
from envfleet.core.errors import EnvfleetError
from envfleet.executors import debugger
from envfleet.executors.processes.channel import Channel
from envfleet.executors.python.building import EnvDescription, build_envs, close_envs, describe_env
from envfleet.executors.python.layout import Layout
from envfleet.executors.python.runner import EnvRunner, pin_worker
from envfleet.executors.python.side_channel import FileSideChannel, dump

# How often a process without pidfds checks whether its parent has ended: workers must end within a second.
PARENT_POLL_S = 0.2


@dataclass(frozen=True)
class WorkerEnvs:
    """The job of a pool's worker: run these envs.

    builders are pickled, since unpickling may need the caller's sys.path.
    """

    builders: bytes
    env_ids: range
    build_now: bool  # False: one by one, when the caller asks for a rebuild
    worker: int = 0
    affinity_offset: int = -1  # PoolConfig.thread_affinity_offset

    def run(self, channel: Channel) -> None:
        """Build and serve these envs until the caller closes the pool."""
        pin_worker(self.affinity_offset, self.worker)  # first: threads that an env starts inherit it
        try:
            builders = pickle.loads(self.builders)
        except BaseException as error:
            channel.send(dump(("failed", Fault.of(error, "__init__", self.env_ids[0]))))
            return
        envs: dict[int, Any] = {}
        check_process = partial(_native.exit_if_forked, _native.fork_generation())
        if self.build_now:
            try:
                try:
                    envs = build_envs(builders, self.env_ids, check_process, is_interruptible=False)
                finally:
                    debugger.end_prompt()
            except EnvfleetError as error:
                faults = getattr(error, "faults", None) or [Fault.of(error, "__init__", self.env_ids[0])]
                channel.send(dump(("failed", faults[0])))
                return
        channel.send(dump(("built", _describe_all(envs))))
        message = channel.recv()
        if message is None:  # another worker could not be made, and the pool with it
            close_envs(envs.values(), check_process)
            return
        options: RunnerOptions = pickle.loads(message[0])
        (memory_fd,) = message[1]
        layout = options.layout
        buffer = _native.map_file(memory_fd, layout.num_bytes)
        side_channel = FileSideChannel(memory_fd, layout.num_bytes, layout.num_envs, layout.num_workers)
        runner = EnvRunner(
            layout,
            buffer,
            options.worker,
            side_channel,
            builders,
            envs,
            check_process,
        )
        loop = runner.make_loop(options.max_episode_steps, options.num_cores)
        debugger.call_when_it_opens(loop.begin_prompt)
        channel.send(dump(("ready", None)))
        loop.serve()
        loop.detach()
        close_faults = runner.close()
        with contextlib.suppress(OSError):  # the caller may be gone
            channel.send(dump(("closed", close_faults)))


@dataclass(frozen=True)
class RunnerOptions:
    """The arguments of a worker's EnvRunner; the descriptor of the shared memory is sent with them."""

    layout: Layout
    worker: int
    max_episode_steps: int | None
    num_cores: int


def python_command(program: str) -> list[str]:
    """Return the command that runs a program in a new interpreter with the flags and the sys.path of this one."""
    # Private, but what multiprocessing uses: -O, -W, -X ...
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # typeshed lacks it
    return [sys.executable, *flags, "-c", f"import sys; sys.path[:] = {[*map(str, sys.path)]!r}; {program}"]


def start(fd: int, parent_pid: int) -> None:
    """Run a worker that was started as a new program."""
    from envfleet.executors.processes.fork_server import die_with_parent

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(parent_pid)
    os._exit(main(fd))


def start_forked(fd: int, parent_pid: int) -> None:
    """Run a worker that was forked from the caller."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    forget_exit_handlers()
    open_closed_standard_streams()  # before the descriptors below take their numbers
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    # PR_SET_PDEATHSIG would kill it when the thread that forked it ends.
    exit_with_parent(parent_pid)
    os._exit(main(fd))


def forget_exit_handlers() -> None:
    """Forget the exit handlers of the process that this worker was forked from: only that process runs them."""
    atexit._clear()
    # One handler runs all finalizers, those of the parent too, such as that of a TemporaryDirectory.
    finalize: Any = weakref.finalize  # untyped: the attributes are private
    for finalizer in finalize._registry:
        finalizer.atexit = False
    # Otherwise the handler would not be registered again for the finalizers of this process.
    finalize._registered_with_atexit = False


# Set in worker processes.
_is_worker = False


def is_worker() -> bool:
    """Return whether this process is a worker, whose process-wide settings an env may change."""
    return _is_worker


def main(fd: int) -> int:
    """Run one worker and return its exit code."""
    global _is_worker
    _is_worker = True
    channel = Channel.adopt(fd)
    try:
        _run(channel)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        channel.close()
        # Of the envs and their packages: os._exit() runs none. The caller kills a worker that takes too long.
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
        with contextlib.suppress(BaseException):
            flush_standard_streams()
    return 0


def flush_standard_streams() -> None:
    """Write out what is buffered in sys.stdout and sys.stderr."""
    for stream in (sys.stdout, sys.stderr):
        # None, closed, or a full disk. Not every Exception: a signal handler of the caller may raise one here.
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()


def _run(channel: Channel) -> None:
    message = channel.recv()
    if message is None:
        return
    context, job = pickle.loads(message[0])
    context.apply()
    job.run(channel)


def _describe_all(envs: dict[int, Any]) -> list[EnvDescription]:
    """Describe each env. Equal descriptions are one object, so that their pickle is small."""
    descriptions: list[EnvDescription] = []
    for env in envs.values():
        description = describe_env(env)
        if descriptions and (description.observation_space, description.action_space) == (
            descriptions[0].observation_space,
            descriptions[0].action_space,
        ):
            description = descriptions[0]
        descriptions.append(description)
    return descriptions


def exit_with_parent(parent_pid: int) -> None:
    """End this process, from a thread, when the parent ends."""
    threading.Thread(target=_exit_with_parent, args=(parent_pid,), daemon=True).start()


def _exit_with_parent(parent_pid: int) -> None:
    pidfd = open_pidfd(parent_pid)
    if pidfd is not None:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)  # readable when the process has ended
        poll.poll()
    else:
        while os.getppid() == parent_pid:
            time.sleep(PARENT_POLL_S)
    os._exit(1)


def open_pidfd(pid: int) -> int | None:
    """Return a descriptor that becomes readable when the process ends.

    Returns None if it has already ended, or on systems without pidfds.
    """
    if "pidfd" not in _native.features:
        return None
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # AttributeError: a Python built for an older kernel
        return None
