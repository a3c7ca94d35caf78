"""envfleet.compile(debug=True): indices past the end are faults that name the column, the index and the size."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import envfleet
from envfleet import CompileError, ConfigError, EnvError

SOURCE = """
#include <algorithm>
#include <cassert>
#include <cstring>

#include "envfleet/env.h"

using namespace envfleet;

const double kMasses[] = {1, 2, 3};

struct Reach {
  static Params params() { return {{"how", "well"}, {"masses", kMasses}}; }
  static void spec(const Config&, Spec& spec) {
    spec.observation("pos", box<float>({4}));
    spec.observation("vel", box<double>({2}));
    spec.info("distance", scalar<float>());
    spec.action(box<float>({2}, -10, 10));
    spec.max_episode_steps(3);
  }
  explicit Reach(const Config& config) : how(config.text("how")), masses(config.reals("masses")) {
    if (how == "in the constructor") masses[3] = 1;
  }
  void reset(Rng&, Out& out) {
    if (how == "in reset") out.obs<float>(0)[4] = 1;
    out.obs<double>(1)[1] = masses[2];
  }
  void step(const float* action, Out& out) {
    float* pos = out.obs<float>(0);
    if (how == "index") out.obs<float>(0)[4] = 1;
    if (how == "negative") out.obs<float>(0)[-1] = 1;
    if (how == "pointer") pos[7] = 1;
    if (how == "far") out.obs<double>(1)[1000] = 1;
    if (how == "memcpy") std::memcpy(pos, kMasses, sizeof kMasses);
    if (how == "fill_n") std::fill_n(out.obs<double>(1), 3, 1.0);
    if (how == "info") out.info<float>()[1] = 1;
    if (how == "read") out.reward = out.obs<double>(1)[2];
    if (how == "action") out.reward = action[2];
    if (how == "before the action") out.reward = action[-2];
    if (how == "parameter") out.reward = masses[static_cast<int>(action[0])];
    if (how == "assert") assert(action[0] < 0);
    pos[0] = action[0];
    pos[3] = action[1];
    *out.info<float>() = 5;
    out.reward += masses[0];
  }
  void render(Frame& frame) {
    frame.resize(4, 4);
    if (how == "pixel") frame.pixel(4, 0)[0] = 1;
  }
  const std::string how;
  Reals masses;
};

// Steps several envs at once.
struct Lane {
  static constexpr int lanes = 8;
  static Params params() { return {{"column", 7}}; }
  static void spec(const Config&, Spec& spec) {
    spec.observation(box<float>({1}));
    spec.action(discrete(2));
  }
  explicit Lane(const Config& config) : column(static_cast<int>(config.integer("column"))) {}
  void reset(Rng&, Out& out) { *out.obs<float>() = 0; }
  void step(int action, Out& out) { *out.obs<float>() = static_cast<float>(action); }
  static bool step_lanes(Lane* const* envs, const std::int32_t* actions, LaneOut<lanes>& out) {
    for (int lane = 0; lane < lanes; ++lane) out.obs<float>()[lane] = static_cast<float>(actions[lane]);
    out.obs<float>()[envs[0]->column] = static_cast<float>(actions[envs[0]->column]);
    return true;
  }
  int column;
};

ENVFLEET_ENV("Reach-v0", Reach)
ENVFLEET_ENV("Lane-v0", Lane)
"""
SMALL = """
#include "envfleet/env.h"

struct Small {
  static envfleet::Params params() { return {{"how", 0}}; }
  static void spec(const envfleet::Config&, envfleet::Spec& spec) {
    spec.observation("pos", envfleet::box<float>({1}));
    spec.action(envfleet::box<float>({2}, -1, 1));
  }
  explicit Small(const envfleet::Config& config) : how(config.integer("how")) {}
  void reset(envfleet::Rng&, envfleet::Out&) {}
  void step(const float* action, envfleet::Out& out) { *out.obs<float>() = action[how]; }
  std::int64_t how;
};

ENVFLEET_ENV("Reach-v0", Small)
"""
ACTIONS = np.array([[3, 1], [3, 2]], dtype=np.float32)


@pytest.fixture(scope="module", autouse=True)
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Built in debug mode by the first pytest-xdist worker, for all of them."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # of the whole run
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENVFLEET_CACHE", str(folder / "debug_cache"))
        patch.delenv("CXXFLAGS", raising=False)
        with open(folder / "debug.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            path: Path = folder / "reach.cc"
            path.write_text(SOURCE)
            envfleet.compile(path, debug=True)
        yield path


def make(how: str, **options) -> envfleet.Pool:
    return envfleet.make_pool("Reach-v0", num_envs=2, how=["well", how], **options)


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_an_env_within_its_bounds_runs_as_ever(mode):
    with make("well", autoreset_mode=mode) as pool:
        assert pool.reset(seed=0).obs["vel"].tolist() == [[0, 3]] * 2
        for _ in range(2):
            batch = pool.step(ACTIONS)
        assert batch.obs["pos"].tolist() == [[3, 0, 0, 1], [3, 0, 0, 2]]
        assert batch.info["distance"].tolist() == [5, 5]
        assert batch.reward.tolist() == [1, 1]
        assert pool.step(ACTIONS).truncated.all()


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("index", 'wrote index 4 of observation 0 ("pos"), whose size is 4'),
        ("negative", 'wrote index -1 of observation 0 ("pos"), whose size is 4'),
        ("pointer", 'wrote index 7 of observation 0 ("pos"), whose size is 4'),
        ("far", 'wrote index 1000 of observation 1 ("vel"), whose size is 2'),
        ("memcpy", 'wrote index 4 of observation 0 ("pos"), whose size is 4'),
        ("fill_n", 'wrote index 2 of observation 1 ("vel"), whose size is 2'),
        ("info", 'wrote index 1 of info 0 ("distance"), whose size is 1'),
        ("read", 'read index 2 of observation 1 ("vel"), whose size is 2'),
        ("action", "read index 2 of the action, whose size is 2"),
        ("before the action", "read index -2 of the action, whose size is 2"),
        ("parameter", "used index 3 of parameter masses, whose size is 3"),
    ],
)
def test_an_index_past_the_end_is_a_fault(how, what):
    with make(how) as pool:
        pool.reset(seed=0)
        with pytest.raises(EnvError, match=rf"env 1 raised in step\(\): {re.escape(what)};") as caught:
            pool.step(ACTIONS)
        batch = caught.value.batch
        assert batch.obs["pos"][0].tolist() == [3, 0, 0, 1]
        assert batch.obs["vel"][0].tolist() == [0, 0]
        pool.reset()
        with pytest.raises(EnvError, match="env 1 raised"):  # once more after its rebuild
            pool.step(ACTIONS)


def test_in_every_hook():
    with make("in reset") as pool, pytest.raises(EnvError, match=r"env 1 raised in reset\(\): wrote index 4"):
        pool.reset()
    with pytest.raises(ConfigError, match="used index 3 of parameter masses"):
        make("in the constructor")
    with make("pixel", render_mode="rgb_array") as pool:
        pool.reset()
        with pytest.raises(EnvError, match=r"a pixel of 4 x 4, got \(4, 0\)"):
            pool.render(1)


def step_often(pool: envfleet.Pool) -> None:
    """The first batches may be divided among threads, into groups that are too small for step_lanes()."""
    for _ in range(100):
        pool.step([0, 1] * 4)


def test_envs_that_are_stepped_at_once():
    with envfleet.make_pool("Lane-v0", num_envs=8, num_workers=1) as pool:
        pool.reset()
        assert pool.step([0, 1] * 4).obs[:, 0].tolist() == [0, 1] * 4
    with envfleet.make_pool("Lane-v0", num_envs=8, num_workers=1, column=8) as pool:
        pool.reset()
        with pytest.raises(EnvError, match="read index 8 of the action, whose size is 8"):
            step_often(pool)


def run(source: Path, code: str, **env: str) -> subprocess.CompletedProcess[str]:
    program = f"import envfleet, numpy as np\nsource = {str(source)!r}\n{code}"
    return subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **env}, capture_output=True, text=True, timeout=300
    )


STEP = """
pool = envfleet.make_pool("Reach-v0", num_envs=2, num_workers=1, how={how!r})
pool.reset(seed=0)
print(pool.step(np.ones((2, 2), np.float32)).obs["pos"][0])
"""


def test_assertions_hold_in_debug_builds_only(source):
    done = run(source, "envfleet.compile(source, debug=True)" + STEP.format(how="assert"))
    assert done.returncode == -6
    assert "reach.cc:" in done.stderr
    assert "action[0] < 0" in done.stderr
    done = run(source, "envfleet.compile(source, flags=['-O0'])" + STEP.format(how="assert"))
    assert done.returncode == 0, done.stderr


def test_the_cache_tells_debug_builds_from_others(source):
    cache = Path(os.environ["ENVFLEET_CACHE"])
    envfleet.compile(source, flags=["-O0"])
    num_libraries = len(list(cache.glob("reach-*.so")))
    with make("parameter", autoreset_mode="disabled") as pool:
        pool.reset()
        pool.step(ACTIONS)  # unchecked
    envfleet.compile(source, debug=True)
    assert len(list(cache.glob("reach-*.so"))) == num_libraries
    with make("parameter") as pool:
        pool.reset()
        with pytest.raises(EnvError, match="parameter masses"):
            pool.step(ACTIONS)


def address_sanitizer() -> str | None:
    compiler = shutil.which("c++")
    if compiler is None:
        return None
    found = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    return found if os.path.isabs(found) else None


def test_under_address_sanitizer(tmp_path):
    source = tmp_path / "reach.cc"
    source.write_text(SMALL)
    with pytest.raises(CompileError, match=r"ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD=\$\(.* -print-file-name=libasan"):
        envfleet.compile(source, debug=True, flags=["-fsanitize=address"])
    library = address_sanitizer()
    if library is None:
        pytest.skip("this compiler has no AddressSanitizer")
    code = "envfleet.compile(source, debug=True, flags=['-fsanitize=address'])"
    environment = {"LD_PRELOAD": library, "ASAN_OPTIONS": "detect_leaks=0"}
    done = run(source, code + STEP.format(how=0) + STEP.format(how=2), **environment)
    assert done.returncode != 0
    assert done.stdout == "[1.]\n", done.stderr  # of the first pool
    assert "use-after-poison" in done.stderr
    assert "reach.cc:" in done.stderr


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('Params list{{"mode", std::string("fast")}};', "the default of a parameter is an int, std::int64_t, double"),
        ('Params list{{"count", std::size_t{3}}};', "the default of a parameter is an int, std::int64_t, double"),
        ('std::string read(const Config& c) { return c.string("x"); }', "Config has no string(): text() returns"),
    ],
)
def test_guesses_meet_a_sentence(tmp_path, line, sentence):
    source = tmp_path / "guess.cc"
    source.write_text(f'#include "envfleet/env.h"\nusing namespace envfleet;\n{line}\n')
    with pytest.raises(CompileError) as caught:
        envfleet.compile(source, flags=["-fsyntax-only"])
    errors = [line for line in str(caught.value).splitlines() if "error:" in line]
    assert len(errors) == 1, errors
    assert sentence in errors[0]
