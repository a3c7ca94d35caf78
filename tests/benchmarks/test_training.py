"""Results of training runs: the table, the page that shows it, and the pictures."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
try:
    import training
finally:
    sys.path.pop(0)

MACHINE = {"date": "2026-01-02T03:04:05+00:00", "usable_cores": 16, "device": "H200", "python": "3.12.3"}
MACHINE["versions"] = {"envfleet": "0.1.0", "envpool": None}


def write_result(folder: Path, run: training.Run, seconds: float, steps: int, reached: bool) -> None:
    curve = [(seconds / 2, steps // 2, 1.0), (seconds, steps, 20.0)]
    result = {"reached": reached, "seconds": seconds, "steps": steps, "env_share": 0.5, "curve": curve}
    run.path(folder).write_text(json.dumps(result | {"machine": MACHINE}))


@pytest.fixture
def folder(tmp_path):
    write_result(tmp_path, training.Run("pong", "envfleet", 1), 100.0, 1_000_000, True)
    write_result(tmp_path, training.Run("pong", "envfleet", 2), 200.0, 2_000_000, True)
    write_result(tmp_path, training.Run("pong", "gymnasium", 1), 500.0, 1_000_000, False)
    return tmp_path


def test_the_table_has_the_median_time_of_the_runs_that_reached_the_target(folder):
    rows = [line for line in training.table(folder).splitlines() if line.startswith("| Pong-v5")]
    assert rows == [
        "| Pong-v5 to 18 | envfleet | 16, H200 | 2 of 2 | 150 s (100 to 200) | 1.50 M | 10,000 | 50% |",
        "| Pong-v5 to 18 | Gymnasium AsyncVectorEnv | 16, H200 | 0 of 1 | not in 500 s |  | 2,000 | 50% |",
    ]


def test_a_page_gets_the_table_between_its_marks(folder):
    page = folder / "page.md"
    page.write_text(f"before\n{training.BEGIN}\nold\n{training.END}\nafter\n")
    training.refresh(page, folder)
    assert page.read_text() == f"before\n{training.BEGIN}\n{training.table(folder)}\n{training.END}\nafter\n"
    page.write_text("no marks")
    with pytest.raises(SystemExit, match="expected the lines"):
        training.refresh(page, folder)


def test_no_results_make_no_table(tmp_path):
    assert training.table(tmp_path) == "No results yet."
