"""envfleet bench: the table, the report, the chart."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import imageio.v3 as imageio
import pytest

import envfleet
from envfleet.building.registry import family_of
from envfleet.cli import main
from envfleet.tuning.report import Case

BACKENDS = ("native", "serial", "threads", "processes")
QUICK = ["bench", "CartPole-v1", "--rounds", "3", "--seconds", "0.01"]


def rows_of(output: str) -> list[list[str]]:
    return [re.split(r"\s{2,}", line.strip()) for line in output.splitlines() if line.startswith(BACKENDS)]


def test_table_has_a_row_for_each_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "--num-envs", "64,1,8"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    assert "\x1b" not in output.out
    rows = rows_of(output.out)
    assert [row[2] for row in rows] == ["1", "8", "64"]
    assert all(int(row[5].replace(",", "")) > 1000 for row in rows)


def test_batch_fraction_adds_asynchronous_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "--num-envs", "1,2,64", "--batch-fraction", "0.25"]) == 0
    rows = [row[1:4] for row in rows_of(capsys.readouterr().out)]
    assert rows == [
        ["sync", "1", "1"],
        ["sync", "2", "2"],
        ["async", "2", "1"],
        ["sync", "64", "64"],
        ["async", "64", "16"],
    ]


def test_a_backend_named_twice_is_measured_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "--num-envs", "4", "--backends", "auto,native"]) == 0
    assert len(rows_of(capsys.readouterr().out)) == 1


def test_python_backends(capsys: pytest.CaptureFixture[str]) -> None:
    own = ["--backends", "serial,threads,processes", "--num-workers", "2", "--num-envs", "4", "--batch-fraction", "0.5"]
    assert main([*QUICK, *own]) == 0
    rows = [row[:5] for row in rows_of(capsys.readouterr().out)]
    assert rows == [
        [backend, mode, "4", size, "1" if backend == "serial" else "2"]
        for backend in ("serial", "threads", "processes")
        for mode, size in (("sync", "4"), ("async", "2"))
    ]


def test_python_envs_come_in_tens_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "--backends", "serial"]) == 0
    assert [row[2] for row in rows_of(capsys.readouterr().out)] == ["1", "8", "64"]


def test_report_carries_machine_versions_and_command(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    arguments = [*QUICK, "--num-envs", "2,4", "--num-threads", "1", "--json", str(path)]
    assert main(arguments) == 0
    report = json.loads(path.read_text())
    assert report["env"] == "CartPole-v1"
    assert shlex.split(report["command"]) == ["envfleet", *arguments]
    assert report["machine"]["envfleet"] == envfleet.__version__
    assert {"date", "cpu", "usable_cores", "python", "numpy"} <= set(report["machine"])
    assert [(case["num_envs"], case["num_workers"], len(case["steps_per_s"])) for case in report["cases"]] == [
        (2, 1, 3),
        (4, 1, 3),
    ]
    assert all(case["median"] == sorted(case["steps_per_s"])[1] for case in report["cases"])


def test_plot_is_a_png(tmp_path: Path) -> None:
    path = tmp_path / "bench.png"
    assert main([*QUICK, "--num-envs", "1,8", "--batch-fraction", "0.5", "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    picture = imageio.imread(path)
    assert picture.shape[0] > 400
    assert picture.min() < picture.max()


def test_a_plot_states_the_ratios_beside_its_lines() -> None:
    from envfleet.cli import plotting

    own = [Case("native", size, size, 2, [1e6 * size]) for size in (1, 8)]
    ratios = [
        (Case(name, size, size, 1, [1e4 * size / times]), times * size)
        for name, times in (("a", 100.0), ("b", 3.0))
        for size in (1, 8)
    ]
    figure = plotting.draw("CartPole-v1", own, "1 round of 1 s", ratios)
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()
    for axes in figure.axes:
        legend = axes.get_legend().get_window_extent(renderer)
        assert not legend.overlaps(axes.get_window_extent(renderer)), "a line may run through the legend"
    texts = [text.get_text() for text in figure.axes[1].get_legend().get_texts()]
    assert texts == ["a: 100.0x, 800.0x", "b: 3.0x, 24.0x"]


def test_the_ticks_of_a_plot_within_one_power_of_ten_are_labelled_alike() -> None:
    from envfleet.cli import plotting

    figure = plotting.draw(
        "MyEnv", [Case("serial", size, size, 1, [6e4 * size]) for size in (1, 2, 4)], "1 round of 1 s", []
    )
    figure.draw_without_rendering()
    axis = figure.axes[0].yaxis
    labels = [label.get_text() for label in axis.get_ticklabels(minor=True) if label.get_text()]
    assert labels
    assert all(re.fullmatch(r"\d+ k", label) for label in labels), labels


def test_seconds_are_those_of_all_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--num-envs", "1,2", "--rounds", "3", "--seconds", "0.6"]
    assert main(["bench", "CartPole-v1", *arguments]) == 0
    assert "median of 3 rounds of 100 ms" in capsys.readouterr().out


def compare(names: str, tmp_path: Path) -> tuple[list[str], list[dict[str, Any]]]:
    chart, report = tmp_path / "bench.png", tmp_path / "bench.json"
    files = ["--plot", str(chart), "--json", str(report)]
    assert main([*QUICK, "--num-envs", "2", "--compare", names, *files]) == 0
    assert chart.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    peers = json.loads(report.read_text())["peers"]
    return [peer["backend"] for peer in peers], peers


def test_compare_with_gymnasium(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names, peers = compare("sync,async", tmp_path)
    assert names == ["Gymnasium Sync", "Gymnasium Async"]
    assert all(len(peer["steps_per_s"]) == 3 and peer["envfleet_is"] > 0 for peer in peers)
    table = capsys.readouterr().out
    assert "envfleet is" in table
    for peer in peers:
        assert re.search(rf"^{peer['backend']} .* {peer['envfleet_is']:.1f}x$", table, re.MULTILINE), table


def test_compare_fits_a_narrow_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    (peer,) = compare("sync", tmp_path)[1]
    (own,) = json.loads((tmp_path / "bench.json").read_text())["cases"]
    _, header, _, *rows = capsys.readouterr().out.splitlines()[:5]
    assert "batch_size" not in header
    assert max(map(len, [header, *rows])) <= 80
    figures = [re.split(r"\s{2,}", row) for row in (header, *rows)]
    assert [row[header.split().index("steps/s")] for row in figures[1:]] == [
        f"{case['median']:,.0f}" for case in (own, peer)
    ]
    assert (figures[0][-1], figures[2][-1]) == ("envfleet is", f"{peer['envfleet_is']:.1f}x")


@pytest.mark.parametrize("env_id", ["Catch-v0", "Pong-v5", "cheetah-run"])
def test_an_id_that_gymnasium_lacks_is_a_note(env_id: str, capfd: pytest.CaptureFixture[str]) -> None:
    own = family_of(env_id)
    if not own.is_installed:
        pytest.skip(f"needs {own.package}: pip install envfleet[{own.extra}]")
    assert main(["bench", env_id, "--rounds", "1", "--seconds", "0.01", "--num-envs", "2", "--compare"]) == 0
    output = capfd.readouterr()
    assert output.err == ""  # not one traceback per process
    assert output.out.endswith(f"no other library was measured: {env_id} is not registered with Gymnasium\n")
    assert len(rows_of(output.out)) == 1


INTERRUPTING_MODULE = """
import multiprocessing, os, signal
import gymnasium

class Env(gymnasium.Env):
    observation_space = action_space = gymnasium.spaces.Discrete(2)
    num_steps = 0

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        self.num_steps += 1
        if self.num_steps == 20 and multiprocessing.current_process().name == "Worker<AsyncVectorEnv>-0":
            os.killpg(0, signal.SIGINT)  # what a terminal does at Ctrl-C
        return 0, 0.0, False, False, {}

gymnasium.register("Interrupting-v0", Env)
"""


def test_ctrl_c_while_a_peer_steps(tmp_path: Path) -> None:
    (tmp_path / "interrupting.py").write_text(INTERRUPTING_MODULE)
    own = ["--backends", "serial", "--num-envs", "2", "--rounds", "1", "--seconds", "0.2", "--compare", "async"]
    result = subprocess.run(
        [sys.executable, "-m", "envfleet", "bench", "interrupting:Interrupting-v0", *own],
        cwd=tmp_path,
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (result.returncode, result.stdout) == (130, "")
    assert result.stderr.endswith("envfleet: interrupted\n")
    assert "Traceback" not in result.stderr


def test_a_single_round(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "CartPole-v1", "--rounds", "1", "--seconds", "0.01", "--num-envs", "2"]) == 0
    assert capsys.readouterr().out.startswith("CartPole-v1: median of 1 round of 10 ms")


@pytest.mark.soak  # starts processes that import torch
def test_compare_with_sb3(tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3", reason="needs stable-baselines3")
    assert compare("sb3", tmp_path)[0] == ["SB3 Subproc"]


def test_a_peer_that_cannot_run_is_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    # Gymnasium's async envs have one process per env.
    assert main([*QUICK, "--num-envs", "300", "--compare", "async"]) == 0
    output = capsys.readouterr().out
    assert "Gymnasium Async was not measured with 300 envs" in output
    assert len(rows_of(output)) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bench", "NoSuchEnv-v0"], "NoSuchEnv-v0"),
        (["bench", "CartPole-v1", "--num-envs", "1,,4"], "expected an integer above 0, got ''"),
        (["bench", "CartPole-v1", "--batch-fraction", "1"], "between 0 and 1, got '1'"),
        (["bench", "CartPole-v1", "--backends", "auto,abacus"], "'abacus'"),
        (["bench", "CartPole-v1", "--compare", "envpool"], "--compare: expected names from sync, async, sb3"),
        (["bench", "--compare", "CartPole-v1"], "got 'CartPole-v1'; write the env's id before --compare"),
        (["bench", "CartPole-v1", "--plot", "/proc/x.png"], "expected a file that can be written, got '/proc/x.png'"),
        (["bench", "CartPole-v1", "--json", "/proc/x.json"], "expected a file that can be written"),
        (["bench", "CartPole-v1", "--plot", "chart.svg"], "expected a .png file"),
        (["bench", "CartPole-v1", "--json", "/no/such/x.json"], "a folder that exists"),
    ],
)
def test_wrong_input_is_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert (output.out, output.err.count("\n")) == ("", 1)
    assert said in output.err


def test_missing_matplotlib_is_told_before_the_measuring(cli: Any, tmp_path: Path) -> None:
    result = cli("bench", "CartPole-v1", "--plot", str(tmp_path / "x.png"), blocked=("matplotlib",))
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert 'pip install "envfleet[cli]"' in result.stderr
