"""envfleet tune: the table, the line to copy, wrong input."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import envfleet
from envfleet.cli import main

QUICK = ["tune", "CartPole-v1", "--num-envs", "4", "--seconds", "0.5"]


def test_table_and_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "--backends", "serial,native", "--batch-sizes", "4"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    assert "\x1b" not in output.out
    lines = output.out.splitlines()
    rows = [re.split(r"\s{2,}", line) for line in lines if line.startswith(("native", "serial"))]
    assert {row[0] for row in rows} == {"native", "serial"}
    assert {tuple(row[1:4]) for row in rows} == {("sync", "4", "4")}
    assert lines[-1].startswith("best: envfleet.make('CartPole-v1', backend='native', num_envs=4, num_workers=")
    # The line is one that can be copied.
    with eval(lines[-1].removeprefix("best: "), {"envfleet": envfleet}) as envs:
        envs.reset()


def test_parameters_are_in_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    own = ["--backends", "serial", "--set", "sutton_barto_reward=true"]
    assert main([*QUICK, *own]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line == "best: envfleet.make('CartPole-v1', backend='serial', num_envs=4, sutton_barto_reward=True)"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tune", "NoSuchEnv-v0"], "NoSuchEnv-v0"),
        (["tune"], "required: ENV"),
        ([*QUICK, "--backends", "abacus"], "'abacus'"),
        ([*QUICK, "--num-workers", "0"], "expected an integer above 0, got '0'"),
        ([*QUICK, "--seconds", "0"], "expected a number above 0"),
        ([*QUICK, "--batch-sizes", "64"], "at most num_envs=4"),
        ([*QUICK, "--set", "seconds=3"], "write --set 'env_kwargs={\"seconds\": VALUE}'"),
        ([*QUICK, "--set", "batch_sizes=3"], "an argument of envfleet.tune()"),
    ],
)
def test_wrong_input_is_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert (output.out, output.err.count("\n")) == ("", 1)
    assert said in output.err


def test_missing_rich(cli: Any) -> None:
    result = cli(*QUICK, blocked=("rich",))
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert 'pip install "envfleet[cli]"' in result.stderr


def test_plugin_is_in_the_line_and_has_no_python_env(cli: Any, tmp_path: Path) -> None:
    source = Path(__file__).parents[1] / "plugins" / "probe.cc"
    arguments = ["--plugin", str(source), "--num-envs", "4", "--seconds", "1"]
    result = cli("tune", "Sink-v0", *arguments, ENVFLEET_CACHE=str(tmp_path / "cache"))
    assert (result.returncode, result.stderr) == (0, "")
    assert f"after: envfleet.compile({str(source)!r})" in result.stdout
    assert "\n- it runs in C++\n" in result.stdout
