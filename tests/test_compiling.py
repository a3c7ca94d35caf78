"""envfleet.compile(): one file, a cache, readable errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import envfleet
from envfleet import CompileError

COUNTER = """
#include "envfleet/env.h"
{include}
struct Counter {{
  static void spec(const envfleet::Config&, envfleet::Spec& spec) {{
    spec.observation(envfleet::box<float>({{1}}));
    spec.action(envfleet::discrete(2));
  }}
  void reset(envfleet::Rng&, envfleet::Out& out) {{ *out.obs<float>() = {start}; }}
  void step(int, envfleet::Out& out) {{ *out.obs<float>() = {start} + 1; }}
}};
ENVFLEET_ENV("{env_id}", Counter)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ENVFLEET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write(folder: Path, name: str, *, env_id="Counter-v0", start="1", include="") -> Path:
    path = folder / name
    path.write_text(COUNTER.format(env_id=env_id, start=start, include=include))
    return path


def first_obs(env_id: str) -> float:
    return float(envfleet.make(env_id).reset()[0][0, 0])


def test_a_second_call_loads_from_the_cache_and_a_change_builds_anew(tmp_path, cache):
    source = write(tmp_path, "counter.cc")
    assert envfleet.compile(source) == ["Counter-v0"]
    assert first_obs("Counter-v0") == 1
    built = sorted(path.name for path in cache.glob("*.so"))
    envfleet.compile(str(source))
    assert sorted(path.name for path in cache.glob("*.so")) == built
    old = envfleet.make("Counter-v0")
    old.reset()
    write(tmp_path, "counter.cc", start="5")
    envfleet.compile(source)
    assert first_obs("Counter-v0") == 5
    # A pool that was made before keeps the code it was made with.
    assert old.step([0])[0][0, 0] == 2
    assert len(list(cache.glob("*.so"))) == 2


def test_a_changed_header_of_the_author_builds_anew(tmp_path):
    header = tmp_path / "start.h"
    header.write_text("constexpr float kStart = 3;")
    source = write(tmp_path, "counter.cc", env_id="Header-v0", start="kStart", include='#include "start.h"')
    envfleet.compile(source)
    assert first_obs("Header-v0") == 3
    header.write_text("constexpr float kStart = 4;")
    envfleet.compile(source)
    assert first_obs("Header-v0") == 4


def test_an_equal_file_elsewhere_has_headers_of_its_own(tmp_path):
    for name, value in (("a", 11), ("b", 12)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "start.h").write_text(f"constexpr float kStart = {value};")
        source = write(tmp_path / name, "same.cc", env_id="Same-v0", start="kStart", include='#include "start.h"')
        envfleet.compile(source)
        assert first_obs("Same-v0") == value


@pytest.mark.parametrize("folder", ["with space", "it's", 'a "quote"', "dollar$", "hash#", "ünï", "a:b"])
def test_folders_of_every_name(tmp_path, folder, monkeypatch):
    place = tmp_path / folder
    place.mkdir()
    (place / "start.h").write_text("constexpr float kStart = 2;")
    source = write(place, "my env.cc", env_id="Folder-v0", start="kStart", include='#include "start.h"')
    monkeypatch.setenv("ENVFLEET_CACHE", str(place / "cache"))
    monkeypatch.chdir(place)
    assert envfleet.compile("my env.cc") == ["Folder-v0"]
    (place / "start.h").write_text("constexpr float kStart = 3;")
    envfleet.compile(source)
    assert first_obs("Folder-v0") == 3


def test_a_built_in_env_is_not_replaced_in_silence(tmp_path):
    source = tmp_path / "catch.cc"
    source.write_text((Path(__file__).parents[1] / "native" / "envs" / "catch.cc").read_text())
    with pytest.warns(UserWarning, match="Catch-v0 now stands for the env in"):
        envfleet.compile(source)
    envs = envfleet.make("Catch-v0", num_envs=1024)
    assert envs.reset(seed=0)[0].shape == (1024, 10, 5)


def test_an_id_that_no_one_could_use_is_refused(tmp_path):
    before = envfleet.list_all_envs()
    with pytest.raises(CompileError, match="bad id!"):
        envfleet.compile(write(tmp_path, "bad.cc", env_id="bad id!"))
    assert envfleet.list_all_envs() == before


def test_two_plugins_may_use_the_same_names(tmp_path):
    envfleet.compile(write(tmp_path, "one.cc", env_id="One-v0", start="10"))
    envfleet.compile(write(tmp_path, "two.cc", env_id="Two-v0", start="20"))
    assert (first_obs("One-v0"), first_obs("Two-v0")) == (10, 20)


def test_the_compilers_message_is_shown(tmp_path):
    source = write(tmp_path, "broken.cc", start="undeclared_name")
    with pytest.raises(CompileError, match=r"(?s)broken\.cc does not compile.*undeclared_name.*The command was:"):
        envfleet.compile(source)


def test_a_step_of_the_wrong_form_is_explained(tmp_path):
    source = tmp_path / "form.cc"
    text = COUNTER.format(env_id="Form-v0", start="1", include="")
    source.write_text(text.replace("void step(int, envfleet::Out& out)", "void step(std::string, envfleet::Out& out)"))
    with pytest.raises(CompileError, match=r"step\(\) must be callable as step\(action, out\)"):
        envfleet.compile(source)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (("envfleet::discrete(2)", "envfleet::box<float>({2})"), "takes another type of action than"),
        (("spec.action(envfleet::discrete(2));", ""), "declared no action"),
        (('ENVFLEET_ENV("Spec-v0", Counter)', ""), "registers no env"),
        (("box<float>({1})", "box<float>({0})"), "not positive"),
    ],
)
def test_what_is_wrong_in_a_spec_is_told_at_compile_or_make(tmp_path, edit, message):
    source = tmp_path / "spec.cc"
    source.write_text(COUNTER.format(env_id="Spec-v0", start="1", include="").replace(*edit))

    def compile_and_make():
        envfleet.compile(source)
        envfleet.make("Spec-v0")

    with pytest.raises((CompileError, envfleet.ConfigError), match=message):
        compile_and_make()


def test_no_file_no_compiler_no_library(tmp_path, monkeypatch):
    with pytest.raises(CompileError, match="not there"):
        envfleet.compile(tmp_path / "nothing.cc")
    source = write(tmp_path, "counter.cc")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(CompileError, match="CXX names the compiler 'no-such-compiler'"):
        envfleet.compile(source)
    monkeypatch.setenv("CXX", "'")
    with pytest.raises(CompileError, match="CXX names"):
        envfleet.compile(source)
    monkeypatch.delenv("CXX")
    with pytest.raises(CompileError, match="flags as a list"):
        envfleet.compile(source, flags="-O2 -g")
    with pytest.raises(CompileError, match="a folder"):
        envfleet.compile(tmp_path)
    monkeypatch.setenv("ENVFLEET_CACHE", "/proc/nowhere")
    with pytest.raises(CompileError, match="ENVFLEET_CACHE"):
        envfleet.compile(source)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CompileError, match="found no C\\+\\+ compiler"):
        envfleet.compile(source)
    rubbish = tmp_path / "rubbish.so"
    rubbish.write_text("no library")
    with pytest.raises(CompileError, match="cannot be loaded"):
        envfleet.load_plugin(rubbish)


def test_a_library_of_another_kind_is_refused(tmp_path):
    library = Path(envfleet._native.__file__)  # a library, but no plug-in
    with pytest.raises(CompileError, match="exports no envfleet_plugin_v1"):
        envfleet.load_plugin(library)


def test_a_damaged_cache_is_built_anew(tmp_path, cache):
    source = write(tmp_path, "counter.cc", env_id="Damaged-v0")
    envfleet.compile(source)
    for path in cache.glob("*.json"):
        path.write_text("{")
    for path in cache.glob("*.so"):
        path.unlink()
    assert envfleet.compile(source) == ["Damaged-v0"]


def test_processes_that_compile_at_once_do_not_disturb_each_other(tmp_path):
    source = write(tmp_path, "counter.cc", env_id="Race-v0", start="6")
    code = f"import envfleet; envfleet.compile({str(source)!r}); print(envfleet.make('Race-v0').reset()[0][0, 0])"
    running = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for process in running:
        assert process.communicate(timeout=120) == ("6.0\n", "")


def test_the_same_file_builds_with_cmake(tmp_path):
    write(tmp_path, "counter.cc", env_id="Cmake-v0", start="8")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(counter LANGUAGES CXX)\n"
        "add_library(counter MODULE counter.cc)\n"
        "target_compile_features(counter PRIVATE cxx_std_20)\n"
        "target_include_directories(counter PRIVATE ${ENVFLEET_INCLUDE})\n"
    )
    cmake = [
        "cmake",
        "-S",
        str(tmp_path),
        "-B",
        str(tmp_path / "build"),
        f"-DENVFLEET_INCLUDE={envfleet.get_include()}",
    ]
    subprocess.run(cmake, check=True, capture_output=True)
    subprocess.run(["cmake", "--build", str(tmp_path / "build")], check=True, capture_output=True)
    (library,) = (tmp_path / "build").glob("libcounter.*")
    assert envfleet.load_plugin(library) == ["Cmake-v0"]
    assert first_obs("Cmake-v0") == 8
