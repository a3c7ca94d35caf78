"""The scripts for machines with many cores and a GPU, in a short form: they must not fail there for the first time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import large_machine
from large_machine import Step


def _python(name: str, code: str, seconds: int = 60, needs_gpu: bool = False) -> Step:
    return Step(name, (sys.executable, "-c", code), seconds, needs_gpu)


def test_a_step_that_fails_does_not_stop_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = (
        _python("bad", "raise SystemExit(3)"),
        _python("late", "import time; time.sleep(60)", seconds=1),
        _python("good", "open(r'OUTPUT/report.json', 'w').write('{}'); print('42 M')"),
        _python("long", "print('never')", seconds=100_000),
        _python("gpu", "print('never')", needs_gpu=not large_machine._has_gpu()),
    )
    assert large_machine.main([str(tmp_path)], steps) == 2
    shown = capsys.readouterr().out
    assert "bad: exit code 3" in shown
    assert "late: exit code 124" in shown
    assert "42 M" in shown
    assert "failed: bad late\n" in shown
    assert "no GPU: gpu\n" in shown or large_machine._has_gpu()
    assert shown.endswith("not run: --only long\n")
    assert "42 M" in (tmp_path / "log.txt").read_text()
    assert (tmp_path / "report.json").read_text() == "{}"


def test_every_step_can_be_started(capsys: pytest.CaptureFixture[str]) -> None:
    for step in large_machine.STEPS:
        assert step.seconds < 540, "it would never be started with the default limit"
        for argument in step.command:
            if argument.endswith(".py"):
                assert (large_machine.ROOT / argument).is_file(), argument
    assert large_machine.main(["--list"]) == 0
    assert capsys.readouterr().out.count("\n") == len(large_machine.STEPS)
    with pytest.raises(SystemExit):
        large_machine.main(["--only", "torhc"])
    assert "got torhc" in capsys.readouterr().err


def test_the_measurements_of_torch_run_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="TorchPool needs torch")
    import torch_gpu

    torch_gpu.main(["--device", "cpu", "--rounds", "1", "--num-envs", "4", "--num-threads", "2"])
    shown = capsys.readouterr().out
    assert "as_tensor / TorchPool" in shown
    assert "added by TorchPool" in shown
    assert "two / one" in shown


def test_the_measurements_of_many_cores_run_on_few(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import many_cores

    monkeypatch.setattr(many_cores, "_WITH_BUSY_LOOPS", (("CartPole-v1", 64),))
    monkeypatch.setattr(many_cores, "_BUSY_LOOPS", 1)
    monkeypatch.setattr(many_cores, "_WINDOWS_SECONDS", 0.4)
    monkeypatch.setattr(many_cores, "_GROWTH", (64,))
    monkeypatch.setattr(many_cores, "_SIZES", (64,))
    many_cores.main(["--rounds", "1", "--seconds", "0.01"])
    shown = capsys.readouterr().out
    assert "separate processes" in shown
    assert "numpy" in shown
    assert "with 1 busy loops" in shown
    assert "0.2 s below half of the median" in shown
    assert "CartPole-v1 n=64: make" in shown
