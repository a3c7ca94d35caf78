"""The plug-in with the MuJoCo envs: loading, states, errors. What the envs compute is in tests/oracle."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import envfleet
from envfleet import ConfigError, EnvError, StateError
from envfleet.compiling import build
from envfleet.envs.mujoco import IDS
from envfleet.envs.mujoco_files import asset_folder
from envfleet.envs.mujoco_plugin import _start, flags_for, installed_mujoco, plugin_folder

pytest.importorskip("mujoco")


def actions_for(pool: envfleet.Pool, num_batches: int, seed: int = 0) -> np.ndarray:
    space, rng = pool.spec.action_space, np.random.default_rng(seed)
    return rng.uniform(space.low, space.high, (num_batches, pool.num_envs, *space.shape)).astype(np.float32)


def rows_of(pool: envfleet.Pool, actions: np.ndarray) -> list[list]:
    batches = [pool.step(own) for own in actions]
    columns = [[b.obs, b.reward, b.terminated, b.truncated, *b.info.values()] for b in batches]
    return [[np.array(column).tolist() for column in own] for own in columns]


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Python code in a process of its own: what is loaded here stays loaded."""
    command = [sys.executable, "-W", "error::UserWarning", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=240)


# --- states ---------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", IDS)
def test_states_go_back_bit_for_bit_and_into_another_pool(env_id: str) -> None:
    pool = envfleet.make_pool(env_id, num_envs=2, max_episode_steps=15)
    pool.reset(seed=1)
    before, after = np.split(actions_for(pool, 30), 2)
    rows_of(pool, before[:7])
    states = pool.get_state()
    expected = rows_of(pool, after)
    pool.set_state(states)
    pool.attributes_of(0)  # to read is to change nothing
    assert rows_of(pool, after) == expected
    other = envfleet.make_pool(env_id, num_envs=2, max_episode_steps=15)
    other.reset(seed=99)
    other.set_state(states)
    assert rows_of(other, after) == expected
    pool.close()
    other.close()


def test_a_state_of_another_model_is_refused() -> None:
    ant, hopper = envfleet.make_pool("Ant-v5"), envfleet.make_pool("Hopper-v5")
    ant.reset(seed=0)
    hopper.reset(seed=0)
    with pytest.raises(StateError):
        hopper.set_state(ant.get_state())
    ant.close()
    hopper.close()


def test_async_batches_hold_the_rows_of_synchronous_ones() -> None:
    num_envs = 6
    twin = envfleet.make_pool("Ant-v5", num_envs=num_envs, max_episode_steps=12)
    actions = actions_for(twin, 40)
    batches = [twin.reset(seed=4), *(twin.step(own) for own in actions)]
    pool = envfleet.make_pool("Ant-v5", num_envs=num_envs, batch_size=2, num_threads=2, max_episode_steps=12)
    pool.async_reset(seed=4)
    count = [0] * num_envs
    for _ in range(60):
        batch = pool.recv()
        for row, env_id in enumerate(batch.env_id.tolist()):
            own = batches[count[env_id]]
            np.testing.assert_array_equal(batch.obs[row], own.obs[env_id])
            assert batch.reward[row] == own.reward[env_id]
            count[env_id] += 1
        pool.send(np.array([actions[count[i] - 1][i] for i in batch.env_id.tolist()]), batch.env_id)
    assert sum(count) == 120
    pool.close()
    twin.close()


def test_disabled_autoreset_and_parameters_of_each_env() -> None:
    pool = envfleet.make_pool(
        "InvertedPendulum-v5", num_envs=3, autoreset_mode=AutoresetMode.DISABLED, reset_noise_scale=[0.0, 0.1, 0.0]
    )
    obs = pool.reset(seed=0).obs
    assert (obs[[0, 2]] == 0).all()
    assert (obs[1] != 0).all()
    pool.close()
    with pytest.raises(ConfigError, match="the same spaces for all envs, env 1 has others"):
        envfleet.make_pool("Ant-v5", num_envs=2, include_cfrc_ext_in_observation=[True, False])


def test_without_post_constraint_there_are_no_contact_forces() -> None:
    with_forces, without = (envfleet.make_pool("Ant-v5", post_constraint=own) for own in (True, False))
    for pool in (with_forces, without):
        pool.reset(seed=0)
    actions = actions_for(without, 40)
    obs, obs_without = (np.array([pool.step(own).obs[0] for own in actions]) for pool in (with_forces, without))
    assert obs[:, 27:].any()
    assert not obs_without[:, 27:].any()
    np.testing.assert_array_equal(obs[:, :27], obs_without[:, :27])
    with_forces.close()
    without.close()


# --- what is wrong ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env_id", "params", "message"),
    [
        ("Ant-v5", {"xml_file": "/nowhere/ant.xml"}, "/nowhere/ant.xml, which is not there"),
        ("Ant-v5", {"xml_file": "spider.xml"}, "assets/spider.xml, which is not there"),
        ("Ant-v5", {"xml_file": str(asset_folder())}, "which is a folder"),
        ("Pusher-v5", {"xml_file": "ant.xml"}, "ant.xml expected a body named tips_arm, got none"),
        (
            "Hopper-v5",
            {"xml_file": "inverted_pendulum.xml"},
            "at least 3 positions, 1 velocities and an actuator, got 2",
        ),
        ("Ant-v5", {"main_body": "head"}, "expected a body named head, got none"),
        ("Ant-v5", {"main_body": 99}, "main_body expected a number below 14, got 99"),
        ("Ant-v5", {"healthy_z_range": (0, 1, 2)}, r"healthy_z_range expected a pair \(low, high\), got 3 numbers"),
        ("Ant-v5", {"frame_skip": 0}, "frame_skip expected at least 1, got 0"),
        ("Ant-v5", {"reset_noise_scale": -1.0}, "reset_noise_scale expected a finite number >= 0, got -1"),
        ("Ant-v5", {"healty_reward": 1.0}, "did you mean 'healthy_reward'"),
        ("Ant-v4", {"frame_skip": 2}, "unknown option 'frame_skip'"),
        ("Ant-v5", {"default_camera_config": 3}, "expected a dict of numbers and arrays, got int: 3"),
        (
            "Ant-v5",
            {"default_camera_config": {"distance": object()}},
            "expected a dict of numbers and arrays, got dict",
        ),
        # MuJoCo would end the process when it draws.
        ("Ant-v5", {"camera_id": 99}, r"camera_id expected -1 \(the free one\) or a number below 1.*got 99"),
        ("Ant-v4", {"camera_id": -3}, "got -3"),
        (
            "Ant-v5",
            {"camera_id": 0, "camera_name": "track"},
            "camera_id and camera_name expected one of the two, got both",
        ),
        ("Ant-v5", {"width": 0}, "width expected 1 to 16777216, got 0"),
        ("Ant-v5", {"height": -480}, "height expected 1 to 16777216, got -480"),
        # Only what Gymnasium takes None for is its default then.
        ("Ant-v5", {"healthy_reward": None}, "expected a number for healthy_reward, got NoneType: None"),
        ("Ant-v5", {"xml_file": None}, "expected a string .* for xml_file, got NoneType: None"),
        ("Ant-v5", {"xml_file": "/tmp/\udcff.xml"}, "expected a string .UTF-8, no NUL. for xml_file"),
        (
            "Ant-v5",
            {"healthy_z_range": [(0, 1), (0,)]},
            r"healthy_z_range expected a pair \(low, high\), got 1 numbers",
        ),
        ("Ant-v5", {"healthy_reward": 10**400}, "expected a number for healthy_reward, got int: 1000"),
    ],
)
def test_wrong_parameters_say_what_was_expected(env_id: str, params: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        envfleet.make(env_id, num_envs=2, **params)


@pytest.mark.parametrize("content", ["", "<mujoco", "<mujoco><legs/></mujoco>", "\x00\x01"])
def test_a_corrupt_model_is_an_exception_with_its_path(tmp_path: Path, content: str) -> None:
    (tmp_path / "broken.xml").write_text(content)
    with pytest.raises(ConfigError, match=r"xml_file .*broken\.xml cannot be loaded"):
        envfleet.make("Ant-v5", xml_file=tmp_path / "broken.xml")


def test_a_pipe_is_no_model_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.xml")
    with pytest.raises(ConfigError, match=r"pipe\.xml, which is no file"):
        envfleet.make("Ant-v5", xml_file=tmp_path / "pipe.xml")


def test_actuators_without_a_range_take_any_control(tmp_path: Path) -> None:
    text = (asset_folder() / "ant.xml").read_text().replace('ctrllimited="true" ctrlrange="-1.0 1.0"', "", 1)
    (tmp_path / "free.xml").write_text(text)
    pool = envfleet.make_pool("Ant-v5", xml_file=tmp_path / "free.xml")
    space = pool.spec.action_space
    assert (space.low.tolist(), space.high.tolist()) == ([-np.inf] + [-1.0] * 7, [np.inf] + [1.0] * 7)
    pool.reset(seed=0)
    pool.step(np.array([[2.5] + [0.0] * 7], np.float32))
    assert pool.attributes_of(0)["ctrl"][0] == 2.5
    pool.close()


def test_a_state_fits_a_copy_of_its_model_and_no_other_model(tmp_path: Path) -> None:
    path = tmp_path / "ant.xml"
    text = (asset_folder() / "ant.xml").read_text()

    def made_with(content: str) -> envfleet.Pool:
        path.unlink(missing_ok=True)
        path.write_text(content)
        pool = envfleet.make_pool("Ant-v5", xml_file=path)
        pool.reset(seed=0)
        return pool

    first, copy, other = made_with(text), made_with(text), made_with(text.replace("0.01", "0.02"))
    action = np.zeros((1, 8), np.float32)
    state, expected = first.get_state(), first.step(action).obs
    copy.step(action)
    copy.set_state(state)
    np.testing.assert_array_equal(copy.step(action).obs, expected)
    with pytest.raises(StateError, match="expected env 0 with the parameters"):
        other.set_state(state)
    for pool in (first, copy, other):
        pool.close()


def test_a_model_that_was_changed_is_not_drawn_for_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "ant.xml"
    path.write_text((asset_folder() / "ant.xml").read_text())
    envs = envfleet.make("Ant-v5", num_envs=1, xml_file=path, render_mode="rgb_array")
    envs.reset(seed=0)
    path.write_text((asset_folder() / "humanoid.xml").read_text())
    with pytest.raises(ConfigError, match=r"ant\.xml was changed since the pool was made"):
        envs.render()
    envs.close()


def test_a_model_that_was_written_anew_is_loaded_anew(tmp_path: Path) -> None:
    path = tmp_path / "ant.xml"
    text = (asset_folder() / "ant.xml").read_text()
    path.write_text(text)
    first = envfleet.make_pool("Ant-v5", xml_file=path)
    path.write_text(text.replace('timestep="0.01"', 'timestep="0.002"'))
    second = envfleet.make_pool("Ant-v5", xml_file=path)
    for pool in (first, second):
        pool.reset(seed=0)
        pool.step(np.zeros((1, 8), np.float32))
    assert first.attributes_of(0)["time"] == pytest.approx(0.05)
    assert second.attributes_of(0)["time"] == pytest.approx(0.01)
    first.close()
    second.close()


def test_a_part_or_a_mesh_that_was_written_anew_is_loaded_anew(tmp_path: Path) -> None:
    for folder in ("parts", "meshes"):
        (tmp_path / folder).mkdir()
    (tmp_path / "scene.xml").write_text('<mujoco><compiler meshdir="meshes"/><include file="parts/ant.xml"/></mujoco>')
    ant = (asset_folder() / "ant.xml").read_text().replace("<asset>", '<asset><mesh name="block" file="block.obj"/>')
    ant = ant.replace("</worldbody>", '<body><freejoint/><geom type="mesh" mesh="block"/></body></worldbody>')
    pools = []
    for timestep, size in ((0.01, 1), (0.02, 1), (0.02, 3)):
        (tmp_path / "parts" / "ant.xml").write_text(ant.replace('timestep="0.01"', f'timestep="{timestep}"'))
        mesh = tmp_path / "meshes" / "block.obj"
        mesh.write_text(f"v 0 0 0\nv {size} 0 0\nv 0 {size} 0\nv 0 0 {size}\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n")
        # MuJoCo itself takes a mesh of the same second for the same mesh.
        os.utime(mesh, (1e9 + size, 1e9 + size))
        pools.append(envfleet.make_pool("Humanoid-v5", xml_file=tmp_path / "scene.xml"))
        pools[-1].reset(seed=0)
        pools[-1].step(np.zeros((1, 8), np.float32))
    assert [own.attributes_of(0)["time"] for own in pools] == pytest.approx([0.05, 0.1, 0.1])
    # The masses of bodies are in the observation.
    middle, last = (own.step(np.zeros((1, 8), np.float32)).obs for own in pools[1:])
    assert (middle != last).any()
    for pool in pools:
        pool.close()


def test_an_error_of_the_engine_breaks_its_env_alone(tmp_path: Path) -> None:
    """MuJoCo would end the process: here its stack is too small as soon as legs touch the ground."""
    text = (asset_folder() / "ant.xml").read_text()
    (tmp_path / "small.xml").write_text(text.replace("<option", '<size memory="10K"/><option', 1))
    pool = envfleet.make_pool("Ant-v5", num_envs=4, xml_file=tmp_path / "small.xml", num_threads=2)
    pool.reset(seed=0)
    actions = actions_for(pool, 40)
    with pytest.raises(EnvError, match="MuJoCo: mj_stackAlloc: out of memory") as raised:
        rows_of(pool, actions)
    assert np.isfinite(raised.value.batch.obs).all()
    # Rebuilt, it goes on.
    broken = np.array([fault.env_id for fault in raised.value.faults], np.int32)
    assert 0 < len(broken) < 4
    pool.reset(env_ids=broken)
    pool.step(actions[0][broken], broken)
    pool.close()
    twin = envfleet.make_pool("Ant-v5")
    assert np.isfinite(twin.reset(seed=0).obs).all()
    twin.close()


@pytest.mark.parametrize("num_envs", [1, 2])
def test_an_env_is_rebuilt_with_the_model_that_its_pool_was_made_with(tmp_path: Path, num_envs: int) -> None:
    text = (asset_folder() / "ant.xml").read_text().replace("<option", '<size memory="10K"/><option', 1)
    path = tmp_path / "ant.xml"
    path.write_text(text)
    pool = envfleet.make_pool("Ant-v5", num_envs=num_envs, xml_file=path)
    pool.reset(seed=0)
    with pytest.raises(EnvError, match="out of memory"):
        rows_of(pool, actions_for(pool, 60))
    # So many others that nothing but the pool itself may hold its model.
    for name in IDS:
        envfleet.make_pool(name).close()
    # Of another size now.
    path.write_text((asset_folder() / "humanoid.xml").read_text())
    assert pool.reset().obs.shape == (num_envs, 105)
    pool.close()


# --- loading ----------------------------------------------------------------------------------

_MAKE = "import envfleet; print(envfleet.make('Hopper-v5', num_envs=2{options}).reset(seed=0)[0][0, 0])"


def copied_mujoco(folder: Path, version: str, header_version: str | None = None) -> Path:
    """This Python's MuJoCo as another version: what the plug-in meets after an upgrade. The folder to put first."""
    mujoco = installed_mujoco()
    package = folder / "mujoco"
    package.mkdir(parents=True)
    for entry in mujoco.library.parent.iterdir():
        if entry not in (mujoco.library, mujoco.include):
            (package / entry.name).symlink_to(entry)
    (package / f"libmujoco.so.{version}").symlink_to(mujoco.library)
    shutil.copytree(mujoco.include, package / "include")
    header = package / "include" / "mujoco" / "mujoco.h"
    if header_version is not None:
        lines = header.read_text().splitlines()
        header.write_text(
            "\n".join(
                f"#define mjVERSION_HEADER {header_version}" if "mjVERSION_HEADER" in own else own for own in lines
            )
        )
    return folder


def test_importing_and_listing_load_nothing() -> None:
    code = (
        "import sys, envfleet; ids = envfleet.list_all_envs(); "
        "print('Ant-v5' in ids, 'mujoco' in sys.modules, 'libmujoco' in open('/proc/self/maps').read())"
    )
    assert run(code).stdout.split() == ["True", "False", "False"]


def test_without_mujoco_the_error_names_the_extra(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as util\nfind = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'mujoco' else find(name, *rest)\n"
    )
    found = run(_MAKE.format(options=""), PYTHONPATH=str(tmp_path))
    assert 'pip install "envfleet[mujoco]"' in found.stderr
    assert found.stderr.splitlines()[-1].startswith("envfleet.errors.MissingExtraError")


@pytest.mark.soak
def test_another_version_is_built_from_source_and_cached(tmp_path: Path) -> None:
    folder = copied_mujoco(tmp_path / "other", "99.0.0")
    environment = {"PYTHONPATH": str(folder), "ENVFLEET_CACHE": str(tmp_path / "cache")}
    expected = run(_MAKE.format(options=", backend='native'"))
    built = run(_MAKE.format(options=", backend='native'"), **environment)
    assert (built.stdout, built.stderr) == (expected.stdout, "")
    assert len(list((tmp_path / "cache").glob("*.so"))) == 1
    again = run(_MAKE.format(options=", backend='native'"), CXX="/nowhere/c++", **environment)
    assert again.stdout == ""
    assert "CXX names the compiler" in again.stderr


def test_without_a_compiler_python_runs_it_and_a_warning_says_why(tmp_path: Path) -> None:
    folder = copied_mujoco(tmp_path / "other", "99.0.0")
    environment = {"PYTHONPATH": str(folder), "CXX": "/nowhere/c++", "ENVFLEET_CACHE": str(tmp_path / "cache")}
    code = (
        "import warnings, envfleet\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always')\n"
        "    spec = envfleet.make_spec('Hopper-v5', num_envs=2)\n"
        "print(spec.backend, [str(own.message) for own in seen if 'several times slower' in str(own.message)])\n"
    )
    found = run(code, **environment)
    assert "processes" in found.stdout, found.stderr
    assert "must be compiled for MuJoCo 99.0.0" in found.stdout
    assert "'/nowhere/c++', which is not on the PATH" in found.stdout
    refused = run(_MAKE.format(options=", backend='native'"), **environment)
    assert refused.stderr.splitlines()[-1].startswith("envfleet.errors.CompileError: the native MuJoCo envs must be")


def test_headers_of_another_version_than_the_library_are_refused(tmp_path: Path, monkeypatch) -> None:
    """The structs would not fit: checked before anything is called. A small source stands for the plug-in's."""
    monkeypatch.setenv("ENVFLEET_CACHE", str(tmp_path / "cache"))
    folder = copied_mujoco(tmp_path / "other", "99.0.0", header_version="99000000")
    mujoco = installed_mujoco()
    source = tmp_path / "small.cc"
    sources = plugin_folder() / "mujoco"
    source.write_text("".join(f'#include "{sources / name}.cc"\n' for name in ("plugin", "model", "trap")))
    other = replace(mujoco, include=folder / "mujoco" / "include")
    plugin = build(source, flags=["-O0", *flags_for(other)])
    with pytest.raises(
        envfleet.CompileError, match=r"expected the library that they were built against, got .*libmujoco"
    ):
        _start(plugin, mujoco, asset_folder())
