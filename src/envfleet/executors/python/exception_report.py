"""ExceptionReport: what a Python env raised, in a form that can be sent to another process."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass

from envfleet.batch import Fault
from envfleet.executors.python.side_channel import dump

_MAX_TEXT = 20_000


class WrongResultError(Exception):
    """An env returned a value of the wrong form; the message says what was expected and what it returned."""


class NoSuchAttributeError(AttributeError):
    """An env lacks the attribute that the caller asked for: the caller's mistake, not the env's."""


@dataclass(frozen=True)
class ExceptionReport:
    """Texts of an exception, and its pickle if it has one."""

    method: str
    message: str
    traceback: str
    pickled: bytes | None = None

    @property
    def cause(self) -> BaseException | None:
        """The exception, if it was pickled and can be unpickled here."""
        if self.pickled is None:
            return None
        try:
            cause = pickle.loads(self.pickled)
        except Exception:  # a class that cannot be built from its args, or is not known here
            return None
        return cause if isinstance(cause, BaseException) else None

    def fault(self, env_id: int, cause: BaseException | None = None) -> Fault:
        """Return the fault of this env. cause: the exception itself, if it was raised in this process."""
        return Fault(env_id, self.method, self.message, self.traceback, self.cause if cause is None else cause)


def report_exception(error: BaseException, method: str, pickled: bool) -> ExceptionReport:
    """Return the report of an exception. pickled: include its pickle, for a report to another process."""
    data = None
    if pickled:
        try:
            data = dump(error)
            pickle.loads(data)
        except BaseException:  # an exception may do anything when it is pickled
            data = None
    return ExceptionReport(method, message_of(error), _traceback_of(error), data)


def message_of(error: BaseException) -> str:
    """Return the message of an exception, preceded by its type unless that is a RuntimeError."""
    try:
        text = str(error)
    except Exception:
        text = "(its str() raised)"
    if type(error) not in (RuntimeError, WrongResultError):
        name = type(error).__name__
        text = f"{name}: {text}" if text else name
    return encodable(text)


def encodable(text: str) -> str:
    r"""Return the text, shortened if need be, with \ufffd for lone surrogates, which cannot be encoded."""
    return text[:_MAX_TEXT].encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _traceback_of(error: BaseException) -> str:
    try:
        return encodable("".join(traceback.format_exception(type(error), error, error.__traceback__))[-_MAX_TEXT:])
    except Exception:
        return ""
