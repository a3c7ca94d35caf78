"""Port: a UDP port for one game, that no other game of any process on this machine takes."""

from __future__ import annotations

import socket

from envfleet.errors import ConfigError

_ATTEMPTS = 100


class Port:
    """A port that is free for an engine to host a game on, until close().

    The engine must bind the UDP port itself, and a port that is taken ends it. So the port is kept by
    its TCP namesake, which the engine does not want, and which two games cannot both have.
    """

    def __init__(self, number: int = 0) -> None:
        """number: 0 for any."""
        for _ in range(_ATTEMPTS if number == 0 else 1):
            self._keeping = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                self._keeping.bind(("127.0.0.1", number))
                self.number: int = self._keeping.getsockname()[1]
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                    probe.bind(("", self.number))
            except OSError:
                self._keeping.close()
                continue
            return
        raise ConfigError(f"port expected a free UDP port, got {number}, which is in use; leave it out for any")

    def close(self) -> None:
        """Lets others have it."""
        self._keeping.close()
