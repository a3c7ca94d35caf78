"""tools/foreign_suites.py: takes a checkout, excludes with reasons, skips with a sentence; one line per suite."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "foreign_suites.py"

TESTS = """
import gymnasium.vector

def test_the_classes_are_swapped():
    assert gymnasium.vector.SyncVectorEnv.__module__.startswith("envfleet.")

def test_of_their_own():
    raise AssertionError("cannot apply")

def test_of_gymnasiums_class():
    assert not gymnasium.vector.SyncVectorEnv.__module__.startswith("envfleet.")
"""


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("foreign_suites_tool", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look up their annotations
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_theirs.py").write_text(TESTS)
    return tmp_path


def test_a_checkout_with_an_exclusion(tool, checkout):
    """test_of_their_own fails on Gymnasium's own classes too, so it is not held against envfleet."""
    excluded = {"tests/test_theirs.py::test_of_gymnasiums_class": "has no meaning here"}
    suite = tool.Suite("theirs", "gymnasium", ["tests/test_theirs.py"], "gymnasium_swap", excluded)
    result = tool.run(suite, {"theirs": str(checkout)})
    assert result.outcome == "passed", result.output
    assert result.line().endswith(
        "1 passed, 0 failed, 1 fail without envfleet too, 1 excluded (test_of_gymnasiums_class: has no meaning here)"
    )
    result = tool.run(replace(suite, excluded={}), {"theirs": str(checkout)})
    assert result.outcome == "failed"
    assert "1 passed, 1 failed, 1 fail without envfleet too; tests/test_theirs.py::test_of" in result.line()


def test_what_cannot_be_had_is_skipped_with_a_sentence(tool, tmp_path):
    suite = tool.Suite("theirs", "gymnasium", ["tests/test_theirs.py"])
    assert "set ENVFLEET_THEIRS_CHECKOUT to a checkout" in tool.run(suite, {}, tmp_path).line()
    assert "does not contain" in tool.run(suite, {"theirs": str(tmp_path)}).line()
    assert tool.run(replace(suite, package="no-such-package"), {}).line() == (
        "theirs: skipped: needs no-such-package; pip install it"
    )


def test_every_suite_has_its_plug_in_and_reasons(tool):
    for suite in tool.SUITES:
        assert suite.plugin is None or (tool.PLUGINS / f"{suite.plugin}.py").exists()
        assert all(suite.excluded.values())
