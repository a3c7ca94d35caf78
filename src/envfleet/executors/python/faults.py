"""Faults of Python envs: an exception as text that travels, and as itself where it can."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass
from typing import Any

from envfleet.batch import Fault
from envfleet.executors.python.mailbox import dump

_MAX_TEXT = 20_000


class WrongResultError(Exception):
    """An env returned what it must not; the text says what was expected and what came."""


class NoSuchAttributeError(AttributeError):
    """An env was asked for an attribute that it does not have: the caller's mistake, not the env's."""


@dataclass(frozen=True)
class Trouble:
    """What an env raised, fit for a mailbox: the exception itself only as far as it pickles."""

    method: str
    message: str
    traceback: str
    pickled: bytes | None = None

    def fault(self, env_id: int, cause: BaseException | None = None) -> Fault:
        """The fault of this env. cause: the exception, where it never left this process."""
        if cause is None and self.pickled is not None:
            try:
                cause = pickle.loads(self.pickled)
            except Exception:  # a class that cannot be built from its args, or is not known here
                cause = None
        if not isinstance(cause, BaseException):
            cause = None
        return Fault(env_id, self.method, self.message, self.traceback, cause)


def trouble_of(error: BaseException, method: str, is_leaving: bool) -> Trouble:
    """What is known of an exception. is_leaving: it goes to another process."""
    pickled = None
    if is_leaving:
        try:
            pickled = dump(error)
            pickle.loads(pickled)
        except BaseException:  # an exception may do anything when it is pickled
            pickled = None
    return Trouble(method, message_of(error), _traceback_of(error), pickled)


def message_of(error: BaseException) -> str:
    """What an exception says, with its type where that adds something."""
    try:
        text = str(error)
    except Exception:
        text = "(its text cannot be had)"
    if type(error) not in (RuntimeError, WrongResultError):
        name = type(error).__name__
        text = f"{name}: {text}" if text else name
    return clean(text)


def clean(text: str) -> str:
    """The text without what no encoding takes: lone halves of characters become \ufffd."""
    return text[:_MAX_TEXT].encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _traceback_of(error: BaseException) -> str:
    try:
        return clean("".join(traceback.format_exception(type(error), error, error.__traceback__))[-_MAX_TEXT:])
    except Exception:
        return ""


def shown(value: Any) -> str:
    """A value in an error message: its type, and as much of it as fits."""
    try:
        text = repr(value)
    except Exception:
        text = "(no repr)"
    return f"{type(value).__name__}: {text if len(text) <= 100 else text[:97] + '...'}"
