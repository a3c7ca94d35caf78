"""check_env() of native envs: built in, and compiled from a file with one fault each."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.check_env_probes import only

import envfleet
from envfleet.testing import check_env

SOURCE = """
#include <cmath>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include "envfleet/env.h"

using namespace envfleet;

int total = 0;

struct Walk {
  static Params params() { return {{"fault", "none"}}; }

  static void spec(const Config& config, Spec& spec) {
    spec.observation(box<float>({2}, -100, 100));
    spec.action(discrete(3));
    if (config.text("fault") != "long") spec.max_episode_steps(20);
  }
  explicit Walk(const Config& config) : fault(config.text("fault")) {}
  void reset(Rng& rng, Out& out) {
    if (fault != "noreset") x = 0;
    total = 0;
    drift = static_cast<float>(rng.random());
    write(out);
  }
  void step(int action, Out& out) {
    x += static_cast<float>(action - 1) + drift;
    if (fault == "random") x += static_cast<float>(std::rand() % 100) / 100;
    if (fault == "shared") x += static_cast<float>(++total % 3);
    if (fault == "throw" && ++steps == 7) throw std::runtime_error("joint 3 exploded");
    out.reward = fault == "reward" && action == 2 ? std::nan("") : 1.0;
    write(out);
    if (fault == "nan" && action == 2) out.obs<float>()[1] = std::nanf("");
    if (fault == "bounds" && action == 2) out.obs<float>()[1] = 200;
    if (fault == "dtype") *out.obs<double>() = 1;
    if (fault == "column") *out.info<float>(2) = 1;
  }
  template <class Visitor>
  void fields(Visitor& visit) {
    visit("x", x);
    if (fault != "field") visit("drift", drift);
  }
  void write(Out& out) const {
    if (fault == "noobs") return;
    out.obs<float>()[0] = x;
    out.obs<float>()[1] = drift;
  }
  const std::string fault;
  float x = 0, drift = 0;
  int steps = 0;
};

ENVFLEET_ENV("Walk-v0", Walk)
"""


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder: Path = tmp_path_factory.mktemp("walks")
    (folder / "walk.cc").write_text(SOURCE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENVFLEET_CACHE", str(folder / "cache"))
        envfleet.compile(folder / "walk.cc")


def test_a_compiled_env_is_checked_right_away(walk: None) -> None:
    report = check_env("Walk-v0", strict=True)
    assert report.findings == ()
    (note,) = report.notes
    assert note.startswith("it is a native env with a time limit of 20 steps; in 96 random steps, 0 of its episodes")
    assert note.endswith("and 4 were truncated")


@pytest.mark.parametrize(
    ("fault", "name", "seen"),
    [
        ("nan", "observation is NaN", "step() returned obs[1] = nan"),
        ("bounds", "observation outside the space", "obs[1] = 200.0, expected from -100.0 to 100.0"),
        ("reward", "reward is NaN", "step() returned NaN"),
        ("random", "unseeded randomness", "two new envs with seed 0"),
        ("noreset", "reset(seed) does not start over", "a second reset(seed=0)"),
        ("shared", "envs share state", "an env alone and as env 1 of"),
        ("field", "state is incomplete", "after set_state() in the same pool"),
        ("throw", "step() raises", "joint 3 exploded; the action was "),
        ("dtype", "step() raises", "out.obs<double>(0) does not match spec(), which declares float, not double"),
        (
            "column",
            "step() raises",
            "out.info<float>(2) does not match spec(), which declares 0 info columns, numbered",
        ),
    ],
)
def test_what_is_wrong_is_found(walk: None, fault: str, name: str, seen: str) -> None:
    assert seen in only(check_env("Walk-v0", env_kwargs={"fault": fault}), "error", name)


def test_an_env_that_writes_no_observation_is_told(walk: None) -> None:
    seen = only(check_env("Walk-v0", env_kwargs={"fault": "noobs"}), "warning", "observation is always 0")
    assert "after reset() and 100 steps" in seen


def test_an_env_without_a_limit_says_so(walk: None) -> None:
    assert (
        "without a time limit; in 100 random steps, 0 of" in check_env("Walk-v0", env_kwargs={"fault": "long"}).notes[0]
    )


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Catch-v0", "Blackjack-v1", "FrozenLake-v1", "Pendulum-v1"])
def test_built_in_envs_are_clean(env_id: str) -> None:
    report = check_env(env_id, num_steps=50, strict=True)
    assert report.findings == ()
    assert report.notes


def test_parameters_reach_the_env() -> None:
    assert check_env("FrozenLake-v1", env_kwargs={"map_name": "8x8"}).findings == ()
    assert "no_such" in only(check_env("Catch-v0", env_kwargs={"no_such": 1}), "error", "env cannot be made")
