"""Game: one ViZDoom game, its engine process, and the engine's folder.

The engine writes its settings, logs and a folder into the working directory; two engines that start there at the same
time can crash the process that starts them. So each engine is started by a script in a folder of its own, and leaves
nothing anywhere else.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import tempfile
import threading
import warnings
import weakref
from typing import Any

from envfleet.core.errors import EnvfleetError
from envfleet.envs.watchdog import kill_engines, release_queues, remove_game, unwatch, watch
from envfleet.families.vizdoom.files import check_working_folder

_SCRIPT = os.path.join(os.path.dirname(__file__), "engine.sh")
_START_POLL_S = 1.0
_POLLS_UNTIL_WARNING = 30
_CLOSE_TIMEOUT_S = 2.0
_KILLED = "the ViZDoom engine was killed while it started; reset() starts a new one"


class GameError(EnvfleetError, RuntimeError):
    """The engine of a ViZDoom game did not start, or has died."""


class EngineFolder:
    """A new folder with a program that starts the engine in it.

    The link "state" in it says how the start went: "killed" if engine.sh had to replace an engine that was killed, or
    "started" once init() has returned. Whichever is made first stays.
    """

    def __init__(self, engine: str) -> None:
        self.path = os.path.join(tempfile.gettempdir(), f"envfleet-vizdoom-{secrets.token_hex(8)}")
        self.launcher = os.path.join(self.path, "engine")
        try:
            # First: if this process is killed here, the watchdog still removes the folder.
            watch(self.path)
            os.mkdir(self.path, 0o700)
            with open(os.path.join(self.path, "program"), "w") as file:
                file.write(engine)
            # A link: a program that was just written cannot be run while a child that another thread forked meanwhile
            # still has the file open.
            if os.access(_SCRIPT, os.X_OK):
                os.symlink(_SCRIPT, self.launcher)
            else:  # the installer dropped the permission
                subprocess.run(["install", "-m", "700", _SCRIPT, self.launcher], check=True)
            if not os.access(self.launcher, os.X_OK):
                raise GameError(
                    f"expected a temporary folder from which programs may run, got {tempfile.gettempdir()}; "
                    "set TMPDIR to another one"
                )
        except BaseException:
            self.remove()
            raise

    @property
    def log(self) -> str:
        """The last lines of the engine's output."""
        try:
            with open(os.path.join(self.path, "log"), errors="replace") as file:
                lines = [line.strip() for line in file.read().replace("\r", "\n").splitlines() if line.strip()]
        except OSError:
            return ""
        return " / ".join(lines[-5:])

    @property
    def was_killed(self) -> bool:
        """Whether engine.sh replaced an engine that was killed while it started."""
        state = os.path.join(self.path, "state")
        return os.path.islink(state) and os.readlink(state) == "killed"

    def supervise_start(self, started: threading.Event) -> None:
        """Until the engine has started, unlock the queues that an engine had locked when it was killed."""
        polls_killed = 0
        while not started.wait(_START_POLL_S):
            if not self.was_killed:
                continue
            release_queues(self.path)
            polls_killed += 1
            if polls_killed == _POLLS_UNTIL_WARNING:
                warnings.warn(
                    "a ViZDoom engine is killed again and again while it starts, and started again; "
                    "check whether the machine is out of memory",
                    RuntimeWarning,
                    stacklevel=1,
                )

    def mark_started(self) -> bool:
        """Tell engine.sh not to replace an engine that is killed from now on. Returns False if it already did."""
        try:
            os.symlink("started", os.path.join(self.path, "state"))
        except FileExistsError:
            return False
        return True

    def remove(self) -> None:
        """End the engine, if it still runs, and remove everything that it left."""
        remove_game(self.path)
        unwatch(self.path)


class Game:
    """A configured vizdoom.DoomGame (`doom`), and the engine process that start() starts."""

    def __init__(self, doom: Any, engine: str) -> None:
        self.doom = doom
        self._engine = engine
        self._folder: EngineFolder | None = None
        self._remove: weakref.finalize[Any, Any] | None = None

    @property
    def is_started(self) -> bool:
        """Whether it was started and not closed. Its engine may have died."""
        return self._folder is not None

    def start(self) -> None:
        """Start the engine and the first episode. Several games can be started from several threads."""
        check_working_folder()
        folder = EngineFolder(self._engine)
        # Removes the folder of a game that is garbage collected without close().
        self._remove = weakref.finalize(self, folder.remove)
        self._remove.atexit = False  # the watchdog does it
        self._folder = folder
        self.doom.set_vizdoom_path(folder.launcher)
        self.doom.set_doom_config_path(os.path.join(folder.path, "vizdoom.ini"))
        # An engine that Ctrl-C ends while it starts would crash this process. It inherits the blocked signals.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        started = threading.Event()
        try:
            threading.Thread(target=folder.supervise_start, args=[started], daemon=True).start()
            self.doom.init()
        except Exception as error:
            message = f"the ViZDoom engine did not start: {error} {folder.log}".strip()
            was_killed = folder.was_killed
            self.close()
            if was_killed:
                raise GameError(_KILLED) from error
            raise GameError(f"{message}; check the files, the map and game_args") from error
        finally:
            started.set()
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if not folder.mark_started():
            self.close()
            raise GameError(_KILLED)

    def died(self, error: Exception) -> GameError:
        """Clean up after an engine that died, and return the error to raise."""
        log = self._folder.log if self._folder is not None else ""
        self.close()
        return GameError(f"the ViZDoom engine died: {error} {log}".strip() + "; reset() starts a new one")

    def kill(self) -> None:
        """Kill the engine; calls of other threads that wait for it raise."""
        if self._folder is not None:
            kill_engines(self._folder.path)

    def close(self) -> None:
        """End the engine and remove its files; start() starts it again."""
        if self._folder is None:
            return
        # close() would wait forever for an engine that hangs.
        timer = threading.Timer(_CLOSE_TIMEOUT_S, kill_engines, [self._folder.path])
        timer.daemon = True
        timer.start()
        try:
            self.doom.close()
        finally:
            timer.cancel()
            self._folder = None
            if self._remove is not None:
                self._remove()
