"""The exit codes of main() for exceptions that no single command is responsible for."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from typing import NoReturn

import pytest

from envfleet.cli import main, tune
from envfleet.core.errors import EnvfleetError


@pytest.fixture
def ends_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], NoReturn]], int]:
    """The exit code of a command that does what it is given."""

    def run(command: Callable[[], NoReturn]) -> int:
        def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
            commands.add_parser("tune").set_defaults(command=lambda _: command())

        monkeypatch.setattr(tune, "add_parser", add_parser)
        return main(["tune"])

    return run


def raise_(error: BaseException) -> NoReturn:
    raise error


def test_ctrl_c(ends_with: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert ends_with(lambda: raise_(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "envfleet: interrupted\n"


@pytest.mark.parametrize("kind", [BrokenPipeError, EOFError, EnvfleetError])
def test_what_fails_while_ctrl_c_unwinds_is_ctrl_c(
    kind: type[Exception], ends_with: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> NoReturn:
        with ExitStack() as stack:
            stack.callback(raise_, kind("the worker is gone"))
            raise KeyboardInterrupt

    assert ends_with(command) == 130
    assert capsys.readouterr().err == "envfleet: interrupted\n"


def test_a_broken_pipe_that_is_not_the_output(
    ends_with: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ends_with(lambda: raise_(BrokenPipeError(32, "Broken pipe"))) == 2
    assert capsys.readouterr().err == "envfleet: error: [Errno 32] Broken pipe\n"


def test_a_bug_is_not_hidden(ends_with: Callable[..., int]) -> None:
    with pytest.raises(ZeroDivisionError):
        ends_with(lambda: raise_(ZeroDivisionError()))
