"""ExceptionReport: what a Python env raised, in a form that can be sent to another process."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from envfleet.batch import Fault
from envfleet.tracebacks import cut_own_frames, pack, unpack

_MAX_TEXT = 20_000


class WrongResultError(Exception):
    """An env returned a value of the wrong form; the message says what was expected and what it returned."""


class NoSuchAttributeError(AttributeError):
    """An env lacks the attribute that the caller asked for: the caller's mistake, not the env's."""


@dataclass(frozen=True)
class ExceptionReport:
    """Texts of an exception, and the packed exception for a report to another process."""

    method: str
    message: str
    traceback: str
    packed: bytes | None = None

    @property
    def cause(self) -> BaseException | None:
        """The exception, if it was packed."""
        return None if self.packed is None else unpack(self.packed)

    def fault(self, env_id: int, cause: BaseException | None = None) -> Fault:
        """Return the fault of this env. cause: the exception itself, if it was raised in this process."""
        return Fault(env_id, self.method, self.message, self.traceback, self.cause if cause is None else cause)


def report_exception(error: BaseException, method: str, packed: bool) -> ExceptionReport:
    """Return the report of an exception, and remove envfleet's own frames from its traceback.

    packed: include the exception, for a report to another process.
    """
    cut_own_frames(error)
    return ExceptionReport(method, message_of(error), _traceback_of(error), pack(error) if packed else None)


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
