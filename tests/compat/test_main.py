"""python -m envfleet.compat: a script sees what it would see if Python ran it, and wrong input is one line."""

from __future__ import annotations

import pytest


def test_a_script_that_changes_the_working_directory_finds_its_file(run_python, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "main.py").write_text("import os\nos.chdir('elsewhere')\nprint(open(__file__).readline())\n")
    assert run_python("-m", "envfleet.compat", "main.py").stdout.startswith("import os")


def test_modules_next_to_the_file_that_a_link_points_to(run_python, tmp_path):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "compat_helper.py").write_text("print('helped')\n")
    (tmp_path / "project" / "main.py").write_text("import compat_helper\n")
    (tmp_path / "link.py").symlink_to("project/main.py")
    assert run_python("-m", "envfleet.compat", "link.py").stdout == "helped\n"


@pytest.mark.parametrize("code", ["3", "'three'"])
def test_the_exit_code_is_the_scripts(code, run_python, tmp_path):
    (tmp_path / "main.py").write_text(f"import sys\nassert sys.argv[1:] == ['-m', 'x']\nsys.exit({code})\n")
    result = run_python("-m", "envfleet.compat", "main.py", "-m", "x", check=False)
    assert (result.returncode, result.stderr) == ((3, "") if code == "3" else (1, "three\n"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no_such.py"], "expected a script, got 'no_such.py', which does not exist"),
        (["-c", "print(1)"], "expected a script or -m, got the option -c"),
        (["-m"], "expected a module after -m, got none"),
        (["-m", "no_such"], "got 'no_such', which is not installed or not here"),
        (["-m", "no_such.main"], "got 'no_such.main', which is not installed or not here"),
    ],
)
def test_nothing_to_run_is_one_line(arguments, said, run_python):
    result = run_python("-m", "envfleet.compat", *arguments, check=False)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert said in result.stderr
