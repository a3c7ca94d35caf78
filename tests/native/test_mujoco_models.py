"""The model files of native MuJoCo envs: damaged, changed, written anew, and those that MuJoCo itself fails on."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from mujoco_rollouts import actions_for, rows_of

import envfleet
from envfleet import ConfigError, EnvError, StateError
from envfleet.envs.mujoco_plugin import asset_folder
from envfleet.families.mujoco import IDS

pytest.importorskip("mujoco")


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
    assert pool.get_attrs(0)["ctrl"][0] == 2.5
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
    with pytest.raises(ConfigError, match=r"ant\.xml has changed since the pool was made"):
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
    assert first.get_attrs(0)["time"] == pytest.approx(0.05)
    assert second.get_attrs(0)["time"] == pytest.approx(0.01)
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
    assert [own.get_attrs(0)["time"] for own in pools] == pytest.approx([0.05, 0.1, 0.1])
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
