"""What befalls a generator, as an exception of the caller's."""

from __future__ import annotations

from typing import Any

from envfleet.batch import Fault
from envfleet.errors import EnvError, WorkerDied

START, TRAJS = "its start", "trajs()"  # where it happened: Fault.method


class GeneratorError(EnvError):
    """A generator of a Runner raised. The others go on, and so does the iterator.

    generator: its position in gen_fns; env_traceback: the generator's own traceback, as text; __cause__: the
    exception itself, where it could travel.
    """

    def __init__(self, fault: Fault, remedy: str) -> None:
        super().__init__((fault,), None, remedy)
        self.generator = fault.env_id
        self._remedy = remedy
        text = f"generator {self.generator} {self._what()} in {fault.method}: {fault.message}; {remedy}"
        if fault.traceback:
            text += f"\n\nThe generator's own traceback:\n{fault.traceback.rstrip()}"
        self.args = (text,)

    def _what(self) -> str:
        return "raised"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.faults[0], self._remedy)


class GeneratorDied(GeneratorError, WorkerDied):  # noqa: N818 (it says what happened)
    """The process that ran a generator is gone, and the generator with it.

    exit_code: what it left with, or None; signal: what killed it, or None.
    """

    def _what(self) -> str:
        return "was lost"
