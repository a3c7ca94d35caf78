"""envfleet run: the figures, the picture, wrong input, Ctrl-C."""

from __future__ import annotations

import ast
import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import imageio.v3 as imageio
import numpy as np
import pytest

import envfleet
from envfleet.cli import main
from envfleet.cli.arguments import output_file, parameter
from envfleet.cli.episodes import EpisodeStatistics, Moments, RowLog
from envfleet.core.backends import all_backends
from envfleet.tuning.throughput import RandomStepper

PLUGIN = """
#include "envfleet/env.h"

// Ends after three steps; the reward is the action.
struct Countdown {
  int left = 3;
  static void spec(const envfleet::Config&, envfleet::Spec& spec) {
    spec.observation(envfleet::discrete(4));
    spec.action(envfleet::discrete(2));
  }
  explicit Countdown(const envfleet::Config&) {}
  void reset(envfleet::Rng&, envfleet::Out& out) {
    left = 3;
    out.obs<int64_t>()[0] = left;
  }
  void step(int action, envfleet::Out& out) {
    out.reward = action;
    out.terminated = --left == 0;
    out.obs<int64_t>()[0] = left;
  }
};

ENVFLEET_ENV("CliCountdown-v0", Countdown)
"""


def fields_of(output: str) -> dict[str, str]:
    """The closing table as a dict."""
    rows = (re.split(r"\s*[│|]\s*", line)[1:-1] for line in output.splitlines() if re.match(r"[│|]", line))
    return dict(rows)


@pytest.mark.parametrize("batch_size", [8, 3])
@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_statistics_are_those_of_a_plain_loop(mode: str, batch_size: int) -> None:
    statistics, log = EpisodeStatistics(8), RowLog(7, batch_size)
    returns, lengths = [], []
    running = [[0.0, 0] for _ in range(8)]
    with envfleet.make_pool("CartPole-v1", num_envs=8, batch_size=batch_size, seed=3, autoreset_mode=mode) as pool:
        driver = RandomStepper(pool, seed=3)
        driver.start()
        for turn in range(400):
            batch = driver.step()
            log.append(batch)
            if log.num_batches == log.capacity or turn == 399:
                statistics.add(*log.drain())
            for row, env_id in enumerate(batch.env_id):
                ended = batch.terminated[row] or batch.truncated[row]
                if batch.elapsed_step[row] == 0 and not ended:
                    continue  # the reset row of next_step
                running[env_id][0] += batch.reward[row]
                running[env_id][1] += 1
                if ended:
                    returns.append(running[env_id][0])
                    lengths.append(running[env_id][1])
                    running[env_id] = [0.0, 0]
    assert len(returns) > 30
    for moments, values in ((statistics.returns, returns), (statistics.lengths, lengths)):
        assert moments.count == len(values)
        assert (moments.lowest, moments.highest) == (min(values), max(values))
        # Sums of small integers are exact; the mean of means rounds.
        np.testing.assert_allclose([moments.mean, moments.std], [np.mean(values), np.std(values)], rtol=1e-12)
    assert lengths == returns  # CartPole's reward is 1 a step, and 0 on a reset row


def test_moments_do_not_cancel() -> None:
    values = 1e9 + np.arange(10.0)
    moments = Moments()
    for portion in np.split(values, [1, 4, 4]):
        moments.add(portion)
    assert moments.std == pytest.approx(np.arange(10.0).std(), rel=1e-6)


@pytest.mark.parametrize("batch_size", ["64", "16"])
@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_closing_table(mode: str, batch_size: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--num-envs", "64", "--batch-size", batch_size, "--autoreset-mode", mode, "--seed", "1"]
    assert main(["run", "CartPole-v1", "--steps", "20001", *arguments]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    assert "\x1b" not in output.out
    fields = fields_of(output.out)
    assert fields["env"] == "CartPole-v1"
    assert fields["backend"] == "native"
    assert fields["batch_size"].startswith(batch_size)
    steps = int(fields["total steps"].replace(",", ""))
    assert 20001 <= steps < 20001 + int(batch_size)
    assert int(fields["episodes"].replace(",", "")) > 100
    mean_return, mean_length = fields["return mean / std"].split(" / ")[0], fields["length mean"]
    assert float(mean_return) == pytest.approx(float(mean_length), abs=0.06)  # the figures are rounded
    assert 15 < float(mean_length) < 30


def test_same_seed_gives_the_same_episodes(capsys: pytest.CaptureFixture[str]) -> None:
    seen = []
    for _ in range(2):
        assert main(["run", "CartPole-v1", "--num-envs", "16", "--steps", "5000", "--seed", "5"]) == 0
        fields = fields_of(capsys.readouterr().out)
        seen.append([fields[name] for name in ("episodes", "return mean / std", "length min / max")])
    assert seen[0] == seen[1]


def test_seconds_end_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "CartPole-v1", "--num-envs", "1", "--seconds", "0.2"]) == 0
    wall = fields_of(capsys.readouterr().out)["wall time"]
    assert float(wall.split()[0]) >= 0.2


def test_no_episode_ended(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "CartPole-v1", "--num-envs", "4", "--steps", "4"]) == 0
    fields = fields_of(capsys.readouterr().out)
    assert (fields["episodes"], fields["return mean / std"], fields["length min / max"]) == ("0", "-", "-")


def test_set_passes_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    own = ["--set", "sutton_barto_reward=true", "--set", "max_episode_steps=7"]
    assert main(["run", "CartPole-v1", "--num-envs", "8", "--steps", "800", *own]) == 0
    fields = fields_of(capsys.readouterr().out)
    assert fields["length min / max"] == "7 / 7"
    assert fields["return min / max"] == "0.00 / 0.00"


def test_record_writes_a_moving_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cartpole.gif"
    picture = ["--record", str(path), "--record-envs", "3", "--record-steps", "12", "--fps", "20", "--seed", "0"]
    assert main(["run", "CartPole-v1", "--num-envs", "8", "--steps", "80", *picture]) == 0
    assert f"recorded {path}" in capsys.readouterr().out
    frames = imageio.imread(path)
    # The writer makes one longer frame of equal ones; at the start a pole moves by less than a pixel.
    assert 1 < len(frames) <= 12
    assert all((one != other).any() for one, other in itertools.pairwise(frames))
    assert frames.shape[1] < 800
    assert imageio.immeta(path)["duration"] % 50 == 0
    height, width = (size // 2 for size in frames.shape[1:3])
    tiles = [frames[0, :height, :width], frames[0, :height, -width:], frames[0, -height:, :width]]
    assert all(tile.min() < 50 for tile in tiles), "a cart in each of the three tiles"
    assert (frames[0, -height:, -width:] == frames[0, -1, -1]).all(), "the fourth tile is empty"


def test_record_as_mp4(tmp_path: Path) -> None:
    path = tmp_path / "cartpole.mp4"
    picture = ["--record", str(path), "--record-envs", "1", "--record-steps", "4", "--seed", "0"]
    assert main(["run", "CartPole-v1", "--num-envs", "1", "--steps", "8", *picture]) == 0
    assert path.read_bytes()[4:8] == b"ftyp"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "Cartpole-v1"], "did you mean CartPole-v1"),
        (["run", "CartPole-v1", "--num-envs", "0"], "--num-envs: expected an integer above 0, got '0'"),
        (["run", "CartPole-v1", "--seconds", "nan"], "--seconds: expected a number above 0, got 'nan'"),
        (["run", "CartPole-v1", "--batch-size", "2048"], "batch_size expected an integer from 1 to 1024, got 2048"),
        (["run", "CartPole-v1", "--set", "gravity"], "expected NAME=VALUE, got 'gravity'"),
        (["run", "CartPole-v1", "--set", "no_such=1"], "no_such"),
        (["run", "CartPole-v1", "--set", "num_envs=3"], "an option of the pool"),
        (["run", "CartPole-v1", "--set", "num_workers=3"], "an option of the pool"),
        (["run", "CartPole-v1", "--set", "task_id=3"], "an argument of envfleet.make()"),
        (["run", "no_such_module:Env-v0"], "expected a module 'no_such_module' in"),
        (["run", "CartPole-v1", "--backend", "abacus"], "'abacus'"),
        (["run", "CartPole-v1", "--seed", "-1"], "seed expected an integer from 0"),
        (["run", "CartPole-v1", "--record", "x.avi"], "expected a .gif or .mp4 file, got 'x.avi'"),
        (["run", "CartPole-v1", "--record", "/no/such/x.gif"], "a folder that exists"),
        (["run", "CartPole-v1", "--record", "/proc/x.gif"], "expected a file that can be written, got '/proc/x.gif'"),
        (["run", "CartPole-v1", "--record-envs", "4"], "--record-envs expected a recording, got no --record"),
        (["run", "CartPole-v1", "--record-steps", "4"], "--record-steps expected a recording"),
        (["run", "CartPole-v1", "--fps", "4"], "--fps expected a recording"),
        (["run", "CartPole-v1", "--plugin", "/no/such.cc"], "which is missing"),
        (["run", "CartPole-v1", "--seconds", "1", "--steps", "1"], "not allowed with"),
        (["run", "CartPole-v1", "--autoreset-mode", "disabled"], "invalid choice: 'disabled'"),
        (["run"], "required: ENV"),
        (["walk"], "invalid choice: 'walk'"),
        ([], "required: COMMAND"),
    ],
)
def test_wrong_input_is_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert output.err.startswith("envfleet")
    assert said in output.err


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("True", True),
        ("None", None),
        ("null", None),
        ("[1, 2.5]", [1, 2.5]),
        ("(1, 'a')", (1, "a")),
        ("{'a': False}", {"a": False}),
        ("'quoted'", "quoted"),
        ("plain", "plain"),
        ("a=b", "a=b"),
        ("maps/one two.txt", "maps/one two.txt"),
        ("", ""),
    ],
)
def test_values_of_set_are_json_or_python(text: str, value: object) -> None:
    parsed = parameter(f"name={text}")
    assert parsed == ("name", value)
    assert type(parsed[1]) is type(value)


def test_output_files_are_checked_before_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "folder.gif").mkdir()
    assert main(["run", "CartPole-v1", "--record", str(tmp_path / "folder.gif")]) == 2
    assert "which is a folder" in capsys.readouterr().err
    # The check changes nothing: not a file that exists, nor one that does not, nor a link to one.
    kept, link = tmp_path / "kept.gif", tmp_path / "link.gif"
    kept.write_text("kept")
    link.symlink_to(tmp_path / "target.gif")
    parse = output_file(".gif")
    for path in (kept, link, tmp_path / "new.gif"):
        assert parse(str(path)) == path
    assert kept.read_text() == "kept"
    assert sorted(own.name for own in tmp_path.iterdir()) == ["folder.gif", "kept.gif", "link.gif"]


def test_help_names_every_backend(capsys: pytest.CaptureFixture[str]) -> None:
    for command, option in (("run", "--backend"), ("bench", "--backends")):
        assert main([command, "--help"]) == 0
        helped = capsys.readouterr().out.rpartition(f"{option} ")[2].partition("\n  --")[0]
        assert all(name in helped for name in ["auto", *(backend.name for backend in all_backends())]), helped


def test_stats_of_a_native_env_are_what_help_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "CartPole-v1", "--num-envs", "4", "--steps", "40", "--stats"]) == 0
    output = capsys.readouterr().out
    assert re.search(r"^\d+ steps, \d+ episodes$", output, re.MULTILINE)
    assert "in the envs" not in output
    assert main(["run", "--help"]) == 0
    assert "for Python envs, the time in the envs" in " ".join(capsys.readouterr().out.split())


def test_statistics_on_a_terminal_without_unicode(cli: Any) -> None:
    arguments = ["--backend", "serial", "--num-envs", "2", "--steps", "20", "--stats"]
    result = cli("run", "CartPole-v1", *arguments, PYTHONIOENCODING="ascii")
    assert (result.returncode, result.stderr) == (0, "")
    assert "?s per step in the envs" in result.stdout


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--help"]) == 0
    assert "sampled before the clock starts" in " ".join(capsys.readouterr().out.split())
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"envfleet {envfleet.__version__}\n"


def test_env_without_a_picture_is_told_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from envfleet.core import families
    from envfleet.core.family import Family

    monkeypatch.setattr(families, "FAMILIES", (Family("blind", ("CartPole-v1",)),))
    assert main(["run", "CartPole-v1", "--record", str(tmp_path / "x.gif")]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert "expected an env with a renderer, CartPole-v1 has none" in output.err


MODULE = """
import itertools

import gymnasium
import numpy as np

NUMBERS = itertools.count()

class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Discrete(10)
    action_space = gymnasium.spaces.Dict(go=gymnasium.spaces.Discrete(2), how=gymnasium.spaces.Box(0, 1, (2,)))
    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, length=4, picture="rgb", render_mode=None):
        self.length, self.picture, self.render_mode, self.count = length, picture, render_mode, 0
        self.number = next(NUMBERS)

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return 0, {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.count += 1
        if self.picture == "explodes":
            raise RuntimeError("joint 3 exploded")
        return self.count, 1.0, self.count == self.length, False, {}

    def render(self):
        if self.picture == "text":
            return "o" * self.count
        if self.picture == "none":
            raise NotImplementedError("no picture today")
        height = 80 if self.picture == "rgb" else 80 + 8 * (self.number % 2)
        return np.full((height, 96, 3), 50 * self.count, np.uint8)

gymnasium.register("CliPython-v0", Env)
"""


@pytest.fixture
def python_env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The id of an env in a module of the present folder."""
    (tmp_path / "cli_python_env.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    yield "cli_python_env:CliPython-v0"
    gymnasium.registry.pop("CliPython-v0", None)
    sys.modules.pop("cli_python_env", None)


@pytest.mark.parametrize(
    ("backend", "workers"),
    [("auto", "workers"), ("serial", "workers"), ("threads", "threads"), ("processes", "workers")],
)
def test_python_env_on_each_backend(
    backend: str, workers: str, python_env: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--backend", backend, "--num-envs", "6", "--batch-size", "3", "--num-workers", "2", "--steps", "300"]
    assert main(["run", python_env, *arguments, "--stats"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    fields = fields_of(output.out)
    assert fields["backend"] == ("processes" if backend == "auto" else backend)
    assert fields[workers] == ("1" if backend == "serial" else "2")
    assert fields["length min / max"] == "4 / 4"
    assert re.search(r"^\d+ steps, \d+ episodes$", output.out, re.MULTILINE)
    assert "per step in the envs" in output.out
    assert ("worker 1: " in output.out) == (backend != "serial")


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_an_env_that_raises_shows_its_traceback(
    backend: str, python_env: str, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ["--set", "picture=explodes", "--num-envs", "3", "--backend", backend]
    assert main(["run", python_env, *own]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    first, _, traceback = output.err.partition("\n\n")
    assert first == "envfleet: error: env 0 raised in step() (and 2 more envs): joint 3 exploded"
    assert traceback.startswith("Traceback (most recent call last):")
    assert 'cli_python_env.py", line' in traceback
    assert traceback.endswith("RuntimeError: joint 3 exploded\n")


@pytest.mark.parametrize("code", ["0", "'needs --config'"])
def test_a_module_that_exits_when_it_is_imported(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cli_exits.py").write_text(f"import sys\nsys.exit({code})\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    assert main(["run", "cli_exits:Env-v0"]) == 2
    assert f"it cannot be imported: SystemExit: {ast.literal_eval(code)}" in capsys.readouterr().err


def test_python_env_comes_in_tens_by_default(python_env: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", python_env, "--backend", "serial", "--steps", "64"]) == 0
    assert fields_of(capsys.readouterr().out)["num_envs"] == "64"


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_record_of_a_python_env(
    backend: str, python_env: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.gif"
    picture = ["--record", str(path), "--record-envs", "2", "--record-steps", "5"]
    assert main(["run", python_env, "--backend", backend, "--num-envs", "2", "--steps", "8", *picture]) == 0
    assert f"recorded {path}" in capsys.readouterr().out
    frames = imageio.imread(path)
    assert len(frames) == 5
    shades = [int(frame[0, 0, 0]) for frame in frames]
    np.testing.assert_allclose(shades, [0, 50, 100, 150, 200], atol=3)  # a GIF has few colours


def test_record_of_frames_of_different_sizes(python_env: str, tmp_path: Path) -> None:
    path = tmp_path / "own.gif"
    recording = ["--record", str(path), "--record-envs", "2", "--record-steps", "3", "--set", "picture=uneven"]
    assert main(["run", python_env, "--backend", "serial", "--num-envs", "2", "--steps", "8", *recording]) == 0
    assert imageio.imread(path).shape == (3, 88, 2 * 96 + 2, 3)


@pytest.mark.parametrize(
    ("picture", "said"),
    [("text", "expected the env's render() to return an RGB array, got str"), ("none", "no picture today")],
)
def test_python_env_without_a_picture_is_told_before_the_run(
    picture: str, said: str, python_env: str, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ["--set", f"picture={picture}", "--record", "x.gif", "--seconds", "600"]
    assert main(["run", python_env, "--backend", "serial", *own]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert said in output.err


@pytest.mark.parametrize(
    ("blocked", "arguments"),
    [
        ("rich", ["run", "CartPole-v1"]),
        ("imageio", ["run", "CartPole-v1", "--record", "x.gif"]),
    ],
)
def test_missing_extra(cli: Any, blocked: str, arguments: list[str]) -> None:
    result = cli(*arguments, blocked=(blocked,))
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert f"{blocked!r}, which is not installed" in result.stderr
    assert 'pip install "envfleet[cli]"' in result.stderr


def test_plugin_is_compiled_first(cli: Any, tmp_path: Path) -> None:
    source = tmp_path / "countdown.cc"
    source.write_text(PLUGIN)
    arguments = ["--plugin", str(source), "--num-envs", "8", "--steps", "800"]
    result = cli("run", "CliCountdown-v0", *arguments, ENVFLEET_CACHE=str(tmp_path / "cache"))
    assert (result.returncode, result.stderr) == (0, "")
    fields = fields_of(result.stdout)
    assert (fields["env"], fields["length min / max"]) == ("CliCountdown-v0", "3 / 3")


def test_plugin_that_does_not_compile(cli: Any, tmp_path: Path) -> None:
    source = tmp_path / "broken.cc"
    source.write_text("this is no C++\n")
    result = cli("run", "Any-v0", "--plugin", str(source), ENVFLEET_CACHE=str(tmp_path / "cache"))
    assert (result.returncode, result.stdout) == (2, "")
    assert "broken.cc does not compile" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("batch_size", ["32", "8"])
def test_ctrl_c_ends_with_the_closing_table(batch_size: str) -> None:
    command = [sys.executable, "-m", "envfleet", "run", "CartPole-v1", "--num-envs", "32", "--batch-size", batch_size]
    process = subprocess.Popen(
        [*command, "--seconds", "600"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # The bar is drawn as on a terminal: its first figure says that the run is under way.
        env={**os.environ, "TTY_COMPATIBLE": "1", "COLUMNS": "120"},
    )
    assert process.stderr is not None
    seen = ""
    while "steps/s" not in seen:
        character = process.stderr.read(1)
        assert character, f"ended early: {seen}"
        seen += character
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    fields = fields_of(re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output))
    assert int(fields["total steps"].replace(",", "")) > 0
