"""What a worker process does: takes over its surroundings and runs its job.

The job of a pool's worker is a Share: it builds its envs, tells their spaces, serves its part of a board.
Other jobs (envfleet.sampling has one) need nothing but run(channel).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import select
import signal
import sys
import threading
import traceback
from dataclasses import dataclass
from typing import Any

from envfleet import _native
from envfleet.errors import EnvfleetError
from envfleet.executors.affinity import pin_worker
from envfleet.executors.processes.channel import Channel
from envfleet.executors.python.building import build_all, close_all
from envfleet.executors.python.env_description import Portrait, portrait_of
from envfleet.executors.python.faults import trouble_of
from envfleet.executors.python.layout import Layout
from envfleet.executors.python.mailbox import FileMailbox, dump
from envfleet.executors.python.runner import EnvRunner
from envfleet.making.builders import adopt_registered, registered_envs


@dataclass(frozen=True)
class Surroundings:
    """What a worker takes over from the caller before it loads anything of the user's."""

    sys_path: tuple[str, ...]
    environ: dict[str, str]
    cwd: str | None
    authkey: bytes  # without it a manager's proxy in a factory could not connect
    registered: bytes  # what was registered with Gymnasium here

    @staticmethod
    def here() -> Surroundings:
        """Those of this process, now."""
        try:
            cwd = os.getcwd()
        except OSError:  # it was deleted
            cwd = None
        authkey = bytes(multiprocessing.current_process().authkey)
        return Surroundings(tuple(map(str, sys.path)), dict(os.environ), cwd, authkey, registered_envs())

    def adopt(self) -> None:
        """Makes them this process's."""
        os.environ.clear()
        os.environ.update(self.environ)
        sys.path[:] = self.sys_path
        multiprocessing.current_process().authkey = self.authkey
        if self.cwd is not None:
            with contextlib.suppress(OSError):
                os.chdir(self.cwd)
        adopt_registered(self.registered)


@dataclass(frozen=True)
class Share:
    """What a worker is to run. builders: pickled, since they may need the caller's sys.path."""

    builders: bytes
    env_ids: range
    are_built_now: bool  # or one by one, when the caller asks for them
    worker: int = 0
    affinity_offset: int = -1  # PoolConfig.thread_affinity_offset

    def run(self, channel: Channel) -> None:
        """Serves these envs from handshake to end."""
        _serve(channel, self)


@dataclass(frozen=True)
class BoardPlan:
    """Where a worker works; the board's file comes with it."""

    layout: Layout
    worker: int
    max_episode_steps: int | None
    max_spinners: int


def start(fd: int, parent_pid: int) -> None:
    """The main function of a worker that was started as a program of its own."""
    from envfleet.executors.processes.server import die_with_parent

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(parent_pid)
    os._exit(main(fd))


def start_forked(fd: int, parent_pid: int) -> None:
    """The main function of a worker that was forked from the caller itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    # The system's own way would end it with the thread that forked it.
    leave_with(parent_pid)
    os._exit(main(fd))


def main(fd: int) -> int:
    """Runs one worker from handshake to end; its exit code."""
    channel = Channel.adopt(fd)
    try:
        _run(channel)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        channel.close()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
    return 0


def _run(channel: Channel) -> None:
    message = channel.recv()
    if message is None:
        return
    surroundings, job = pickle.loads(message[0])
    surroundings.adopt()
    job.run(channel)


def _serve(channel: Channel, share: Share) -> None:
    pin_worker(share.affinity_offset, share.worker)  # first: what an env starts runs there too
    try:
        builders = pickle.loads(share.builders)
    except BaseException as error:
        channel.send(dump(("failed", share.env_ids[0], trouble_of(error, "__init__", is_leaving=True))))
        return
    envs: dict[int, Any] = {}
    if share.are_built_now:
        try:
            envs = build_all(builders, share.env_ids)
        except EnvfleetError as error:
            faults = getattr(error, "faults", None)
            env_id = faults[0].env_id if faults else share.env_ids[0]
            cause = faults[0].cause if faults and faults[0].cause is not None else error
            channel.send(dump(("failed", env_id, trouble_of(cause, "__init__", is_leaving=True))))
            return
    channel.send(dump(("built", _portraits(envs))))
    message = channel.recv()
    if message is None:  # another worker could not be made, and the pool with it
        close_all(envs.values())
        return
    plan: BoardPlan = pickle.loads(message[0])
    (board_fd,) = message[1]
    buffer = _native.map_file(board_fd, plan.layout.num_bytes)
    mailbox = FileMailbox(board_fd, plan.layout.num_bytes, plan.layout.num_envs, plan.layout.num_workers)
    runner = EnvRunner(
        plan.layout, buffer, plan.worker, mailbox, builders, envs, plan.max_episode_steps, plan.max_spinners
    )
    channel.send(dump(("ready", None)))
    runner.loop.serve()
    with contextlib.suppress(OSError):  # nobody may be left to hear it
        channel.send(dump(("closed", runner.close())))


def _portraits(envs: dict[int, Any]) -> list[Portrait]:
    """Of each env; equal ones as the same object, so that a pickle of many is small."""
    portraits: list[Portrait] = []
    for env in envs.values():
        own = portrait_of(env)
        if portraits and (own.observation_space, own.action_space) == (
            portraits[0].observation_space,
            portraits[0].action_space,
        ):
            own = portraits[0]
        portraits.append(own)
    return portraits


def leave_with(parent_pid: int) -> None:
    """Has a thread of this process end it when that one ends."""
    threading.Thread(target=_leave_with, args=(parent_pid,), daemon=True).start()


def _leave_with(parent_pid: int) -> None:
    try:
        pidfd = os.pidfd_open(parent_pid)
    except (AttributeError, OSError):
        return
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)  # readable when the process has ended
    poll.poll()
    os._exit(1)
