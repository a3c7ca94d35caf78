"""ProcessContext: what a worker process or actor takes over from its parent before it loads any user code."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
from dataclasses import dataclass

from envfleet.core.aliases import InstalledAliases, install_inherited, installed_aliases
from envfleet.executors import debugger
from envfleet.executors.registered_envs import adopt_registered, registered_envs


@dataclass(frozen=True)
class ProcessContext:
    """The settings of the parent's process."""

    sys_path: tuple[str, ...]
    aliases: InstalledAliases
    registered: bytes  # envs registered with Gymnasium
    machine: MachineContext | None  # None: the worker may run on another machine

    @staticmethod
    def capture(*, is_same_machine: bool = True) -> ProcessContext:
        """Return the context of this process."""
        machine = MachineContext.capture() if is_same_machine else None
        return ProcessContext(tuple(map(str, sys.path)), installed_aliases(), registered_envs(), machine)

    def apply(self) -> None:
        """Apply the context to this process."""
        if self.machine is not None:
            self.machine.apply()
            sys.path[:] = self.sys_path
        else:
            sys.path.extend(path for path in self.sys_path if path not in sys.path and os.path.isdir(path or "."))
        install_inherited(self.aliases)  # before anything of the user's is unpickled, as below
        adopt_registered(self.registered)
        if self.machine is not None:
            debugger.install(self.machine.terminal)
        else:
            debugger.install(None, debugger.ON_RAY)


@dataclass(frozen=True)
class MachineContext:
    """The part of it that holds on the parent's machine only; runtime_env sets the like for actors."""

    environ: dict[str, str]
    cwd: str | None
    affinity: frozenset[int]  # the cores of the thread that makes the pool; empty: this system does not tell
    authkey: bytes  # for factories that hold the proxy of a multiprocessing manager
    terminal: str | None  # for breakpoint(); None: there is none

    @staticmethod
    def capture() -> MachineContext:
        """Return that of this process."""
        try:
            cwd = os.getcwd()
        except OSError:  # it was deleted
            cwd = None
        affinity = frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()
        authkey = bytes(multiprocessing.current_process().authkey)
        return MachineContext(dict(os.environ), cwd, affinity, authkey, debugger.terminal_of_this_process())

    def apply(self) -> None:
        """Apply it to this process."""
        os.environ.clear()
        os.environ.update(self.environ)
        multiprocessing.current_process().authkey = self.authkey
        if self.cwd is not None:
            with contextlib.suppress(OSError):
                os.chdir(self.cwd)
        if self.affinity:
            # The fork server, which this process may come from, was started with the mask of an earlier moment.
            with contextlib.suppress(OSError):  # a core was taken offline
                os.sched_setaffinity(0, self.affinity)
