"""The watchdog: ends the game engines of a process that died, and removes what they leave behind.

ViZDoom runs each game in a process of its own. That process survives a kill -9 of its owner, and so does its shared
memory. The watchdog is a small program that knows the folder of every game of one process; when that process is gone,
for whatever reason, it does what close() would have done. It has no parent and a session of its own, so that nothing
that ends the owner also ends the watchdog. Each process has one watchdog, for as long as it has a game.

watch() and unwatch() are the owner's side, main() is the program. This file is run by its path, without site-packages:
it only uses the standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

# engine.sh writes the engine's arguments into this file of the engine's folder, one per line.
_ARGUMENTS = "arguments"
_SHARED_MEMORY = "/dev/shm"
_QUEUES = ("ViZDoomMQCtr", "ViZDoomMQDoom")
_SHARED_NAMES = (*_QUEUES, "ViZDoomSM")
# Where Boost's message queue has its mutex, and where glibc writes the thread that holds it.
_MUTEX_OFFSET = 0x30
_OWNER_OFFSET = _MUTEX_OFFSET + 8
_INSTANCE_ID = re.compile(r"viz_instance_id[\n\0]+(\w+)")


def engines_of(folder: str) -> Iterator[int]:
    """Yield the processes that run the game of this folder: its path is among their arguments."""
    wanted = os.fsencode(folder)
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/{name}/cmdline", "rb") as file:
                if wanted in file.read():
                    yield int(name)


def kill_engines(folder: str) -> None:
    """Kill the game of this folder."""
    for pid in engines_of(folder):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def release_queues(folder: str) -> None:
    """Unlock the message queues of this folder's game that an engine had locked when it was killed.

    Their mutexes are not robust: send() and receive() would wait for them forever.
    """
    for instance_id in _instance_ids(folder):
        for name in _QUEUES:
            # ValueError: an empty file cannot be mapped.
            with contextlib.suppress(OSError, ValueError), open(_shared_path(name, instance_id), "r+b") as file:
                memory = mmap.mmap(file.fileno(), 0)
                (owner,) = struct.unpack_from("=i", memory, _OWNER_OFFSET)
                if owner > 0 and not _is_running(owner):
                    mutex = ctypes.c_char.from_buffer(memory, _MUTEX_OFFSET)
                    ctypes.CDLL(None).pthread_mutex_unlock(ctypes.byref(mutex))


def _is_running(pid: int) -> bool:
    """Return whether a process runs; one that has ended and was not waited for has no command line."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return bool(file.read())
    return False


def _instance_ids(folder: str) -> set[str]:
    """Return the names that the engines of this folder gave to their shared memory."""
    with contextlib.suppress(OSError), open(os.path.join(folder, _ARGUMENTS)) as file:
        return set(_INSTANCE_ID.findall(file.read()))
    return set()


def _shared_path(name: str, instance_id: str) -> str:
    return os.path.join(_SHARED_MEMORY, name + instance_id)


def remove_game(folder: str) -> None:
    """Kill the game of this folder, and remove the folder and the game's shared memory."""
    instance_ids = _instance_ids(folder)
    # The folder first: without it, engine.sh cannot start another engine.
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
                os.unlink(_shared_path(name, instance_id))


def main(owner_pid: int) -> None:
    """Read folders from standard input, one "+folder" or "-folder" per line, until the owner or the pipe is gone."""
    if os.fork():
        os._exit(0)  # the owner waits for this process; the one that stays has no parent
    poll = select.poll()
    poll.register(0, select.POLLIN)
    with contextlib.suppress(AttributeError, OSError):  # AttributeError: only Linux has pidfds
        # The pipe alone is not enough: a fork of the owner may hold its other end.
        poll.register(os.pidfd_open(owner_pid), select.POLLIN)
    folders: set[str] = set()
    rest = b""
    while True:
        ready = [fd for fd, _ in poll.poll()]
        read = os.read(0, 65536) if 0 in ready else b""
        *lines, rest = (rest + read).split(b"\n")
        for line in lines:
            (folders.add if line[:1] == b"+" else folders.discard)(os.fsdecode(line[1:]))
        if not read:  # the pipe was closed, or it is empty and the owner is gone
            break
    for folder in folders:
        remove_game(folder)


# --- the owner's side ---------------------------------------------------------------------------


def watch(folder: str) -> None:
    """Register the folder of a game that must end when this process dies. Call before the game starts."""
    with _state.lock:
        _state.folders.add(folder)
        _send(f"+{folder}\n")


def unwatch(folder: str) -> None:
    """Unregister the folder of a game, after both were removed."""
    with _state.lock:
        if folder not in _state.folders:
            return
        _state.folders.discard(folder)
        if _state.folders:
            _send(f"-{folder}\n")
        elif _state.pipe is not None:
            os.close(_state.pipe)  # which ends the watchdog
            _state.pipe = None


class _State:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.pipe: int | None = None
        self.folders: set[str] = set()


def _send(line: str) -> None:
    if _state.pipe is not None:
        try:
            os.write(_state.pipe, os.fsencode(line))
        except BrokenPipeError:  # the watchdog was killed
            os.close(_state.pipe)
            _state.pipe = None
        else:
            return
    _state.pipe = _start()
    for folder in _state.folders:
        os.write(_state.pipe, os.fsencode(f"+{folder}\n"))


def _start() -> int:
    read, write = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(os.getpid())],
            stdin=read,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
    except BaseException:
        os.close(write)
        raise
    finally:
        os.close(read)
    process.wait()  # until it has forked the process that stays
    return write


def _reset_after_fork() -> None:
    """Forget all games in a forked child: they belong to the parent."""
    global _state
    if _state.pipe is not None:
        os.close(_state.pipe)
    _state = _State()


_state = _State()
os.register_at_fork(after_in_child=_reset_after_fork)


if __name__ == "__main__":
    main(int(sys.argv[1]))
