"""Tracebacks of envs: without envfleet's own frames, and in a form that can be sent to another process.

pickle drops the traceback and the causes of an exception. pack() keeps them, so that an exception of an env in a worker
prints in the caller's process as if it had been raised there: in a terminal, a notebook or a test report.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import linecache
import os
import pickle
import threading
import traceback as traceback_module
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any, NamedTuple

import cloudpickle

from envfleet.core.errors import EnvfleetError

_MAX_CHAIN = 20
_MAX_FRAMES = 2000  # of an endless recursion, from both ends
_MAX_LINES = 10  # of source code, of a statement that spans several
_MAX_REMOTE_FILES = 200
_MAX_TEXT = 20_000

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# The envs of envfleet, and what wraps an env: their frames belong to the env.
_ENV_FOLDERS = tuple(_PACKAGE + name + os.sep for name in ("envs", "families", "compat", "wrappers"))


class WrongResultError(Exception):
    """An env returned a value of the wrong form; the message says what was expected and what it returned."""


class UnpicklableError(Exception):
    """Stands for an exception that cannot be pickled, or not be unpickled here. Its text names the type."""


def origin_of(error: BaseException) -> BaseException | None:
    """Return what is printed above an exception, for a `raise ... from` that leaves it as the env raised it."""
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


# --- exceptions as texts -------------------------------------------------------------------------


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


def traceback_of(error: BaseException) -> str:
    """Return an exception as Python prints it."""
    try:
        lines = traceback_module.format_exception(type(error), error, error.__traceback__)
        return encodable("".join(lines)[-_MAX_TEXT:])
    except Exception:
        return ""


def encodable(text: str) -> str:
    r"""Return the text, shortened if need be, with \ufffd for lone surrogates, which cannot be encoded."""
    return text[:_MAX_TEXT].encode("utf-16", "surrogatepass").decode("utf-16", "replace")


# --- envfleet's own frames -----------------------------------------------------------------------


def cut_own_frames(error: BaseException) -> None:
    """Remove the frames of the worker's loop, which lead to an env, from the traceback of the env's exception.

    Of an exception that envfleet raises about the env, also those where it was found.
    """
    frames = _entries(error.__traceback__)
    kept = list(itertools.dropwhile(_is_own, frames))
    if isinstance(error, EnvfleetError) or str(type(error).__module__).startswith("envfleet."):
        while kept and _is_own(kept[-1]):
            kept.pop()
    elif not kept:  # a defect of envfleet
        return
    if len(kept) < len(frames):
        error.__traceback__ = _linked([(own.tb_frame, own.tb_lasti, _line_of(own)) for own in kept])


def _entries(traceback: TracebackType | None) -> list[TracebackType]:
    # Not a generator, which Ctrl-C could interrupt where an exception is lost.
    entries = []
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    return entries


def _line_of(traceback: TracebackType) -> int:
    # It is None where Ctrl-C struck an instruction that belongs to no line.
    return traceback.tb_lineno or traceback.tb_frame.f_code.co_firstlineno


def _is_own(traceback: TracebackType) -> bool:
    filename = traceback.tb_frame.f_code.co_filename
    return filename.startswith(_PACKAGE) and not filename.startswith(_ENV_FOLDERS)


def _linked(frames: Sequence[tuple[FrameType, int, int]]) -> TracebackType | None:
    linked: TracebackType | None = None
    for frame, instruction, line in reversed(frames):
        linked = TracebackType(linked, frame, instruction, line)
    return linked


# --- exceptions with tracebacks, pickled ---------------------------------------------------------


class _Position(NamedTuple):
    """The position of a frame in its source. Lines count from 1, columns are bytes; None if unknown."""

    filename: str
    function: str
    module: str
    first_line: int  # of the function
    line: int
    end_line: int | None
    column: int | None
    end_column: int | None


@dataclass(frozen=True)
class _Record:
    """An exception as plain values, and what it was raised from."""

    text: str
    pickled: bytes | None
    positions: tuple[_Position, ...]
    lines: dict[tuple[str, int], str]  # source code by file and line, for a process that does not have the file
    cause: _Record | None
    context: _Record | None
    suppresses_context: bool
    members: tuple[_Record, ...]  # of an exception group


def pack(error: BaseException) -> bytes:
    """Pickle an exception with its traceback and its causes."""
    return pickle.dumps(_record_of(error), protocol=pickle.HIGHEST_PROTOCOL)


def unpack(data: bytes) -> BaseException:
    """Return a packed exception. UnpicklableError stands for one that cannot be pickled or is not known here."""
    return _restored(pickle.loads(data))


class _Chain(threading.local):
    """The exceptions that this thread is packing, each raised from the next: an exception may lead back to itself."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []


_chain = _Chain()


def _record_of(error: BaseException) -> _Record:
    def inner(other: BaseException | None) -> _Record | None:
        if other is None or len(_chain.errors) > _MAX_CHAIN or any(other is own for own in _chain.errors):
            return None
        return _record_of(other)

    positions, lines = _positions_of(error.__traceback__)
    members = getattr(error, "exceptions", ())
    if not isinstance(members, tuple) or not all(isinstance(member, BaseException) for member in members):
        members = ()  # an attribute of the same name
    _chain.errors.append(error)
    try:
        return _Record(
            _text_of(error),
            _pickled(error),
            positions,
            lines,
            inner(error.__cause__),
            None if error.__suppress_context__ else inner(error.__context__),
            error.__suppress_context__,
            tuple(record for record in map(inner, members) if record is not None),
        )
    finally:
        _chain.errors.pop()


def _restored(record: _Record) -> BaseException:
    error = _unpickled(record)
    _provide_source(record.lines)
    error.__traceback__ = _linked([(*_frame_at(own), own.line) for own in record.positions])
    if record.cause is not None:
        error.__cause__ = _restored(record.cause)
    if record.context is not None:
        error.__context__ = _restored(record.context)
    error.__suppress_context__ = record.suppresses_context
    for member, own in zip(getattr(error, "exceptions", ()), record.members, strict=False):
        restored = _restored(own)
        member.__traceback__, member.__cause__ = restored.__traceback__, restored.__cause__
        member.__context__, member.__suppress_context__ = restored.__context__, restored.__suppress_context__
    return error


def _text_of(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:
        text = "(its str() raised)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _pickled(error: BaseException) -> bytes | None:
    # An exception may do anything when it is pickled.
    with contextlib.suppress(BaseException):
        try:
            data = pickle.dumps(error, protocol=pickle.HIGHEST_PROTOCOL)
        except Exception:
            data = cloudpickle.dumps(error, protocol=pickle.HIGHEST_PROTOCOL)
        if isinstance(pickle.loads(data), BaseException):
            return data
    return None


def _unpickled(record: _Record) -> BaseException:
    if record.pickled is not None:
        with contextlib.suppress(Exception):  # a class that is not known here
            error: BaseException = pickle.loads(record.pickled)
            return error
    return UnpicklableError(record.text)


# --- frames --------------------------------------------------------------------------------------


def _positions_of(traceback: TracebackType | None) -> tuple[tuple[_Position, ...], dict[tuple[str, int], str]]:
    entries = _entries(traceback)
    if len(entries) > _MAX_FRAMES:
        entries = entries[: _MAX_FRAMES // 2] + entries[-_MAX_FRAMES // 2 :]
    positions, lines = [], {}
    for entry in entries:
        frame, code = entry.tb_frame, entry.tb_frame.f_code
        end_line = column = end_column = None
        # Libraries make tracebacks that point to no instruction, and to no line.
        if hasattr(code, "co_positions") and entry.tb_lasti >= 0:  # Python 3.11
            found = itertools.islice(code.co_positions(), entry.tb_lasti // 2, None)
            _, end_line, column, end_column = next(found, (None,) * 4)
        line, module = _line_of(entry), frame.f_globals.get("__name__")
        module = module if isinstance(module, str) else ""
        positions.append(
            _Position(code.co_filename, code.co_name, module, code.co_firstlineno, line, end_line, column, end_column)
        )
        for number in range(line, min((end_line or line) + 1, line + _MAX_LINES)):
            if text := linecache.getline(code.co_filename, number, frame.f_globals):
                lines[code.co_filename, number] = text
    return tuple(positions), lines


def _frame_at(position: _Position) -> tuple[FrameType, int]:
    """Return a frame at this position, and the instruction in it: what a traceback points to.

    Python makes frames only for code that runs, so this runs a function that raises there. Jinja shows the lines of its
    templates in the same way.
    """
    try:
        FunctionType(_code_at(position), {"__name__": position.module})()
    except TypeError as error:  # of `raise None`
        made = _entries(error.__traceback__)[1]
    return made.tb_frame, made.tb_lasti


@lru_cache(maxsize=_MAX_FRAMES)
def _code_at(position: _Position) -> CodeType:
    """Return the code of a function that raises at this position."""
    line, end_line = position.line, position.end_line
    column, end_column = position.column, position.end_column
    if end_line is None or column is None or end_column is None or (end_line, end_column) < (line, column):
        # The whole line: Python then marks no part of it.
        source = linecache.getline(position.filename, line).rstrip().encode()
        end_line, column, end_column = line, 0, len(source)
    tree: Any = ast.parse("def function(): raise None")
    function = tree.body[0]
    function.lineno = function.end_lineno = position.first_line
    for node in ast.walk(function.body[0]):
        vars(node).update(lineno=line, end_lineno=end_line, col_offset=column, end_col_offset=end_column)
    module = compile(tree, position.filename, "exec")
    (code,) = [own for own in module.co_consts if isinstance(own, CodeType)]
    names = {"co_name": position.function}
    if hasattr(code, "co_qualname"):  # Python 3.11
        names["co_qualname"] = position.function
    return code.replace(**names)  # type: ignore[arg-type]  # all of them are strings


# Lines of files that exist only in another process, such as an actor on another machine. The oldest are dropped: an env
# may generate its code.
_remote_lines: dict[str, dict[int, str]] = {}


def _provide_source(lines: dict[tuple[str, int], str]) -> None:
    """Let linecache, which all printers of tracebacks use, return these lines of files that this process lacks."""
    for filename in {filename for filename, _ in lines}:
        if filename not in _remote_lines and linecache.getlines(filename):
            continue
        known = _remote_lines.setdefault(filename, {})
        known.update({line: text for (own, line), text in lines.items() if own == filename})
        source = [known.get(line, "\n") for line in range(1, max(known) + 1)]
        # Without a time of modification, the entry stays when others are checked against their files.
        linecache.cache[filename] = (sum(map(len, source)), None, source, filename)
        for oldest in list(_remote_lines)[:-_MAX_REMOTE_FILES]:
            _remote_lines.pop(oldest, None)
            linecache.cache.pop(oldest, None)
