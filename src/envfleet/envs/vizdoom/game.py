"""Game: one ViZDoom game, its engine process, and the folder that engine lives in.

The engine writes its settings, logs and a folder of its own into the working directory; two that
start at once there can crash the process that starts them. So each is started by a script in a
folder of its own, and nothing of it is left anywhere else.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import tempfile
import threading
import weakref
from typing import Any

from envfleet.envs.vizdoom import keeping
from envfleet.envs.vizdoom.files import check_working_folder
from envfleet.envs.vizdoom.keeper import kill_engines, remove_game
from envfleet.errors import EnvfleetError

_SCRIPT = os.path.join(os.path.dirname(__file__), "engine.sh")
_CLOSE_TIMEOUT_S = 2.0


class GameError(EnvfleetError, RuntimeError):
    """The engine of a ViZDoom game did not start, or is gone."""


class Folder:
    """A new folder with a program that starts the engine in it."""

    def __init__(self, engine: str) -> None:
        self.path = os.path.join(tempfile.gettempdir(), f"envfleet-vizdoom-{secrets.token_hex(8)}")
        self.launcher = os.path.join(self.path, "engine")
        try:
            # First: a process that is killed just here leaves no folder that nobody knows of.
            keeping.watch(self.path)
            os.mkdir(self.path, 0o700)
            with open(os.path.join(self.path, "program"), "w") as file:
                file.write(engine)
            # A link: a program that was only just written cannot be run while a child of another thread, forked
            # meanwhile, has the file open still.
            if os.access(_SCRIPT, os.X_OK):
                os.symlink(_SCRIPT, self.launcher)
            else:  # an installer that drops such rights
                subprocess.run(["install", "-m", "700", _SCRIPT, self.launcher], check=True)
            if not os.access(self.launcher, os.X_OK):
                raise GameError(
                    f"expected a folder of temporary files from which programs may run, got {tempfile.gettempdir()}; "
                    "set TMPDIR to another one"
                )
        except BaseException:
            self.remove()
            raise

    @property
    def log(self) -> str:
        """The last lines that the engine printed."""
        try:
            with open(os.path.join(self.path, "log"), errors="replace") as file:
                lines = [line.strip() for line in file.read().replace("\r", "\n").splitlines() if line.strip()]
        except OSError:
            return ""
        return " / ".join(lines[-5:])

    def remove(self) -> None:
        """Ends the engine, if it still runs, and removes every trace of it."""
        remove_game(self.path)
        keeping.unwatch(self.path)


class Game:
    """A configured vizdoom.DoomGame (`doom`), and its life. Not started until start()."""

    def __init__(self, doom: Any, engine: str) -> None:
        self.doom = doom
        self._engine = engine
        self._folder: Folder | None = None
        self._remove: weakref.finalize[Any, Any] | None = None

    @property
    def is_started(self) -> bool:
        """Whether it was started and not closed. Its engine may be dead all the same."""
        return self._folder is not None

    def start(self) -> None:
        """Starts the engine; the first episode begins. For several at once: from several threads."""
        check_working_folder()
        folder = Folder(self._engine)
        # A game that nobody closes: its folder goes with it.
        self._remove = weakref.finalize(self, folder.remove)
        self._remove.atexit = False  # the keeper does it
        self._folder = folder
        self.doom.set_vizdoom_path(folder.launcher)
        self.doom.set_doom_config_path(os.path.join(folder.path, "vizdoom.ini"))
        # An engine that Ctrl-C ends while it starts takes this process with it; it inherits what is blocked here.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            self.doom.init()
        except Exception as error:
            message = f"the ViZDoom engine did not start: {error} {folder.log}".strip()
            self.close()
            raise GameError(f"{message}; check the files, the map and game_args") from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def gone(self, error: Exception) -> GameError:
        """What to raise when a call of the engine has failed: it is dead, and cleared away."""
        log = self._folder.log if self._folder is not None else ""
        self.close()
        return GameError(f"the ViZDoom engine is gone: {error} {log}".strip() + "; reset() starts a new one")

    def kill(self) -> None:
        """Kills the engine; calls that wait for it in other threads raise."""
        if self._folder is not None:
            kill_engines(self._folder.path)

    def close(self) -> None:
        """Ends the engine and removes its files; start() begins anew."""
        if self._folder is None:
            return
        # An engine that hangs would keep close() waiting for ever.
        last_resort = threading.Timer(_CLOSE_TIMEOUT_S, kill_engines, [self._folder.path])
        last_resort.daemon = True
        last_resort.start()
        try:
            self.doom.close()
        finally:
            last_resort.cancel()
            self._folder = None
            if self._remove is not None:
                self._remove()
