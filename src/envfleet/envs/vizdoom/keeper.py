"""The keeper: ends the game engines of a process that died, and removes what they leave.

ViZDoom runs each game in a process of its own. That process outlives a kill -9 of its owner, and
its shared memory with it. The keeper is a small program that knows the folder of every game of one
process; when that process is gone, however it went, it does what close() would have done. It has no
parent and a session of its own, so that nothing that ends the owner ends it too.

Only the standard library: this file is run by its path, and must start quickly.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterator

# What engine.sh writes into the engine's folder: its arguments, one a line.
_ARGUMENTS = "arguments"
_SHARED_MEMORY = "/dev/shm"
_SHARED_NAMES = ("ViZDoomMQCtr", "ViZDoomMQDoom", "ViZDoomSM")
_INSTANCE_ID = re.compile(r"viz_instance_id[\n\0]+(\w+)")


def engines_of(folder: str) -> Iterator[int]:
    """The processes that run the game of this folder: its path is among their arguments."""
    wanted = os.fsencode(folder)
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/{name}/cmdline", "rb") as file:
                if wanted in file.read():
                    yield int(name)


def kill_engines(folder: str) -> None:
    """Kills the game of this folder."""
    for pid in engines_of(folder):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def remove_game(folder: str) -> None:
    """Kills the game of this folder, and removes the folder and the game's shared memory."""
    instance_ids: set[str] = set()
    with contextlib.suppress(OSError), open(os.path.join(folder, _ARGUMENTS)) as file:
        instance_ids.update(_INSTANCE_ID.findall(file.read()))
    # The folder goes first: it holds the program that would start an engine which is only on its way.
    for _ in range(100):
        shutil.rmtree(folder, ignore_errors=True)
        running = list(engines_of(folder))
        if not running and not os.path.exists(folder):
            break
        kill_engines(folder)
        time.sleep(0.01)
    for instance_id in instance_ids:
        for name in _SHARED_NAMES:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(_SHARED_MEMORY, name + instance_id))


def main(owner_pid: int) -> None:
    """Reads folders from standard input, "+folder" or "-folder" a line, until the owner or the pipe is gone."""
    if os.fork():
        os._exit(0)  # the owner waits for this one; the one that stays has no parent
    poll = select.poll()
    poll.register(0, select.POLLIN)
    with contextlib.suppress(OSError):
        # The pipe alone does not tell: a fork of the owner may hold its other end.
        poll.register(os.pidfd_open(owner_pid), select.POLLIN)
    folders: set[str] = set()
    rest = b""
    while True:
        ready = [fd for fd, _ in poll.poll()]
        read = os.read(0, 65536) if 0 in ready else b""
        *lines, rest = (rest + read).split(b"\n")
        for line in lines:
            (folders.add if line[:1] == b"+" else folders.discard)(os.fsdecode(line[1:]))
        if not read:  # the pipe is closed, or it is empty and the owner is gone
            break
    for folder in folders:
        remove_game(folder)


if __name__ == "__main__":
    main(int(sys.argv[1]))
