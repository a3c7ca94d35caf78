"""An env's own exception, for views of libraries that raise it as it is."""

from __future__ import annotations

from typing import NoReturn

from envfleet.core.batch import Fault
from envfleet.core.errors import EnvError
from envfleet.core.tracebacks import UnpicklableError, origin_of


def cause_of(fault: Fault, error: EnvError) -> BaseException:
    """Return what the env raised, if it could be pickled, else the EnvError."""
    return error if fault.cause is None or isinstance(fault.cause, UnpicklableError) else fault.cause


def raise_cause(fault: Fault, error: EnvError) -> NoReturn:
    """Raise what the env raised, as the env left it."""
    cause = cause_of(fault, error)
    raise cause from origin_of(cause)
