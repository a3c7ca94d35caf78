"""The scripts for machines with many cores and a GPU, in a short form: they must not fail there for the first time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))


def test_the_measurements_of_torch_run_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="TorchPool needs torch")
    import torch_gpu

    torch_gpu.main(["--device", "cpu", "--rounds", "1", "--num-threads", "2"])
    assert "two / one" in capsys.readouterr().out


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
    assert "with 1 busy loops" in shown
    assert "0.2 s below half of the median" in shown
    assert "CartPole-v1 n=64: make" in shown
