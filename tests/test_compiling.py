"""envfleet.compile(): one file, a cache, readable errors."""

from __future__ import annotations

import os
import platform
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import envfleet
from envfleet import CompileError, ConfigError, UnknownEnvError
from envfleet.envs.compiler import cache_key, cpu_description

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
    monkeypatch.setenv("CXXFLAGS", "-O0")  # optimizing would take most of the time
    return tmp_path / "cache"


def write(folder: Path, name: str, *, env_id="Counter-v0", start="1", include="") -> Path:
    path = folder / name
    path.write_text(COUNTER.format(env_id=env_id, start=start, include=include))
    return path


@pytest.mark.parametrize("declared", ['observation("pos", ', "observation_member("])
def test_an_observation_with_one_member_keeps_its_structure(tmp_path, declared):
    source = write(tmp_path, "one.cc", env_id="OneMember-v0")
    source.write_text(source.read_text().replace("observation(", declared))
    envfleet.compile(source)
    with envfleet.make_pool("OneMember-v0", num_envs=2) as pool:
        for obs in (pool.reset().obs, pool.step([0, 1]).obs):
            assert type(obs) is (dict if "pos" in declared else tuple)


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


@pytest.mark.parametrize("folder", ['it\'s a "name" with $HOME, # and ünï', "a:b"])
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
    with pytest.warns(UserWarning, match=r"Catch-v0 is now the env in .* replaces the built-in one"):
        envfleet.compile(source)
    envs = envfleet.make("Catch-v0", num_envs=1024)
    assert envs.reset(seed=0)[0].shape == (1024, 10, 5)


def test_a_version_with_an_invalid_spec_does_not_replace_the_one_before(tmp_path):
    source = write(tmp_path, "counter.cc", env_id="Kept-v0", start="7")
    envfleet.compile(source)
    broken = source.read_text().replace("envfleet::box<float>({1})", "envfleet::box<float>({1}, 9, 5)")
    source.write_text(broken)
    for _ in range(2):  # built, then from the cache
        with pytest.raises(CompileError, match=r"Kept-v0 .*its spec is invalid: .*correct its spec\(\)"):
            envfleet.compile(source)
        assert first_obs("Kept-v0") == 7
    write(tmp_path, "counter.cc", env_id="Kept-v0", start="8")
    envfleet.compile(source)
    assert first_obs("Kept-v0") == 8


def test_an_env_of_a_later_library_survives_a_refused_version_of_an_earlier_one(tmp_path):
    two = write(tmp_path, "two.cc", env_id="First-v0")
    two.write_text(two.read_text() + '\nstruct Other : Counter {};\nENVFLEET_ENV("Second-v0", Other)\n')
    envfleet.compile(two)
    envfleet.compile(write(tmp_path, "second.cc", env_id="Second-v0", start="2"))
    two.write_text(two.read_text().replace("box<float>({1})", "box<float>({1}, 9, 5)"))
    with pytest.raises(CompileError, match="invalid"):
        envfleet.compile(two)
    assert (first_obs("First-v0"), first_obs("Second-v0")) == (1, 2)


@pytest.mark.parametrize("env_id", ["Invalid-v0", "CartPole-v1"])
def test_an_env_with_an_invalid_spec_is_not_registered(tmp_path, env_id):
    before = envfleet.list_all_envs()
    source = write(tmp_path, "invalid.cc", env_id=env_id)
    source.write_text(source.read_text().replace("box<float>({1})", "box<float>({1}, 9, 5)"))
    with pytest.raises(CompileError, match=f"{env_id} .*expected spaces that Gymnasium accepts"):
        envfleet.compile(source)
    assert envfleet.list_all_envs() == before
    if env_id in before:
        assert envfleet.make(env_id).single_observation_space.shape == (4,)
    else:
        with pytest.raises(UnknownEnvError, match=env_id):
            envfleet.make(env_id)


def test_a_compiled_env_on_a_python_backend(tmp_path):
    envfleet.compile(write(tmp_path, "counter.cc", env_id="Only-v0"))
    message = r"got 'Only-v0', which is implemented in C\+\+ only; use backend='native', without wrappers"
    for options in ({"backend": "serial"}, {"backend": "threads"}, {"backend": "processes"}, {"wrappers": [id]}):
        with pytest.raises(ConfigError, match=message):
            envfleet.make("Only-v0", **options)
    with pytest.raises(ConfigError, match="pass the id itself, with num_envs"):
        envfleet.make(["Only-v0", "Only-v0"])
    assert envfleet.make("Only-v0", backend="native").num_envs == 1


def test_a_working_directory_that_was_deleted(tmp_path, monkeypatch):
    source = write(tmp_path, "counter.cc", env_id="Homeless-v0")
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert envfleet.compile(source) == ["Homeless-v0"]
    with pytest.raises(CompileError, match=r"working directory .* got one that was deleted; .*absolute paths"):
        envfleet.compile(source, flags=["-Iheaders"])


def test_a_source_that_does_not_compile_while_sigchld_is_ignored(tmp_path):
    (tmp_path / "bad.cc").write_text("this is no C++\n")
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # all exit codes are 0
    try:
        with pytest.raises(CompileError, match=r"bad\.cc does not compile\.\s+.*error"):
            envfleet.compile(tmp_path / "bad.cc")
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_an_id_that_no_one_could_use_is_refused(tmp_path):
    before = envfleet.list_all_envs()
    with pytest.raises(CompileError, match="bad id!"):
        envfleet.compile(write(tmp_path, "bad.cc", env_id="bad id!"))
    assert envfleet.list_all_envs() == before


def test_a_function_that_is_declared_and_not_defined(tmp_path):
    with pytest.raises(CompileError, match=r"cannot be loaded as an env: .*undefined symbol: .*missing_table"):
        envfleet.compile(write(tmp_path, "counter.cc", start="missing_table()", include="float missing_table();"))


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
        (("envfleet::discrete(2)", "envfleet::box<float>({2})"), r"spec\(\) declares: expected const float\*, got int"),
        (
            (
                "spec(const envfleet::Config&, envfleet::Spec& spec) {",
                'spec(const envfleet::Config& config, envfleet::Spec& spec) {\n    config.integer("mass");',
            ),
            "parameter mass was not declared",
        ),
        (
            (
                "static void spec(const envfleet::Config&, envfleet::Spec& spec) {",
                'static envfleet::Params params() { return {{"mass", 0.5}}; }\n'
                "  static void spec(const envfleet::Config& config, envfleet::Spec& spec) {\n"
                '    config.integer("mass");',
            ),
            r"parameter mass was read with integer\(\), but its default in params\(\) is read with real\(\)",
        ),
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


def test_lanes_with_actions_that_are_not_discrete(tmp_path):
    """step_lanes() receives int32: with a Box action it would read the bits of floats."""
    source = tmp_path / "lanes.cc"
    source.write_text(
        """#include "envfleet/env.h"
struct LanesEnv {
  static constexpr int lanes = 8;
  static void spec(const envfleet::Config&, envfleet::Spec& spec) {
    spec.observation(envfleet::box<float>({1})).action(envfleet::box<float>({1}, -1, 1));
  }
  void reset(envfleet::Rng&, envfleet::Out&) {}
  void step(const float*, envfleet::Out&) {}
  static bool step_lanes(LanesEnv* const*, const std::int32_t*, envfleet::LaneOut<8>&) { return true; }
};
ENVFLEET_ENV("Lanes-v0", LanesEnv)
"""
    )
    with pytest.raises(CompileError, match=r"step_lanes\(\) is for Discrete actions: step\(\) must take an int"):
        envfleet.compile(source)


def test_an_id_that_is_registered_twice(tmp_path):
    source = write(tmp_path, "twice.cc", env_id="Twice-v0")
    source.write_text(source.read_text() + '\nENVFLEET_ENV("Twice-v0", Counter)\n')
    with pytest.raises(CompileError, match="registers Twice-v0 twice: expected an id for each env"):
        envfleet.compile(source)


def test_a_library_with_fast_math_leaves_the_callers_arithmetic_alone(tmp_path):
    smallest = np.array([1e-310])
    envfleet.compile(write(tmp_path, "fast.cc", env_id="Fast-v0"), flags=["-ffast-math"])
    assert (smallest * 1.0)[0] == 1e-310


def test_no_file_no_compiler_no_library(tmp_path, monkeypatch):
    with pytest.raises(CompileError, match="which is missing"):
        envfleet.compile(tmp_path / "nothing.cc")
    source = write(tmp_path, "counter.cc")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(CompileError, match="CXX expected a compiler on the PATH, got 'no-such-compiler'"):
        envfleet.compile(source)
    monkeypatch.setenv("CXX", "'")
    with pytest.raises(CompileError, match="CXX expected a compiler"):
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
    with pytest.raises(CompileError, match=r"expected a C\+\+ compiler .*found none"):
        envfleet.compile(source)
    rubbish = tmp_path / "rubbish.so"
    rubbish.write_text("no library")
    with pytest.raises(CompileError, match="cannot be loaded"):
        envfleet.load_plugin(rubbish)


@pytest.mark.parametrize("path", [None, 3, b"env.cc", "a\0b.cc", "\ud800.cc", "x" * 5000 + ".cc"])
def test_paths_that_name_no_file(path):
    with pytest.raises(CompileError, match=r"compile\(\) expected .*a C\+\+ source file, got"):
        envfleet.compile(path)


def test_files_of_other_kinds(tmp_path):
    with pytest.raises(CompileError, match=r"is not a regular file"):
        envfleet.compile("/dev/null")
    for name in ("counter", "counter.py"):
        with pytest.raises(CompileError, match=r"whose name does not end in \.cc, \.cpp"):
            envfleet.compile(write(tmp_path, name))


@pytest.mark.parametrize("header_of", ["link", "file"])
def test_a_link_to_a_file_of_another_name(tmp_path, cache, header_of):
    """As stores by content keep files: env.cc -> ../blobs/abc123, with headers next to either."""
    folders = {"link": tmp_path / "snapshot", "file": tmp_path / "blobs"}
    for folder in folders.values():
        folder.mkdir()
    header = folders[header_of] / "start.h"
    header.write_text("constexpr float kStart = 1;")
    for name, start in (("abc123", "kStart"), ("def456", "kStart + 20")):
        write(folders["file"], name, env_id="Blob-v0", start=start, include='#include "start.h"')
    link = folders["link"] / "env.cc"
    link.symlink_to("../blobs/abc123")
    assert envfleet.compile(link) == ["Blob-v0"]
    assert first_obs("Blob-v0") == 1
    built = list(cache.glob("*.so"))
    envfleet.compile(link)
    assert list(cache.glob("*.so")) == built
    header.write_text("constexpr float kStart = 2;")
    envfleet.compile(link)
    assert first_obs("Blob-v0") == 2
    link.unlink()
    link.symlink_to("../blobs/def456")
    envfleet.compile(link)
    assert first_obs("Blob-v0") == 22


def test_a_link_to_an_equal_file_with_another_header(tmp_path):
    for folder, value in (("a", 31), ("b", 32)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "start.h").write_text(f"constexpr float kStart = {value};")
        write(tmp_path / folder, "blob", env_id="Equal-v0", start="kStart", include='#include "start.h"')
        link = tmp_path / "env.cc"
        link.unlink(missing_ok=True)
        link.symlink_to(f"{folder}/blob")
        envfleet.compile(link)
        assert first_obs("Equal-v0") == value


def test_a_link_of_any_name_to_a_source(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "start.h").write_text("constexpr float kStart = 3;")
    source = write(tmp_path / "src", "env.cc", env_id="Linked-v0", start="kStart", include='#include "start.h"')
    for name in ("current", "current.cc"):
        (tmp_path / name).symlink_to(source)
        assert envfleet.compile(tmp_path / name) == ["Linked-v0"]
    (tmp_path / "current.cc").unlink()
    (tmp_path / "current.cc").symlink_to("missing")
    with pytest.raises(CompileError, match="which is missing"):
        envfleet.compile(tmp_path / "current.cc")


@pytest.mark.parametrize("flags", [None, 3, "-O2", b"-O2", [None], ["-D\0"]])
def test_flags_that_are_no_list_of_strings(tmp_path, flags):
    with pytest.raises(CompileError, match=r"expected (flags as a list|each flag as a string)"):
        envfleet.compile(write(tmp_path, "counter.cc"), flags=flags)


def test_variables_of_the_environment_that_cannot_be_used(tmp_path, monkeypatch):
    source = write(tmp_path, "counter.cc")
    monkeypatch.setenv("CXXFLAGS", "-DNAME='unclosed")
    with pytest.raises(CompileError, match="CXXFLAGS expected flags as a shell splits them"):
        envfleet.compile(source)
    monkeypatch.delenv("CXXFLAGS")
    monkeypatch.setenv("CXX", "true")
    with pytest.raises(CompileError, match="the compiler wrote no library"):
        envfleet.compile(source)
    monkeypatch.delenv("CXX")
    monkeypatch.delenv("ENVFLEET_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def home_of_an_unknown_user():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home_of_an_unknown_user)
    with pytest.raises(CompileError, match="set ENVFLEET_CACHE or HOME"):
        envfleet.compile(source)


def test_a_library_of_another_kind_is_refused(tmp_path):
    library = Path(envfleet._native._extension.__file__)  # a library, but no plug-in
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


# --- the cache: what it notices, and what it trusts ---------------------------------------------


def header_env(folder: Path, env_id: str, value: int, header: str = "start.h") -> Path:
    """An env whose first observation is what a header says; the header is in `folder`."""
    (folder / header).parent.mkdir(parents=True, exist_ok=True)
    (folder / header).write_text(f"constexpr float kStart = {value};")
    return write(folder, "env.cc", env_id=env_id, start="kStart", include='#include "start.h"')


def compiler_script(path: Path, text: str) -> str:
    """A program that compiles as the machine's compiler does, and does something else besides."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_header_that_is_saved_while_the_compiler_runs_is_compiled_again(tmp_path, monkeypatch):
    source = header_env(tmp_path, "Saved-v0", 3)
    # The editor saves just after the compiler has read the header, once.
    text = (
        f'c++ "$@" || exit\ncase "$*" in *env.so*) [ -e "{tmp_path}/saved" ] || {{ touch "{tmp_path}/saved"; '
        f"echo 'constexpr float kStart = 4;' > '{tmp_path}/start.h'; }};; esac"
    )
    monkeypatch.setenv("CXX", compiler_script(tmp_path / "cxx", text))
    envfleet.compile(source, flags=["-O0"])
    assert (tmp_path / "saved").exists()
    assert first_obs("Saved-v0") == 4
    envfleet.compile(source, flags=["-O0"])
    assert first_obs("Saved-v0") == 4


@pytest.fixture(scope="module")
def copying_compiler(tmp_path_factory):
    """A compiler whose every result is a copy of one, an env that begins with 7: for tests of the cache alone."""
    folder = tmp_path_factory.mktemp("compiler")
    source = write(folder, "env.cc", env_id="Copied-v0", start="7")
    flags = ["-std=c++20", "-O0", "-fPIC", "-shared", f"-I{envfleet.get_include()}"]
    outputs = ["-MD", "-MT", "env", "-MF", str(folder / "env.d"), "-o", str(folder / "env.so")]
    subprocess.run(["c++", *flags, *outputs, str(source)], check=True)
    text = (
        f'while [ $# -gt 0 ]; do\ncase "$1" in -o) cp "{folder}/env.so" "$2" || exit;; '
        f'-MF) cp "{folder}/env.d" "$2" || exit;; esac\nshift\ndone'
    )
    return compiler_script(folder / "cxx", text)


def test_headers_that_never_stay_as_they_are(tmp_path, monkeypatch, cache, copying_compiler):
    source = write(tmp_path, "env.cc")
    text = f"""{copying_compiler} "$@"\ncase "$*" in *env.so*) echo '//' >> '{source}';; esac"""
    monkeypatch.setenv("CXX", compiler_script(tmp_path / "cxx", text))
    with pytest.raises(CompileError, match="expected headers that do not change"):
        envfleet.compile(source)
    assert not list(cache.iterdir())


def test_relative_flags_are_those_of_the_working_directory(tmp_path, monkeypatch):
    source = write(tmp_path, "env.cc", env_id="Relative-v0", start="kStart", include="#include <start.h>")
    for name, value in (("a", 21), ("b", 22)):
        (tmp_path / name / "inc").mkdir(parents=True)
        (tmp_path / name / "inc" / "start.h").write_text(f"constexpr float kStart = {value};")
        monkeypatch.chdir(tmp_path / name)
        envfleet.compile(source, flags=["-O0", "-Iinc"])
        assert first_obs("Relative-v0") == value


def test_headers_of_the_system_and_links_to_them_are_noticed(tmp_path):
    source = write(tmp_path, "env.cc", env_id="System-v0", start="kStart", include="#include <start.h>")
    for name, value in (("v1", 31), ("v2", 32)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "start.h").write_text(f"constexpr float kStart = {value};")
    link = tmp_path / "current"
    for name, value in (("v1", 31), ("v2", 32)):
        link.unlink(missing_ok=True)
        link.symlink_to(tmp_path / name)
        envfleet.compile(source, flags=["-O0", "-isystem", str(link)])
        assert first_obs("System-v0") == value


def test_files_that_flags_name_are_noticed(tmp_path):
    source = write(tmp_path, "env.cc", env_id="Response-v0", start="START")
    for value in (41, 42):
        (tmp_path / "flags.txt").write_text(f"-O0 -DSTART={value}")
        envfleet.compile(source, flags=[f"@{tmp_path / 'flags.txt'}"])
        assert first_obs("Response-v0") == value


def test_the_key_has_the_cpu_the_compiler_and_the_meaning_of_the_flags(tmp_path, monkeypatch):
    source = write(tmp_path, "env.cc")
    first = compiler_script(tmp_path / "first", "echo 1.0")
    second = compiler_script(tmp_path / "second", "echo 1.0")

    def cpu(flags: str, clock: str) -> str:
        path = tmp_path / "cpuinfo"
        path.write_text(
            f"processor\t: 0\nmodel name\t: A\nflags\t\t: {flags}\ncpu MHz\t\t: {clock}\n\nprocessor\t: 1\n"
        )
        return cpu_description(str(path))

    def key(compiler: str = first, flags: tuple[str, ...] = ("-march=native",), description: str = "") -> str:
        return cache_key(source, [compiler], flags, description)

    assert platform.machine() in cpu_description()
    assert key(description=cpu("fma", "1")) == key(description=cpu("fma", "2"))
    assert key(description=cpu("fma", "1")) != key(description=cpu("fma avx512f", "1"))
    assert key(first) != key(second)
    absolute, relative = ("-O2", "-DX=a/b", f"-I{tmp_path}"), ("-I", "inc")
    before = key(flags=absolute), key(flags=relative)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert key(flags=absolute) == before[0]
    assert key(flags=relative) != before[1]
    monkeypatch.setenv("CPATH", str(tmp_path))
    assert key(flags=absolute) != before[0]


def _swap_bytes(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def _make_link(path: Path) -> None:
    path.rename(path.with_suffix(".moved"))
    path.symlink_to(path.with_suffix(".moved"))


DAMAGES = {
    "empty": lambda library, manifest: os.truncate(library, 0),
    "half": lambda library, manifest: os.truncate(library, library.stat().st_size // 2),
    "one byte": lambda library, manifest: _swap_bytes(library),
    "missing": lambda library, manifest: library.unlink(),
    "writable by others": lambda library, manifest: library.chmod(0o666),
    "manifest writable by others": lambda library, manifest: manifest.chmod(0o664),
    "a link": lambda library, manifest: _make_link(library),
    "of another user": lambda library, manifest: os.chown(library, 12345, -1),
    "manifest of no form": lambda library, manifest: manifest.write_text('{"sha256": [], "inputs": 3}'),
}


def test_a_library_that_does_not_verify_is_built_again(tmp_path, cache, monkeypatch, copying_compiler):
    """In a process of its own: half a library ends whoever loads it."""
    monkeypatch.setenv("CXX", copying_compiler)
    source = write(tmp_path, "env.cc")
    code = f"import envfleet; envfleet.compile({str(source)!r}); print(envfleet.make('Copied-v0').reset()[0][0, 0])"

    def compile_in_child() -> None:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "7.0\n", "")

    compile_in_child()
    (library,), (manifest,) = cache.glob("*.so"), cache.glob("*.json")
    good = library.read_bytes()
    for name, damage in DAMAGES.items():
        if name == "of another user" and os.geteuid() != 0:
            continue
        before = library.stat()
        with library.open("rb"):  # while it is open, no new file gets its number
            damage(library, manifest)
            compile_in_child()
        after = library.lstat()
        assert library.read_bytes() == good, name
        assert (after.st_uid, stat.S_IMODE(after.st_mode)) == (os.geteuid(), 0o644), name
        assert after.st_ino != before.st_ino, name
    before = library.stat()
    compile_in_child()
    assert library.stat().st_ino == before.st_ino  # what verifies is used as it is


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_cache_folder_that_others_can_write_to_is_refused(tmp_path, cache, mode):
    cache.mkdir()
    cache.chmod(mode)
    with pytest.raises(CompileError, match=r"that only you can write to, got .*cache.*chmod go-w.*ENVFLEET_CACHE"):
        envfleet.compile(write(tmp_path, "env.cc"))
    assert not list(cache.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_cache_folder_of_another_user_is_refused(tmp_path, cache):
    cache.mkdir()
    os.chown(cache, 12345, -1)
    with pytest.raises(CompileError, match="belongs to user 12345"):
        envfleet.compile(write(tmp_path, "env.cc"))


def test_whatever_the_umask_is_the_cache_is_its_owners(tmp_path, monkeypatch, copying_compiler):
    monkeypatch.setenv("CXX", copying_compiler)
    monkeypatch.setenv("ENVFLEET_CACHE", str(tmp_path / "new" / "cache"))
    umask = os.umask(0)
    try:
        envfleet.compile(write(tmp_path, "env.cc"))
    finally:
        os.umask(umask)
    made = [tmp_path / "new", *(tmp_path / "new").rglob("*")]
    assert len(made) == 4
    assert not any(path.stat().st_mode & 0o022 for path in made)


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path, cache, monkeypatch, copying_compiler):
    """The limit on a file's size stands for a full disk. The compiler itself lifts it, and has room."""
    source = write(tmp_path, "env.cc")
    monkeypatch.setenv(
        "CXX", compiler_script(tmp_path / "cxx", f'ulimit -S -f unlimited; exec {copying_compiler} "$@"')
    )
    code = f"""
import resource, envfleet
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
try:
    envfleet.compile({str(source)!r})
except envfleet.CompileError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "env.cc could not be built in the cache" in done.stdout, done.stderr
    assert "File too large" in done.stdout
    assert not list(cache.iterdir())


def load_on_a_ray_worker(library: Path, folder: Path, before: str = "", after: str = "", **variables: str) -> list[str]:
    """Load a plug-in twice as a Ray worker does, in a process of its own with `folder` for temporary files.

    Returns what the process printed, first of all whether the plug-in is loaded.
    """
    code = textwrap.dedent(f"""
        from pathlib import Path
        from envfleet import CompileError, _native
        from envfleet.building.ray_envs import _load_library
        name, data = {library.name!r}, Path({str(library)!r}).read_bytes()
        {before}
        for _ in range(2):
            _load_library(name, data)
        print("Faulty-v0" in _native.list_env_types())
        {after}
    """)
    environment = {**os.environ, "TMPDIR": str(folder), **variables}
    done = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()


def test_a_ray_worker_loads_no_library_that_others_wrote(tmp_path: Path, cache: Path, probe_library: Path) -> None:
    """Of the same name and size, as another user can leave it where everybody can write."""
    assert load_on_a_ray_worker(probe_library, tmp_path) == ["True"]
    (library,) = cache.glob("*.so")
    good = library.read_bytes()
    library.write_bytes(b"x" * len(good))
    library.chmod(0o666)
    assert load_on_a_ray_worker(probe_library, tmp_path) == ["True"]
    assert library.read_bytes() == good


def test_a_cache_folder_of_a_ray_worker_that_others_can_write_to_is_refused(
    tmp_path: Path, cache: Path, probe_library: Path
) -> None:
    refused = f"""Path({str(cache)!r}).chmod(0o777)
        try:
            _load_library(name, b"never loaded")
        except CompileError as error:
            print(error)
    """
    _, refusal = load_on_a_ray_worker(probe_library, tmp_path, after=refused)
    assert refusal == (
        f"make() expected a cache folder on the Ray worker that only you can write to, got {cache}, which other users "
        f"can write to (mode 777); run: chmod go-w '{cache}' if it is yours, or pass "
        "runtime_env={'env_vars': {'ENVFLEET_CACHE': ...}} with a folder of your own"
    )


def test_another_user_cannot_keep_a_ray_worker_from_loading(tmp_path: Path, probe_library: Path) -> None:
    """By a folder in /tmp that was there first."""
    for name in ("envfleet", "envfleet-plugins", f"envfleet-plugins-{os.getuid()}"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o777)
    assert load_on_a_ray_worker(probe_library, tmp_path) == ["True"]


UNKNOWN_USER = "def no_home(): raise RuntimeError('Could not determine home directory.')\n        Path.home = no_home"


@pytest.mark.parametrize("before", ["", UNKNOWN_USER], ids=["unusable home", "no home"])
def test_a_ray_worker_without_a_home_folder(tmp_path: Path, probe_library: Path, before: str) -> None:
    temporary, home = tmp_path / "temporary", tmp_path / "home"
    temporary.mkdir()
    home.touch()  # no folder: stands for one that is read-only, since root can write to those
    loaded = load_on_a_ray_worker(
        probe_library, temporary, before, HOME=str(home), ENVFLEET_CACHE="", XDG_CACHE_HOME=""
    )
    assert loaded == ["True"]
    assert not list(temporary.iterdir())


def test_a_ray_worker_without_any_room(tmp_path: Path, probe_library: Path) -> None:
    """The limit on a file's size stands for full disks."""
    refused = """import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        try:
            _load_library(name, data + b"another")
        except CompileError as error:
            print(error)
    """
    _, refusal = load_on_a_ray_worker(probe_library, tmp_path, after=refused)
    assert "could not be stored on the Ray worker" in refusal
    assert "File too large" in refusal
    assert "runtime_env={'env_vars': {'ENVFLEET_CACHE': ...}}" in refusal
