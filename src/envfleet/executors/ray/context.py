"""What an actor takes over from the process of its caller."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from envfleet.core.aliases import InstalledAliases, install_inherited, installed_aliases
from envfleet.executors import debugger
from envfleet.executors.registered_envs import adopt_registered, registered_envs


@dataclass(frozen=True)
class ActorContext:
    """What an actor takes over from the caller's process before it loads any user code.

    Environment variables and the working directory are not part of it: the actor's machine has its own, and
    runtime_env sets them.
    """

    sys_path: tuple[str, ...]
    aliases: InstalledAliases
    registered: bytes

    @staticmethod
    def capture() -> ActorContext:
        """Return the context of this process."""
        return ActorContext(tuple(map(str, sys.path)), installed_aliases(), registered_envs())

    def apply(self) -> None:
        """Apply it to this process."""
        sys.path.extend(path for path in self.sys_path if path not in sys.path and os.path.isdir(path or "."))
        install_inherited(self.aliases)  # before anything of the user's is unpickled, as below
        adopt_registered(self.registered)
        debugger.install(None, debugger.ON_RAY)
