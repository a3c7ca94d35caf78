"""A user's generator, wherever it runs, and the exceptions that report what happened to it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from envfleet.core.batch import Fault
from envfleet.core.errors import EnvError, WorkerDied, short_repr
from envfleet.core.tracebacks import WrongResultError
from envfleet.executors.env_reports import import_remedy

READY = "ready"
START, TRAJS = "its start", "trajs()"  # where a generator failed: Fault.method

# A gen_fn with all of its arguments.
GeneratorFactory = Callable[[], Any]


class GeneratorError(EnvError):
    """A generator of a Runner raised. The others go on, and so does the iterator.

    __cause__ is the exception itself, with the generator's own traceback.

    Attributes:
        generator: Its position in gen_fns.
        env_traceback: The generator's own traceback, as text.
    """

    def __init__(self, fault: Fault, remedy: str) -> None:
        super().__init__((fault,), None, remedy)
        self.generator = fault.env_id
        self._remedy = remedy
        self.args = (f"generator {self.generator} {self._event()} in {fault.method}: {fault.message}; {remedy}",)

    def _event(self) -> str:
        return "raised"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.faults[0], self._remedy)


class GeneratorDied(GeneratorError, WorkerDied):  # noqa: N818 (it says what happened)
    """The process that ran a generator died, and the generator with it.

    Attributes:
        exit_code: The exit code of the process, or None.
        signal: The signal that killed it, or None.
    """

    def _event(self) -> str:
        return "was lost"


def generator_error(fault: Fault, remedy: str) -> GeneratorError:
    """Return GeneratorError, or GeneratorDied if the fault is the death of a process."""
    return (GeneratorError if fault.exit_code is None else GeneratorDied)(fault, remedy)


def start_error(fault: Fault) -> GeneratorError:
    """Return the error of a generator that did not start."""
    return generator_error(fault, import_remedy(fault) or "it must reach its first yield")


class GeneratorReturned(Exception):  # noqa: N818 (not an error: it has no more trajectories)
    """The generator returned."""


class RestartableGenerator:
    """One generator. After it raised or returned, the next request starts a new one."""

    def __init__(self, factory: GeneratorFactory) -> None:
        self._factory = factory
        self._generator: Generator[Any, Any, Any] | None = None

    @property
    def is_started(self) -> bool:
        """Whether there is a generator that waits for a request."""
        return self._generator is not None

    def start(self) -> None:
        """Create the generator and run it up to its first yield."""
        generator = self._factory()
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

    def send(self, request: Any) -> Any:
        """Return the next trajectory. Raises GeneratorReturned if there is none."""
        if self._generator is None:
            self.start()
        generator, self._generator = self._generator, None
        assert generator is not None
        try:
            trajectory = generator.send(request)
        except StopIteration:
            raise GeneratorReturned from None
        # Only now: a generator that raised is finished.
        self._generator = generator
        return trajectory

    def close(self) -> None:
        """Close the generator, which runs its finally blocks. Raises what they raise."""
        generator, self._generator = self._generator, None
        if generator is not None:
            generator.close()
