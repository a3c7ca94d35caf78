"""The benchmarks' own rules: order of rounds, statistics, what a report holds. No times."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import atari_suites  # noqa: E402
import compare  # noqa: E402
import harness  # noqa: E402
import native_suites  # noqa: E402
import native_table  # noqa: E402
import python_suites  # noqa: E402
import suites  # noqa: E402
import tables  # noqa: E402
from harness import Case, Contender, Options, Target  # noqa: E402


class Scripted:
    """A subject that gives these values, and notes that its turn came."""

    def __init__(self, name: str, values: list[float], turns: list[str]) -> None:
        self.name, self.values, self.turns = name, iter(values), turns

    def measure(self, seconds: float) -> float:
        self.turns.append(self.name)
        return next(self.values)

    def close(self) -> None:
        self.turns.append(f"close {self.name}")


def scripted_case(scripts: dict[str, list[float]], turns: list[str], **fields: Any) -> Case:
    contenders = [Contender(name, lambda n=name, v=values: Scripted(n, v, turns)) for name, values in scripts.items()]
    return Case("scripted", "steps/s", contenders, reference=next(iter(scripts)), **fields)


def result_of(case: dict[str, Any], name: str) -> dict[str, Any]:
    return next(result for result in case["contenders"] if result["name"] == name)


def test_each_contender_comes_at_each_place_equally_often() -> None:
    orders = [harness.rotated("abc", number) for number in range(6)]
    for place in range(3):
        assert Counter(order[place] for order in orders) == {"a": 2, "b": 2, "c": 2}
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)


def test_rounds_alternate_in_rotated_order() -> None:
    turns: list[str] = []
    harness.run_case(scripted_case({"a": [1, 1], "b": [1, 1]}, turns), rounds=2, seconds=0)
    assert turns == ["a", "b", "b", "a", "close a", "close b"]


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([3.0], (3, 3, 3, 3, 3)),
        ([4.0, 1.0, 3.0, 2.0, 5.0], (3, 1, 5, 2, 4)),
        ([1.0, 2.0], (1.5, 1, 2, 1.25, 1.75)),
    ],
)
def test_summary_is_median_and_spread(samples: list[float], expected: tuple[float, ...]) -> None:
    assert tuple(harness.summary(samples)[key] for key in ("median", "min", "max", "q1", "q3")) == expected


def test_ratios_pair_the_values_of_one_round() -> None:
    # The machine is three times slower in the last round, for both.
    case = scripted_case({"ours": [30, 30, 10], "theirs": [3, 3, 1]}, [])
    (ratio,) = harness.run_case(case, 3, 0)["ratios"]
    assert (ratio["of"], ratio["against"]) == ("ours", "theirs")
    assert (ratio["min"], ratio["median"], ratio["max"]) == (10, 10, 10)


def test_a_ratio_above_one_means_faster_also_where_less_is_better() -> None:
    case = scripted_case({"ours": [1.0], "theirs": [4.0]}, [], more_is_better=False)
    assert harness.run_case(case, 1, 0)["ratios"][0]["median"] == 4


@pytest.mark.parametrize(
    ("target", "value", "met"),
    [
        (Target("ratio", "ours", 2, "theirs"), 2.5, True),
        (Target("ratio", "ours", 3, "theirs"), 2.5, False),
        (Target("difference", "ours", 6, "theirs"), 6, True),
        (Target("difference", "ours", 5, "theirs"), 6, False),
        (Target("value", "ours", 9), 10, False),
        (Target("ratio", "ours", 2, "absent"), None, None),
    ],
)
def test_targets_are_judged(target: Target, value: float | None, met: bool | None) -> None:
    case = scripted_case({"ours": [10.0], "theirs": [4.0]}, [], targets=[target])
    (judged,) = harness.run_case(case, 1, 0)["targets"]
    assert (judged["value"], judged["met"]) == (value, met)


def test_a_peer_that_is_missing_or_fails_does_not_stop_the_others() -> None:
    def missing() -> Scripted:
        raise ImportError("No module named 'peer'")

    class Failing(Scripted):
        def measure(self, seconds: float) -> float:
            raise RuntimeError("it | broke\nhere")

    contenders = [
        Contender("ours", lambda: Scripted("ours", [5, 7], [])),
        Contender("missing", missing),
        Contender("failing", lambda: Failing("failing", [], [])),
    ]
    target = Target("ratio", "ours", 2, "missing")
    result = harness.run_case(Case("faults", "steps/s", contenders, "ours", [target]), 2, 0)
    assert result_of(result, "ours")["median"] == 6
    assert result_of(result, "missing")["status"] == "not installed"
    assert result_of(result, "failing")["status"] == "failed"
    assert (result["ratios"], result["targets"][0]["met"]) == ([], None)
    text = tables.text_of_case(result)
    assert "not installed" in text
    assert "RuntimeError: it / broke here" in text


def test_a_loop_is_timed_over_whole_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms, runs = [0], []

    def run(num_batches: int) -> None:
        runs.append(num_batches)
        now_ms[0] += num_batches  # one millisecond per batch

    monkeypatch.setattr(harness.time, "perf_counter", lambda: now_ms[0] / 1000)
    loop = harness.Loop(run, steps_per_batch=4, shut=lambda: None)
    assert loop.measure(1.0) == pytest.approx(4000)
    assert runs[runs.index(100) :] == [100] * 11  # an untimed chunk, then a second's worth
    assert harness.Loop(run, 1, lambda: None, in_us=True).measure(1.0) == pytest.approx(1000)


def test_every_suite_names_its_own_contenders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_suites, "_has_gil", lambda: False)  # or one of them is skipped
    for name in suites.SUITES:
        cases = suites.build(name, Options())
        assert len({case.name for case in cases}) == len(cases)
        for case in cases:
            names = {contender.name for contender in case.contenders}
            assert len(names) == len(case.contenders)
            assert {case.reference, *(t.of for t in case.targets), *(t.against or t.of for t in case.targets)} <= names


@pytest.mark.parametrize(
    ("num_envs", "num_threads", "expected"),
    [(1, 1, 1.0), (2, 2, 670 / 505), (64, 1, 1.0)],  # 670 us: the mean of the larger of two uniform draws
)
def test_ceiling_of_an_asynchronous_pool(num_envs: int, num_threads: int, expected: float) -> None:
    assert native_suites.ceiling(num_envs, num_threads) == pytest.approx(expected, abs=0.02)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("results") / "tiny.json"
    compare.main(
        ["cartpole", "--peers", "--num-envs", "1", "64", "--rounds", "1", "--seconds", "0.02", "--output", str(path)]
    )
    return json.loads(path.read_text())


def test_two_builds_are_compared(tmp_path: Path) -> None:
    path = tmp_path / "builds.json"
    sizes = ["--num-envs", "64", "--rounds", "1", "--seconds", "0.01"]
    compare.main(["cartpole", "--baseline", sys.executable, "--output", str(path), *sizes])
    cases = json.loads(path.read_text())["suites"]["cartpole"]
    assert [case["name"].rpartition(": ")[2] for case in cases] == ["envfleet", "envfleet, fast_math", "envfleet"]
    for case in cases:
        assert [result["status"] for result in case["contenders"]] == ["ok", "ok"]
        assert case["ratios"][0]["median"] > 0


def test_a_report_says_where_its_figures_come_from(report: dict[str, Any]) -> None:
    assert set(report) == {"schema", "date", "command", "machine", "versions", "options", "suites"}
    assert {"cpu", "usable_cores", "kernel", "python"} <= set(report["machine"])
    assert set(report["versions"]) == set(harness.PACKAGES)
    assert report["versions"]["envfleet"] != "not installed"
    assert report["options"]["rounds"] == 1


def test_a_real_run_of_envfleet_alone(report: dict[str, Any]) -> None:
    cases = report["suites"]["cartpole"]
    assert [(case["facts"]["num_envs"], case["facts"]["mode"]) for case in cases] == [
        (1, "sync"),
        (64, "sync"),
        (64, "async"),
    ]
    for case in cases:
        assert case["others_cores"] >= 0
        ours = ["envfleet", "envfleet, fast_math"] if case["facts"]["mode"] == "sync" else ["envfleet"]
        assert [result["name"] for result in case["contenders"]] == ours
        for result in case["contenders"]:
            assert (result["status"], len(result["samples"])) == ("ok", 1)
            assert result["median"] > 0


def test_the_document_is_refreshed_between_its_marks(report: dict[str, Any]) -> None:
    old = "before\n<!-- results: begin -->\nold\n<!-- results: end -->\nafter\n"
    new = tables.refreshed(old, report)
    assert new.startswith("before\n")
    assert new.endswith("\nafter\n")
    assert "old" not in new
    assert report["date"] in new
    assert tables.refreshed(new, report) == new
    with pytest.raises(ValueError, match="expected the marks"):
        tables.refreshed("no marks", report)


def test_a_suite_with_marks_of_its_own_goes_there(report: dict[str, Any]) -> None:
    document = (
        "<!-- results: begin -->\nall\n<!-- results: end -->\n"
        "<!-- results of ant: begin -->\nan ant\n<!-- results of ant: end -->\n"
    )
    cases = report["suites"]["cartpole"]
    only_ant = tables.refreshed(document, {**report, "suites": {"ant": cases}})
    assert "all" in only_ant
    assert "an ant" not in only_ant
    assert only_ant.index("results of ant: begin") < only_ant.index(report["date"])
    both = tables.refreshed(document, {**report, "suites": {"ant": cases, "cartpole": cases}})
    assert (both.count(report["date"]), both.count("### Suite `cartpole`"), both.count("### Suite `ant`")) == (2, 1, 0)


def test_a_folder_of_pages_is_refreshed_where_the_marks_are(report: dict[str, Any], tmp_path: Path) -> None:
    ant, rest = tmp_path / "ant.md", tmp_path / "rest.md"
    ant.write_text("<!-- results of ant: begin -->\n<!-- results of ant: end -->\n")
    rest.write_text("<!-- results: begin -->\n<!-- results: end -->\n")
    saved = tmp_path / "report.json"
    cases = report["suites"]["cartpole"]
    saved.write_text(json.dumps({**report, "suites": {"ant": cases, "cartpole": cases}}))
    compare.main(["--refresh", str(tmp_path), "--output", str(saved)])
    assert ant.read_text().count(report["date"]) == 1
    assert "### Suite `cartpole`" not in ant.read_text()
    assert rest.read_text().count("### Suite `cartpole`") == 1
    assert "### Suite `ant`" not in rest.read_text()


def test_the_target_stands_in_the_row_of_the_one_it_is_set_against() -> None:
    targets = [
        Target("ratio", "ours", 2, "theirs"),
        Target("ratio", "ours too", 2, "theirs"),
        Target("ratio", "ours", 3, "absent"),
    ]
    scripts = {"ours": [10.0], "ours too": [6.0], "theirs": [4.0]}
    result = harness.run_case(scripted_case(scripts, [], targets=targets), 1, 0)
    text = tables.markdown_of(harness.report({"rounds": 1, "seconds": 1}, {"scripted": [result]}))
    assert "| >= 2x: 2.5x, met; ours too >= 2x: 1.50x, **short** |" in text
    assert "| scripted | ours >= 3x absent | not measured | ? |" in text


def test_a_suite_that_means_nothing_here_is_skipped_with_a_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_suites, "_has_gil", lambda: True)
    path = tmp_path / "none.json"
    compare.main(["threads_freethreaded", "--output", str(path)])
    assert "threads_freethreaded: skipped, expected a free-threaded Python" in capsys.readouterr().out
    assert json.loads(path.read_text())["suites"] == {}


def test_the_others_never_use_more_than_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = harness.OthersMeter()
    monkeypatch.setattr(meter, "_others_ticks", lambda: meter._ticks + 10**9)
    assert meter.cores() == os.cpu_count()


def test_an_unknown_suite_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        compare.main(["cartpol"])
    assert "expected suites of cartpole" in capsys.readouterr().err


def test_a_case_that_counts_frames_shows_frames_per_second() -> None:
    case = scripted_case({"ours": [1000.0], "theirs": [500.0]}, [])
    result = harness.run_case(replace(case, unit="steps/s", facts={"frames_per_step": 4}), 1, 0)
    text = tables.text_of_case(result)
    assert "frames/s" in text
    assert "4 k" in text
    assert "2 k" in text


def test_cases_with_a_row_and_a_column_become_one_table() -> None:
    results = []
    for row, column in (("A-v1", "64 envs"), ("A-v1", "1024 envs"), ("B-v0", "64 envs")):
        case = scripted_case({"ours": [3000.0], "theirs": [1000.0]}, [])
        case = replace(case, name=f"{row}, {column}", unit="steps/s", facts={"row": row, "column": column})
        results.append(harness.run_case(case, 1, 0))
    (table, *_warnings) = tables._suite_parts(results)
    head, _line, first, second = table.splitlines()
    names = ["64 envs: ours", "64 envs: theirs", "64 envs: speedup", "1024 envs: ours"]
    assert [cell.strip() for cell in head.split("|")[2:6]] == names
    assert first == "| A-v1 | 3 k | 1 k | 3.0x | 3 k | 1 k | 3.0x |"
    assert second == "| B-v0 | 3 k | 1 k | 3.0x |  |  |  |"


def test_only_the_newest_version_of_an_id_is_in_the_table() -> None:
    ids = ["Ant-v3", "Ant-v5", "Ant-v4", "CartPole-v0", "CartPole-v1", "cheetah-run"]
    assert native_table.newest_versions(ids) == ["Ant-v5", "CartPole-v1", "cheetah-run"]


def test_the_busy_share_of_atari_workers() -> None:
    assert atari_suites.busy_share(16, 1, 1, num_batches=50) == 1
    on_two, on_sixteen, on_sixty_four = (
        atari_suites.busy_share(256, cores, cores, num_batches=200) for cores in (2, 16, 64)
    )
    assert on_sixty_four < on_sixteen < on_two
    assert on_sixteen < atari_suites.busy_share(256, 16, 256, num_batches=200)  # threads that share all envs


def test_the_scaling_picture_has_both_packages_at_each_thread_count() -> None:
    pytest.importorskip("matplotlib", reason="the pictures are drawn with matplotlib")
    import many_cores
    import plot

    for case in many_cores.scaling_cases(max_threads=4):
        assert case.facts["threads"] == [1, 2, 4]
        contenders = [{"name": c.name, "status": "ok", "median": 1.0, "min": 1.0, "max": 1.0} for c in case.contenders]
        lines = plot.threads_of({"contenders": contenders})
        assert {package: sorted(line) for package, line in lines.items()} == {
            "envfleet": [1, 2, 4],
            "EnvPool": [1, 2, 4],
        }
