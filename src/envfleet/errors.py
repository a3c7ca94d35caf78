"""One tree of exceptions, one base.

Every message says what was expected, what came, and what to do. An InputError is raised
before any env has moved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envfleet.batch import Batch, Fault


class EnvfleetError(Exception):
    """Base of everything that envfleet raises on purpose."""


class InputError(EnvfleetError, ValueError):
    """An argument is wrong; nothing has moved."""


class ConfigError(InputError):
    """An option of make() or register() is unknown or out of range."""


class UnknownEnvError(ConfigError):
    """No env of that name is known."""


class ActionError(InputError):
    """Actions of a wrong shape, dtype or range."""


class EnvIdError(InputError):
    """Env ids out of range, repeated, or in flight."""


class SeedError(InputError):
    """A seed that is no non-negative integer below 2**128, or a list of the wrong length."""


class StateError(InputError):
    """A saved state that does not fit this pool, or an env that cannot be saved."""


class CallOrderError(EnvfleetError, RuntimeError):
    """The call does not fit what the pool is doing."""


class PoolClosedError(CallOrderError):
    """The pool was closed."""


class ForkedPoolError(CallOrderError):
    """The pool was made before a fork and used in the child."""


class RecvTimeout(EnvfleetError, TimeoutError):  # noqa: N818 (it is no error of anybody)
    """Nothing was ready in time; the pool is still in step and the next recv() gets it."""


class PlacementError(EnvfleetError, RuntimeError):
    """A Ray cluster has no room for an actor, or cannot start it."""


class CompileError(EnvfleetError):
    """A C++ env did not compile or load."""


class MissingExtraError(EnvfleetError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f'{purpose} needs the package {package!r}, which is not installed; run: pip install "envfleet[{extra}]"'
        )
        self.package = package
        self.extra = extra
        self._purpose = purpose

    def __reduce__(self) -> tuple[Any, ...]:
        return MissingExtraError, (self.package, self.extra, self._purpose)


class UnsupportedVersionError(EnvfleetError, ImportError):
    """A framework is installed in a version that its api was not made for."""


class EnvError(EnvfleetError, RuntimeError):
    """One or more envs raised. The rows of the others are in `batch`.

    The pool stays usable: the envs that raised are rebuilt at their next reset.
    """

    def __init__(self, faults: tuple[Fault, ...], batch: Batch | None, remedy: str) -> None:
        first = faults[0]
        others = f" (and {len(faults) - 1} more envs, see .faults)" if len(faults) > 1 else ""
        super().__init__(f"env {first.env_id} raised in {first.method}(){others}: {first.message}; {remedy}")
        self.faults = faults
        self.batch = batch
        self.env_id = first.env_id
        self.method = first.method
        self.env_traceback = first.traceback

    @staticmethod
    def of(faults: tuple[Fault, ...], batch: Batch | None, remedy: str) -> EnvError:
        """An EnvError, or WorkerDied when that is what befell the first."""
        kind = EnvError if faults[0].exit_code is None else WorkerDied
        return kind(faults, batch, remedy)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_env_error, (str(self), self.faults)


class WorkerDied(EnvError):  # noqa: N818 (it says what happened)
    """The process that ran an env is gone, and the env with it.

    exit_code: what it left with, or None; signal: what killed it, or None.
    """

    def __init__(self, faults: tuple[Fault, ...], batch: Batch | None, remedy: str) -> None:
        super().__init__(faults, batch, remedy)
        code = faults[0].exit_code
        self.exit_code = code if code is not None and code >= 0 else None
        self.signal = -code if code is not None and code < 0 else None


def _restore_env_error(message: str, faults: tuple[Fault, ...]) -> EnvError:
    """An EnvError that crossed a process border: without the batch, whose arrays stay home."""
    error = EnvError.of(faults, None, "")
    error.args = (message,)
    return error
