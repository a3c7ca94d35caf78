"""envfleet list: every id, with what make_spec() says of it."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest

import envfleet
from envfleet.building.native_envs import find_entry, registered
from envfleet.building.registry import family_of
from envfleet.cli import list_envs, main
from envfleet.core.families import FAMILIES
from envfleet.envs.catalogue import EnvSummary, summaries


def rows_of(output: str) -> list[list[str]]:
    table, _, besides = output.partition("\n\n")
    assert "Any Gymnasium id also works" in besides
    return [re.split(r"\s{2,}", line.strip()) for line in table.splitlines()[3:]]


def test_every_id_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--long"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    assert "\x1b" not in output.out
    assert sorted(row[1] for row in rows_of(output.out)) == envfleet.list_all_envs()


def test_a_pipe_gets_one_short_line_per_id(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    output = capsys.readouterr()
    lines = output.out.splitlines()
    assert sorted(line.split("\t")[0] for line in lines) == envfleet.list_all_envs()
    assert "CartPole-v1\tnative\tclassic control" in lines
    assert max(map(len, lines)) < 120
    assert (output.err, output.out.isascii()) == ("", True)  # no box drawing
    assert main(["list", "cartpole-v", "--family", "classic control"]) == 0
    assert capsys.readouterr().out == "".join(f"CartPole-v{number}\tnative\tclassic control\n" for number in (0, 1))


@pytest.mark.parametrize("pattern", ["cartpole-v", "CartPole-v*", "*pole-v?"])
def test_pattern(pattern: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--long", pattern]) == 0
    assert rows_of(capsys.readouterr().out) == [
        ["classic control", "CartPole-v0", "native", "-", "200", "Box(4,) float32", "Discrete(2)"],
        ["classic control", "CartPole-v1", "native", "-", "500", "Box(4,) float32", "Discrete(2)"],
    ]


@pytest.mark.parametrize("word", ["cartpole", "MiniGrid-DoorKey*", "HandManipulateBlockRotateParallel*"])
def test_nothing_is_cut_off_on_a_narrow_terminal(
    word: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["list", "--long", word]) == 0
    wide = rows_of(capsys.readouterr().out)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["list", "--long", word]) == 0
    table = capsys.readouterr().out.partition("\n\n")[0]
    assert max(map(len, table.splitlines())) <= 80
    rows = re.split(r"\n(?! )", table)[3:]  # below the title, the header and the rule
    texts = [" ".join(row.split()) for row in rows]
    for text, (_, env_id, *_, observation, action) in zip(texts, wide, strict=True):
        assert env_id in text
        assert text.endswith(f" observation {observation} action {action}")


def test_lines_do_not_end_with_blanks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--long", "cartpole"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line != line.rstrip()] == []


def test_no_match(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--long", "no such env"]) == 2
    output = capsys.readouterr()
    assert (output.out, output.err.count("\n")) == ("", 1)
    assert "'no such env'" in output.err
    assert "Any Gymnasium id also works" in output.err


def test_extra_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envfleet.core.family.find_spec", lambda package: None)  # nothing is installed
    assert main(["list", "--long", "cheetah-run"]) == 0
    output = capsys.readouterr().out
    assert "extra needed" in output
    assert rows_of(output)[0][3] == "dm_control (not installed)"
    assert main(["list", "--long", "HalfCheetah-v5"]) == 0
    assert rows_of(capsys.readouterr().out)[0][:4] == ["MuJoCo", "HalfCheetah-v5", "native", "mujoco (not installed)"]


def test_python_families(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--long", "cheetah-run"]) == 0
    family, env_id, backend, extra, *rest = rows_of(capsys.readouterr().out)[0]
    assert (family, env_id, backend, extra.split()[0], rest) == (
        "dm_control",
        "cheetah-run",
        "native",
        "dm_control",
        ["1,000", "{position: Box(8,) float64, velocity: Box(9,) float64}", "Box(6,) float64"],
    )


def test_words(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("minigrid", reason="needs MiniGrid: pip install envfleet[minigrid]")
    assert main(["list", "--long", "doorkey"]) == 0
    rows = rows_of(capsys.readouterr().out)
    assert len(rows) == 4
    assert rows[0][:5] == ["minigrid", "MiniGrid-DoorKey-16x16-v0", "native", "minigrid", "2,560"]
    assert main(["list", "--long", "minigrid", "doorkey", "8x8"]) == 0  # also in the name of the family
    assert [row[1] for row in rows_of(capsys.readouterr().out)] == ["MiniGrid-DoorKey-8x8-v0"]
    assert main(["list", "--long", "doorkey", "cartpole"]) == 2
    assert "matches 'doorkey' and 'cartpole'" in capsys.readouterr().err


def test_spaces_without_building_an_env(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("Box2D", reason="needs Box2D: pip install envfleet[box2d]")
    assert main(["list", "--long", "--family", "box2d"]) == 0
    rows = {row[1]: row[4:] for row in rows_of(capsys.readouterr().out)}
    assert rows["CarRacing-v2"] == ["1,000", "Box(96, 96, 3) uint8", "Box(3,) float32"]
    for env_id in ("LunarLander-v3", "LunarLanderContinuous-v3", "BipedalWalker-v3", "BipedalWalkerHardcore-v3"):
        spec = envfleet.make_spec(env_id, backend="serial")
        assert rows[env_id] == [
            f"{spec.max_episode_steps:,}",
            list_envs.brief(spec.observation_space),
            list_envs.brief(spec.action_space),
        ]


def test_almost_every_id_has_its_spaces_in_the_catalogue() -> None:
    """Those of a plug-in or without a package are asked of the native env itself."""
    recorded = summaries()
    ids = {env_id for env_id in envfleet.list_all_envs() if family_of(env_id).package}
    # Four scenarios of EnvPool are not in the vizdoom package, the fifth is the user's own.
    without = {"D1Basic-v1", "D2Navigation-v1", "D3Battle-v1", "D4Battle2-v1", "VizdoomCustom-v1"}
    without |= {"MiniHack-Navigation-Custom-v0", "MiniHack-Skill-Custom-v0"}  # of the user's levels
    assert set(recorded) == ids - without - registered.keys()


@pytest.mark.parametrize(
    "env_id",
    ["Ant-v5", "lqr-lqr_6_2", "ALE/Pong-v5", "MiniGrid-DoorKey-8x8-v0", "BabyAI-GoTo-v0", "LunarLander-v3"],
)
def test_the_catalogue_is_what_envs_say(env_id: str) -> None:
    assert_recorded(env_id)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore:.*is out of date:DeprecationWarning")  # MiniHack builds grids of MiniGrid's v0
@pytest.mark.parametrize("family", [family.name for family in FAMILIES if family.package])
def test_the_whole_catalogue_is_what_envs_say(family: str) -> None:
    for env_id in summaries():
        # One skill of Freedoom's campaigns: the others have the same spaces, and an engine takes a second to start.
        # Meta-World's ids without a task need env_name.
        is_same = re.fullmatch(
            r"VizdoomDoom.*-S\d-v0|VizdoomFreedoom.*-S[2-5]-v0|Meta-World/[^-]*(-train|-test)?", env_id
        )
        if family_of(env_id).name == family and not is_same:
            assert_recorded(env_id)


def assert_recorded(env_id: str) -> None:
    if not family_of(env_id).is_installed:
        pytest.skip(f"needs {family_of(env_id).package}: pip install envfleet[{family_of(env_id).extra}]")
    spec = envfleet.make_spec(env_id, backend="auto" if find_entry(env_id) else "serial")
    summary = summaries()[env_id]
    # An env that enforces its own time limit does not declare it.
    limit = summary.max_episode_steps if spec.max_episode_steps is None else spec.max_episode_steps
    assert summary == EnvSummary(limit, list_envs.brief(spec.observation_space), list_envs.brief(spec.action_space)), (
        f"{env_id}: run tools/write_catalogue.py"
    )


def test_family(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--long", "--family", "toy text", "*-v1"]) == 0
    output = capsys.readouterr().out
    assert {row[0] for row in rows_of(output)} == {"toy text"}
    assert {"FrozenLake-v1", "Blackjack-v1"} <= {row[1] for row in rows_of(output)}
    assert "--family" not in output
    assert main(["list", "--long", "--family", "toytext"]) == 2
    assert "did you mean 'toy text'?" in capsys.readouterr().err


def test_families_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--long"]) == 0
    # Other tests may have registered more.
    assert int(re.search(r"toy text \((\d+)\)", capsys.readouterr().out)[1]) >= 8


@pytest.mark.parametrize(
    ("space", "said"),
    [
        (gymnasium.spaces.Box(0, 255, (84, 84), np.uint8), "Box(84, 84) uint8"),
        (gymnasium.spaces.Discrete(3, start=-1), "Discrete(3, start=-1)"),
        (gymnasium.spaces.MultiDiscrete([2, 3]), "MultiDiscrete([2, 3])"),
        (gymnasium.spaces.MultiBinary(4), "MultiBinary(4)"),
        (gymnasium.spaces.Dict(a=gymnasium.spaces.Discrete(2)), "{a: Discrete(2)}"),
        (gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(2)] * 2), "(Discrete(2), Discrete(2))"),
    ],
)
def test_spaces_in_brief(space: gymnasium.Space, said: str) -> None:
    assert list_envs.brief(space) == said


def test_a_closed_pipe_is_no_error() -> None:
    # The reader is gone before anything is written.
    process = subprocess.Popen(
        [sys.executable, "-m", "envfleet", "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 141
    assert errors == ""


def test_missing_rich(cli: Any) -> None:
    result = cli("list", blocked=("rich",))
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert 'pip install "envfleet[cli]"' in result.stderr
