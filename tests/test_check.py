"""tools/check.py: continues after a failure or an interruption, skips with a reason, and ends with one table."""

from __future__ import annotations

import importlib.util
import json
import subprocess
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


@pytest.fixture
def repository(tmp_path):
    root = tmp_path / "repository"
    root.mkdir()
    (root / "code.txt").write_text("first")
    git(root, "init", "--quiet")
    commit(root)
    return root


def git(root, *arguments):
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", root, *identity, *arguments], check=True, capture_output=True)


def commit(root):
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "Change")


class CountedRuns:
    """A check that appends a line to a file each time it runs, and a second one that fails."""

    def __init__(self, tool, repository, logs):
        self.tool, self.logs = tool, logs
        self.passed = tool.PassedChecks(logs / "passed.json", lambda: tool.clean_tree(repository))
        self.file = logs.parent / "runs.txt"
        self.file.touch()

    def run(self, *, resume, environment=None, also=""):
        script = f"print('2 passed in 0.10s', file=open({str(self.file)!r}, 'a')); print('2 passed in 0.10s'); {also}"
        good = self.tool.Check("good", [sys.executable, "-c", script], environment=environment or {})
        bad = self.tool.Check(
            "bad", [sys.executable, "-c", f"open({str(self.file)!r}, 'a').write('bad\\n'); raise SystemExit(1)"]
        )
        before = self.runs
        status = self.tool.run_all([good, bad], self.logs, resume=resume, passed=self.passed)
        assert status == 1
        return self.runs[len(before) :]

    @property
    def runs(self):
        return ["bad" if line == "bad" else "good" for line in self.file.read_text().splitlines()]


@pytest.fixture
def counted(tool, repository, tmp_path):
    return CountedRuns(tool, repository, tmp_path / "logs")


def test_resume_runs_what_did_not_pass(counted, capsys):
    assert counted.run(resume=False) == ["good", "bad"]
    capsys.readouterr()
    assert counted.run(resume=True) == ["bad"]
    table = capsys.readouterr().out.split("\n\n")[1]
    (row,) = [line for line in table.splitlines() if line.startswith("good")]
    assert "passed earlier" in row
    assert "2 passed" in row.replace("passed earlier", "")
    assert counted.run(resume=False) == ["good", "bad"]


def test_resume_after_a_change(counted, repository):
    counted.run(resume=False)
    (repository / "code.txt").write_text("second")
    assert counted.run(resume=True) == ["good", "bad"]  # not committed
    commit(repository)
    assert counted.run(resume=True) == ["good", "bad"]
    assert counted.run(resume=True) == ["bad"]
    (repository / "new.txt").write_text("untracked")
    assert counted.run(resume=True) == ["good", "bad"]


def test_a_change_during_a_check_is_not_recorded(counted, repository):
    change = f"open({str(repository / 'new.txt')!r}, 'w').close()"
    counted.run(resume=False, also=change)
    (repository / "new.txt").unlink()
    assert counted.run(resume=True, also=change) == ["good", "bad"]


def test_another_scale_is_another_check(counted):
    counted.run(resume=False, environment={"SCALE": "1"})
    assert counted.run(resume=True, environment={"SCALE": "2"}) == ["good", "bad"]
    assert counted.run(resume=True, environment={"SCALE": "2"}) == ["bad"]


@pytest.mark.parametrize("name", ["PYTHON", "CXX", "CXXFLAGS"])
def test_another_interpreter_or_compiler_is_another_check(counted, monkeypatch, name):
    """The commands inherit these variables from `make check`."""
    monkeypatch.delenv(name, raising=False)
    counted.run(resume=False)
    monkeypatch.setenv(name, "one")
    assert counted.run(resume=True) == ["good", "bad"]
    assert counted.run(resume=True) == ["bad"]
    monkeypatch.setenv(name, "other")
    assert counted.run(resume=True) == ["good", "bad"]
    monkeypatch.delenv(name)
    assert counted.run(resume=True) == ["bad"]


def test_another_interpreter_of_the_tool_is_another_check(counted, monkeypatch):
    """Without PYTHON, the python3 on the PATH runs the tool, and makes the environments of the checks."""
    check, passed = counted.tool.Check("good", ["true"]), counted.passed
    counted.logs.mkdir()
    passed.add(check, counted.tool.Outcome("good", "passed"), passed.tree())
    assert passed.find(check) is not None
    monkeypatch.setattr(sys, "executable", "/elsewhere/python3")
    assert passed.find(check) is None


DAMAGED = ['{"tree": ', "", "null", "[]", "3", "{}", '{"tree": TREE}', '{"passed": {}}']
DAMAGED += [f'{{"tree": TREE, "passed": {passed}}}' for passed in ("null", "3", "[1]", '"text"')]
DAMAGED += [
    f'{{"tree": TREE, "passed": {{KEY: {record}}}}}'
    for record in ("null", "3", "[]", "{}", '{"counts": "", "duration_s": "x"}')
]


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_record_is_ignored(counted, text):
    counted.run(resume=False)
    file = counted.logs / "passed.json"
    record = json.loads(file.read_text())
    (key,) = record["passed"]
    file.write_text(text.replace("TREE", json.dumps(record["tree"])).replace("KEY", json.dumps(key)))
    assert counted.run(resume=True) == ["good", "bad"]
    assert counted.run(resume=True) == ["bad"]


def test_a_record_that_is_no_text_is_ignored(counted):
    counted.run(resume=False)
    (counted.logs / "passed.json").write_bytes(b"\xff\x00")
    assert counted.run(resume=True) == ["good", "bad"]
