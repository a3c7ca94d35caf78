"""A call that runs on a thread of its own while its caller goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


def run_in_background(call: Callable[[], Any]) -> Future[Any]:
    """Starts the call; the future has what it gives or raises."""
    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # it is raised where the result is asked for
            future.set_exception(error)

    # Not an executor's thread: those are waited for at exit, and an env may never come back.
    threading.Thread(target=work, name="envfleet-call", daemon=True).start()
    return future
