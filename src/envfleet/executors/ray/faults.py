"""Faults and exceptions on their way from an actor to the caller."""

from __future__ import annotations

import pickle
from typing import Any

from envfleet.batch import Fault
from envfleet.errors import EnvError, EnvfleetError
from envfleet.executors.python.exception_report import ExceptionReport, message_of, report_exception
from envfleet.executors.python.side_channel import dump

# Of a worker that went without a word: what kill -9 leaves.
KILLED = -9

# (env_id, method, message, traceback, pickled exception, exit_code): plain values, which any process can read.
Note = tuple[int, str, str, str, bytes | None, int | None]


def note_of(fault: Fault, first_env: int) -> Note:
    """A fault of an actor's env, under its id in the whole pool."""
    pickled = None if fault.cause is None else report_exception(fault.cause, fault.method, pickled=True).pickled
    return first_env + fault.env_id, fault.method, fault.message, fault.traceback, pickled, fault.exit_code


def fault_of(note: Note) -> Fault:
    """The fault, with its exception where that can be read here."""
    env_id, method, message, traceback, pickled, exit_code = note
    cause = ExceptionReport(method, message, traceback, pickled).fault(env_id).cause
    return Fault(env_id, method, message, traceback, cause, exit_code)


def packed_error(error: BaseException, first_env: int) -> bytes:
    """What an actor answers when a call raised."""
    if isinstance(error, EnvError):
        return dump(("faults", [note_of(fault, first_env) for fault in error.faults]))
    trouble = report_exception(error, "", pickled=True)
    is_told = isinstance(error, (EnvfleetError, AttributeError))
    return dump(("error", (trouble.pickled if is_told else None, message_of(error), trouble.traceback)))


def packed_value(value: Any) -> bytes:
    """What an actor answers to a call that went well; a value that cannot travel is an error."""
    try:
        return dump(("value", value))
    except Exception as error:
        what = f"it gave what cannot be pickled: {message_of(error)}"
        return dump(("error", (None, what, "")))


class AnswerError(Exception):
    """A call that an actor could not do, of which there is only a text."""

    def __init__(self, message: str, traceback: str) -> None:
        super().__init__(message)
        self.traceback = traceback


def unpacked(data: bytes, remedy: str) -> Any:
    """The value of an answer. Raises what the call raised."""
    try:
        kind, content = pickle.loads(data)
    except Exception as error:
        raise AnswerError(f"what it gave cannot be read here: {message_of(error)}; give plain values", "") from error
    if kind == "value":
        return content
    if kind == "faults":
        faults = tuple(fault_of(note) for note in content)
        raise EnvError.of(faults, None, remedy) from faults[0].cause
    pickled, message, traceback = content
    if pickled is not None:
        raise pickle.loads(pickled)
    raise AnswerError(message, traceback)
