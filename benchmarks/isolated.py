"""A contender in a process of its own, started afresh.

    compare.py: Isolated(function, ...) -> this file as a program: function(...) -> Loop
    one line of JSON each way: the arguments once, then the seconds of each round; end of input: close

For the peers that start processes. What they fork is then a process with nothing in it
but themselves: no threads of EnvPool, no torch, no descriptors of another's workers; and what they
start anew imports this small file as its main module, not compare.py and all the suites.
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
from importlib import import_module
from typing import Any

_MAKE_TIMEOUT_S, _CLOSE_TIMEOUT_S = 180.0, 30.0


class Isolated:
    """The near end: a harness.Subject."""

    def __init__(self, function: Callable[..., Any], **arguments: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that its workers can be ended with it
        )
        try:
            self._ask({"function": [function.__module__, function.__name__], "arguments": arguments}, _MAKE_TIMEOUT_S)
        except BaseException:
            self._kill()
            raise

    def measure(self, seconds: float) -> float:
        return float(self._ask(seconds, timeout_s=60 + 20 * seconds))

    def close(self) -> None:
        assert self._process.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()  # the far end's end of input: it closes its subject
            code = self._process.wait(_CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"its process did not end in {_CLOSE_TIMEOUT_S:.0f} s and was killed") from None
        finally:
            self._kill()
        if code != 0:
            raise RuntimeError(f"its process has ended with {code}")

    def _ask(self, question: Any, timeout_s: float) -> Any:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise RuntimeError(f"its process has ended with {self._process.wait()}") from None
        answer = json.loads(self._line(timeout_s))
        if "error" in answer:
            # Of the name that the far end's has: the table shows it.
            base = ImportError if answer["missing"] else RuntimeError
            raise type(answer["error"], (base,), {})(answer["message"])
        return answer["value"]

    def _line(self, timeout_s: float) -> str:
        assert self._process.stdout is not None
        deadline_s = time.monotonic() + timeout_s
        while not select.select([self._process.stdout], [], [], 0.2)[0]:
            # Asked, not read to the end: workers that outlive the process keep its output open.
            if (code := self._process.poll()) is not None:
                raise RuntimeError(f"its process has ended with {code}")
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"its process gave no answer in {timeout_s:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"its process has ended with {self._process.wait()}")
        return line

    def _kill(self) -> None:
        """Ends it and the workers it has left; what it did not say by now it will not say."""
        with contextlib.suppress(ProcessLookupError):  # all gone already
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()  # type: ignore[union-attr]  # both were asked for


def main() -> None:
    """The far end."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an env prints must not be taken for an answer
    try:
        asked = json.loads(sys.stdin.readline())
        module, name = asked["function"]
        subject = getattr(import_module(module), name)(**asked["arguments"])
    except Exception as error:
        _answer(answers, error=error)
        return
    _answer(answers, value=None)
    try:
        for line in sys.stdin:
            gc.collect()  # here, not in the middle of a round
            try:
                value = subject.measure(json.loads(line))
            except Exception as error:
                _answer(answers, error=error)
            else:
                _answer(answers, value=value)
    finally:
        subject.close()


def _answer(answers: Any, value: Any = None, error: Exception | None = None) -> None:
    answer = {"value": value}
    if error is not None:
        answer = {"error": type(error).__name__, "message": str(error), "missing": isinstance(error, ImportError)}
    print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    import warnings

    warnings.filterwarnings("ignore", module=r"gymnasium|stable_baselines3|multiprocessing")
    main()
