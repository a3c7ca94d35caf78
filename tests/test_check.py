"""tools/check.py: goes on after a failure, skips with a sentence, and ends with one table."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "check.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("check_tool", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look up their annotations
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def prints(text, exit_code=0):
    return [sys.executable, "-c", f"import sys; print({text!r}); sys.exit({exit_code})"]


def test_a_table_of_all_checks(tool, tmp_path, capsys):
    status = tool.run_all(
        [
            tool.Check("good", prints("==== 7 passed, 2 skipped in 1.50s ====\n3 passed in 0.10s")),
            tool.Check("bad", prints("FAILED tests/test_x.py::test_y - boom\n=== 1 failed, 4 passed in 2.00s ===", 1)),
            tool.Check("cpp", prints("100% tests passed, 0 tests failed out of 14")),
            tool.Check("lacking", prints("never run"), lambda: "needs a thing; install it"),
            tool.Check("found_out", prints("skipped: needs another thing")),
            tool.Check("silent", [sys.executable, "-c", "raise SystemExit(3)"]),
        ],
        tmp_path / "logs",
    )
    assert status == 1
    table = [line.split() for line in capsys.readouterr().out.split("\n\n")[1].splitlines()]
    by_name = {row[0]: " ".join(row[1:]) for row in table}
    assert by_name["good"].startswith("passed 10 passed, 2 skipped")
    assert by_name["bad"].startswith("failed 4 passed, 1 failed")
    assert by_name["bad"].endswith("FAILED tests/test_x.py::test_y - boom")
    assert by_name["cpp"].startswith("passed 14 passed")
    assert by_name["lacking"].startswith("skipped")
    assert by_name["lacking"].endswith("needs a thing; install it")
    assert by_name["found_out"].endswith("needs another thing")
    assert by_name["silent"].endswith("exit status 3")
    assert "boom" in (tmp_path / "logs" / "bad.log").read_text()
    assert not (tmp_path / "logs" / "lacking.log").exists()


def test_a_check_that_does_not_end(tool, tmp_path, capsys):
    check = tool.Check("endless", [sys.executable, "-c", "import time; time.sleep(3600)"], limit_s=0.5)
    assert tool.run_all([check], tmp_path) == 1
    assert "did not end within" in capsys.readouterr().out


def test_every_check_passed(tool, tmp_path, capsys):
    assert tool.run_all([tool.Check("good", prints("fine"))], tmp_path) == 0
    assert "failed" not in capsys.readouterr().out


def test_a_wrong_name(tool, capsys):
    with pytest.raises(SystemExit) as caught:
        tool.main(["--only", "lint,lnit"])
    assert caught.value.code == 2
    assert "got lnit" in capsys.readouterr().err
