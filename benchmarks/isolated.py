"""Run a contender in its own, fresh process.

    compare.py: Isolated(function, ...) -> this file as a program: function(...) -> Loop
    one line of JSON in each direction: the arguments once, then the seconds of each round; end of input: close

For peers that start processes. A process that they fork contains nothing but themselves: no threads of EnvPool, no
torch, no file descriptors of another contender's workers. A process that they spawn imports this small file as its main
module, not compare.py and all suites.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from harness import Contender

_MAKE_TIMEOUT_S, _CLOSE_TIMEOUT_S = 180.0, 30.0


class Isolated:
    """A harness.Subject that measures in another process."""

    def __init__(self, function: Callable[..., Any], python: str = sys.executable, **arguments: Any) -> None:
        """python: the interpreter to run it with; another environment may hold another version of a package."""
        self._process = subprocess.Popen(
            [python, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that its workers can be killed with it
        )
        try:
            self._request(
                {"function": [function.__module__, function.__name__], "arguments": arguments}, _MAKE_TIMEOUT_S
            )
        except BaseException:
            self._kill()
            raise

    def measure(self, seconds: float) -> float:
        return float(self._request(seconds, timeout_s=60 + 20 * seconds))

    def close(self) -> None:
        assert self._process.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()  # end of input: the process closes its contender
            code = self._process.wait(_CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"its process did not exit within {_CLOSE_TIMEOUT_S:.0f} s and was killed") from None
        finally:
            self._kill()
        if code != 0:
            raise RuntimeError(f"its process has ended with {code}")

    def _request(self, request: Any, timeout_s: float) -> Any:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise RuntimeError(f"its process has ended with {self._process.wait()}") from None
        response = json.loads(self._read_line(timeout_s))
        if "error" in response:
            # With the original name of the exception, which the table shows.
            base = ImportError if response["missing"] else RuntimeError
            raise type(response["error"], (base,), {})(response["message"])
        return response["value"]

    def _read_line(self, timeout_s: float) -> str:
        assert self._process.stdout is not None
        deadline_s = time.monotonic() + timeout_s
        while not select.select([self._process.stdout], [], [], 0.2)[0]:
            # Polled instead of waiting for end of file: workers that outlive the process keep its output open.
            if (code := self._process.poll()) is not None:
                raise RuntimeError(f"its process has ended with {code}")
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"its process did not respond within {timeout_s:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"its process has ended with {self._process.wait()}")
        return line

    def _kill(self) -> None:
        """Kill the process and the workers it left behind."""
        with contextlib.suppress(ProcessLookupError):  # all have exited
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()  # type: ignore[union-attr]  # both were requested in Popen()


def isolated_contender(name: str, function: Callable[..., Any], **arguments: Any) -> Contender:
    """Return a contender that function(**arguments) creates in its own process."""
    return Contender(name, partial(Isolated, function, **arguments))


def main() -> None:
    """Serve the requests of an Isolated."""
    responses = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the output of an env must not be mistaken for a response
    try:
        request = json.loads(sys.stdin.readline())
        module, name = request["function"]
        subject = getattr(import_module(module), name)(**request["arguments"])
    except Exception as error:
        _respond(responses, error=error)
        return
    _respond(responses, value=None)
    try:
        for line in sys.stdin:
            gc.collect()  # here, not in the middle of a round
            try:
                value = subject.measure(json.loads(line))
            except Exception as error:
                _respond(responses, error=error)
            else:
                _respond(responses, value=value)
    finally:
        subject.close()


def _respond(responses: Any, value: Any = None, error: Exception | None = None) -> None:
    response = {"value": value}
    if error is not None:
        response = {"error": type(error).__name__, "message": str(error), "missing": isinstance(error, ImportError)}
    print(json.dumps(response), file=responses, flush=True)


if __name__ == "__main__":
    import warnings

    warnings.filterwarnings("ignore", module=r"gymnasium|stable_baselines3|multiprocessing")
    main()
