"""The exceptions of envfleet, with one base class.

Every message states what was expected, what was got, and a remedy. An InputError is raised before any env has moved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envfleet.core.batch import Batch, Fault


def short_repr(value: Any) -> str:
    """Return the type and the repr of a value, cut to 100 characters, for a message."""
    try:
        text = repr(value)
    except Exception:
        text = "(no repr)"
    return f"{type(value).__name__}: {text if len(text) <= 100 else text[:97] + '...'}"


# Fault.exit_code of a worker that ended in an unknown way. No process has it: exit codes are below 256.
UNKNOWN_EXIT = 256


class EnvfleetError(Exception):
    """Base class of all exceptions that envfleet raises on purpose."""


class InputError(EnvfleetError, ValueError):
    """An argument is wrong; no env has moved."""


class ConfigError(InputError):
    """An option of make() or register() is unknown or out of range."""


class DifferentSpacesError(ConfigError):
    """The envs of a pool have different spaces."""


class UnknownEnvError(ConfigError):
    """The env id is unknown."""


class ActionError(InputError):
    """Actions have the wrong shape, dtype or range."""


class EnvIdError(InputError):
    """Env ids are out of range, repeated, or in flight."""


class SeedError(InputError):
    """A seed is not a non-negative integer below 2**128, or a list of seeds has the wrong length."""


class StateError(InputError):
    """A saved state does not fit this pool, or an env cannot be saved."""


class CallOrderError(EnvfleetError, RuntimeError):
    """The call is not allowed in the current state of the pool."""


class PoolClosedError(CallOrderError):
    """The pool was closed."""


class ForkedPoolError(CallOrderError):
    """The pool was made before a fork and is used in the child."""


class RecvTimeout(EnvfleetError, TimeoutError):  # noqa: N818 (not an error by itself)
    """No batch was ready in time. The pool stays consistent: the next recv() returns the late rows."""


class PlacementError(EnvfleetError, RuntimeError):
    """A Ray cluster has no resources for an actor, or cannot start it."""


class CompileError(EnvfleetError):
    """A C++ env did not compile or load."""


class MissingExtraError(EnvfleetError, ImportError):
    """An optional dependency is not installed. hint: more about its installation."""

    def __init__(self, package: str, extra: str, purpose: str, hint: str = "") -> None:
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed; "
            f'run: pip install "envfleet[{extra}]"{hint and f", {hint}"}'
        )
        self.package = package
        self.extra = extra
        self._purpose = purpose
        self._hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        return MissingExtraError, (self.package, self.extra, self._purpose, self._hint)


class UnsupportedVersionError(EnvfleetError, ImportError):
    """A framework is installed in a version that its api does not support, or an extra does not support this Python."""


class EnvError(EnvfleetError, RuntimeError):
    """One or more envs raised. `batch` has the rows of the others.

    `__cause__` is what the first of them raised, with the env's own traceback, which `env_traceback` has as text.
    The pool remains usable: the envs that raised are rebuilt at their next reset.
    """

    def __init__(self, faults: tuple[Fault, ...], batch: Batch | None, remedy: str) -> None:
        first = faults[0]
        others = ""
        if len(faults) > 1:
            others = f" (and {len(faults) - 1} more env{'s' if len(faults) > 2 else ''}, see .faults)"
        # Some methods are named with their argument, such as get_attr('count').
        call = first.method if first.method.endswith(")") else f"{first.method}()"
        super().__init__(f"env {first.env_id} raised in {call}{others}: {first.message}; {remedy}")
        self.faults = faults
        self.batch = batch
        self.env_id = first.env_id
        self.method = first.method
        self.env_traceback = first.traceback
        if first.cause is not None:
            self.__cause__ = first.cause  # its traceback, which is printed first, is the env's own

    @staticmethod
    def of(faults: tuple[Fault, ...], batch: Batch | None, remedy: str) -> EnvError:
        """Return an EnvError, or WorkerDied if that is what happened to the first env."""
        kind = EnvError if faults[0].exit_code is None else WorkerDied
        return kind(faults, batch, remedy)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_env_error, (str(self), self.faults)


class WorkerDied(EnvError):  # noqa: N818 (the name states what happened)
    """The process that ran an env has died.

    exit_code: its exit code, or None. signal: the signal that killed it, or None. Both are None if that is unknown.
    """

    def __init__(self, faults: tuple[Fault, ...], batch: Batch | None, remedy: str) -> None:
        super().__init__(faults, batch, remedy)
        code = faults[0].exit_code
        self.exit_code = code if code is not None and 0 <= code < UNKNOWN_EXIT else None
        self.signal = -code if code is not None and code < 0 else None


def _restore_env_error(message: str, faults: tuple[Fault, ...]) -> EnvError:
    """Restore an unpickled EnvError, without its batch."""
    error = EnvError.of(faults, None, "")
    error.args = (message,)
    return error
