"""watch() and unwatch(): this process's side of the keeper.

The keeper runs while there is a game to watch over, one for each process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading

from envfleet.envs.vizdoom import keeper as keeper_program


def watch(folder: str) -> None:
    """Has the game of this folder ended when this process dies. Before the game is started."""
    with _state.lock:
        _state.folders.add(folder)
        _tell(f"+{folder}\n")


def unwatch(folder: str) -> None:
    """The game of this folder is gone, and so is the folder."""
    with _state.lock:
        if folder not in _state.folders:
            return
        _state.folders.discard(folder)
        if _state.folders:
            _tell(f"-{folder}\n")
        elif _state.pipe is not None:
            os.close(_state.pipe)  # it leaves, for nobody needs it
            _state.pipe = None


class _State:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.pipe: int | None = None
        self.folders: set[str] = set()


def _tell(line: str) -> None:
    if _state.pipe is not None:
        try:
            os.write(_state.pipe, os.fsencode(line))
        except BrokenPipeError:  # somebody has killed it
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
            [sys.executable, "-I", "-S", keeper_program.__file__, str(os.getpid())],
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
    process.wait()  # it has forked the one that stays
    return write


def _forget() -> None:
    """In a forked child: the games are the parent's."""
    global _state
    if _state.pipe is not None:
        os.close(_state.pipe)
    _state = _State()


_state = _State()
os.register_at_fork(after_in_child=_forget)
