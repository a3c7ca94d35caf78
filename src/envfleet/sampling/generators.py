"""A generator of the user's, wherever it runs: made when it is needed, asked, closed."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from envfleet.executors.python.exception_report import WrongResultError, short_repr

READY = "ready"


class Ended(Exception):  # noqa: N818 (no error: it said all it had to say)
    """The generator returned."""


class Seat:
    """The place of one generator. What raised or returned is made anew when it is asked again."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._generator: Generator[Any, Any, Any] | None = None

    @property
    def is_started(self) -> bool:
        """Whether there is a generator that waits for a request."""
        return self._generator is not None

    def start(self) -> None:
        """Makes the generator and has it get ready."""
        generator = self._make()
        if not isinstance(generator, Generator):
            raise WrongResultError(
                f"expected a generator function, got one that returns {short_repr(generator)}; "
                f'write `request = yield "{READY}"` in it'
            )
        try:
            first = next(generator)
        except StopIteration:
            raise WrongResultError(f'expected `yield "{READY}"` first, got a generator that returned at once') from None
        if not (isinstance(first, str) and first == READY):
            generator.close()
            raise WrongResultError(
                f'expected "{READY}" from the first yield, got {short_repr(first)}; '
                f'write `request = yield "{READY}"` before the first trajectory'
            )
        self._generator = generator

    def ask(self, request: Any) -> Any:
        """The next trajectory; Ended when there is none."""
        if self._generator is None:
            self.start()
        generator, self._generator = self._generator, None
        assert generator is not None
        try:
            trajectory = generator.send(request)
        except StopIteration:
            raise Ended from None
        # Only now: a generator that raised is over.
        self._generator = generator
        return trajectory

    def close(self) -> None:
        """Has the generator's finally blocks run. What they raise, this raises."""
        generator, self._generator = self._generator, None
        if generator is not None:
            generator.close()
