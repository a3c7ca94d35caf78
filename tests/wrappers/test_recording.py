"""Videos of grids: the file, its frames, and what is refused."""

from __future__ import annotations

import builtins
import gc
import os
import subprocess
import tempfile
import weakref
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import envfleet
from envfleet.core.files import new_file
from envfleet.wrappers import ClipReward, RecordGrid, record

imageio = pytest.importorskip("imageio.v3")

MODES = ["next_step", "same_step", "disabled"]


class Lamp(gymnasium.Env):
    """Shines brighter with each step."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 (as Gymnasium has it)
    observation_space = gymnasium.spaces.Box(0, 10, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, width: int = 21, render_mode: str | None = None) -> None:
        self.width, self.render_mode, self.count = width, render_mode, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.count += 1
        return np.full(1, self.count, np.float32), 1.0, self.count == 3, False, {}

    def render(self):
        return np.full((15, self.width, 3), 60 * self.count, np.uint8)


def lamps(mode="next_step", env=Lamp, **options):
    return envfleet.make(
        env, **{"num_envs": 4, "backend": "serial", "render_mode": "rgb_array", "autoreset_mode": mode, **options}
    )


def frames_of(path, height, width):
    """The pictures of an MP4. Not by imageio_ffmpeg.read_frames(), which leaves its pipes open."""
    ffmpeg = pytest.importorskip("imageio_ffmpeg").get_ffmpeg_exe()
    command = [ffmpeg, "-loglevel", "error", "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    raw = subprocess.run(command, capture_output=True, check=True).stdout
    return np.frombuffer(raw, np.uint8).reshape(-1, height, width, 3)


class Dark(Lamp):
    """Renders nothing if it is too narrow."""

    def render(self):
        return super().render() if self.width else None


def test_an_env_without_a_frame_is_named(tmp_path):
    pool = envfleet.make(Dark, num_envs=3, backend="serial", render_mode="rgb_array", env_kwargs=[{}, {}, {"width": 0}])
    with pool as envs, pytest.raises(envfleet.ConfigError, match=r"of env 2 .*got NoneType; fix its render\(\)"):
        record(envs, tmp_path / "dark.gif", env_ids=[2, 0], num_frames=2)


def test_a_gif_shows_each_step(tmp_path):
    with lamps() as envs:
        path = record(envs, tmp_path / "new" / "lamps.gif", num_frames=6)
        frames = imageio.imread(path)
        assert frames.shape == (6, 30, 42, 3)
        assert frames[:, 0, 0, 0].tolist() == [0, 60, 120, 180, 0, 60]
        assert imageio.immeta(path)["duration"] == 100  # ms, of render_fps 10
        envs.step([0] * 4)  # still open


@pytest.mark.parametrize("mode", MODES)
def test_an_mp4_shows_each_step(tmp_path, mode):
    pytest.importorskip("imageio_ffmpeg")
    with lamps(mode) as envs:
        path = record(envs, tmp_path / "lamps.mp4", policy=lambda obs: np.zeros(len(obs), int), num_frames=9, seed=0)
    gc.collect()  # what the encoder may have left open would be warned of here
    frames = frames_of(path, 30, 42)
    assert len(frames) == 9
    assert abs(frames[1].mean() - 60) < 8


def test_odd_sizes_and_native_envs(tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    pytest.importorskip("pygame")
    with envfleet.make("CartPole-v1", num_envs=64, render_mode="rgb_array") as envs:
        path = record(envs, tmp_path / "poles.mp4", num_frames=5, env_ids=[3, 9, 60], max_width=451, fps=50)
    # Two columns and rows of 600 x 400, shrunk by 3.
    assert len(frames_of(path, 266, 400)) == 5


def test_a_video_for_each_trigger(tmp_path):
    grid = RecordGrid(lamps(), tmp_path / "at-{step}.gif", num_frames=3, trigger=lambda step: step % 10 == 0)
    with ClipReward(grid, 0.0, 0.5) as envs:
        envs.reset(seed=0)
        for _ in range(21):
            envs.step([0] * 4)
    assert [path.name for path in grid.paths] == ["at-0.gif", "at-10.gif", "at-20.gif"]
    # The last one was cut short by close().
    assert [len(imageio.imread(path)) for path in grid.paths] == [3, 3, 2]


def test_send_and_recv(tmp_path):
    with RecordGrid(lamps(), tmp_path / "lamps.gif", num_frames=3) as envs:
        envs.async_reset()
        envs.recv()
        for _ in range(2):
            envs.send([0] * 4)
            envs.recv()
        assert not envs.recording
        assert len(imageio.imread(envs.paths[0])) == 3


class Fuse(Lamp):
    """Ends its process with the second step."""

    def step(self, action):
        if self.count == 1:
            os._exit(3)
        return super().step(action)


def test_an_env_that_cannot_be_rendered_any_more_does_not_hide_what_ended_it(tmp_path):
    pool = lamps(num_envs=2, env=[Lamp, Fuse], backend="processes", num_workers=2)
    with RecordGrid(pool, tmp_path / "lamps.gif") as envs:
        envs.reset(seed=0)
        envs.step([0, 0])
        with (
            pytest.warns(RuntimeWarning, match="RecordGrid could not process the rows"),
            pytest.raises(envfleet.WorkerDied, match=r"env 1 raised in step\(\)") as caught,
        ):
            envs.step([0, 0])
        assert caught.value.batch.obs[0] == 2
        envs.reset()
        envs.step([0, 0])


def test_a_video_survives_a_wrapper_that_is_dropped(tmp_path):
    envs = RecordGrid(lamps(), tmp_path / "lamps.gif")
    envs.reset()
    envs.step([1] * 4)
    gone = weakref.ref(envs)
    del envs
    gc.collect()
    assert gone() is None
    assert len(imageio.imread(tmp_path / "lamps.gif")) == 2


def test_refusals(tmp_path):
    path = tmp_path / "x.gif"
    with lamps() as envs:
        for options in (
            {"path": tmp_path / "x.avi"},
            {"path": path, "num_frames": 0},
            {"path": path, "env_ids": [4]},
            {"path": path, "env_ids": []},
            {"path": path, "trigger": bool},
        ):
            with pytest.raises(envfleet.ConfigError, match="expected"):
                RecordGrid(envs, **options)
    with lamps(batch_size=2, backend="threads") as envs, pytest.raises(envfleet.ConfigError, match="batch_size=2"):
        record(envs, path)
    with lamps(render_mode=None) as envs, pytest.raises(envfleet.ConfigError, match="render_mode='rgb_array'"):
        record(envs, path)
    assert not path.exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("num_frames", value) for value in (2.5, float("nan"), None, "3", True, -1)),
        *(("fps", value) for value in (-1, 0, float("nan"), float("inf"), 1e-9, "a", True)),
        *(("max_width", value) for value in (0, -5, 2.5, None)),
        *(("env_ids", value) for value in ([0.7], "01", 5, [-1], [0, 0], [None])),
        ("trigger", 5),
        ("path", 5),
    ],
)
def test_wrong_arguments_are_refused_where_they_are_given(tmp_path, name, value):
    path = tmp_path / "x{step}.gif"
    with lamps() as envs:
        with pytest.raises(envfleet.ConfigError, match="expected"):
            RecordGrid(envs, **{"path": path, name: value})
        if name != "trigger":
            with pytest.raises(envfleet.ConfigError, match="expected"):
                record(envs, **{"path": path, name: value})
    assert not list(tmp_path.iterdir())


def test_a_policy_that_cannot_be_called_is_refused(tmp_path):
    with lamps() as envs, pytest.raises(envfleet.ConfigError, match="policy expected a callable"):
        record(envs, tmp_path / "x.gif", policy=5)


def test_a_read_only_file_is_not_replaced():
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as folder:  # tmp_path is inside one that is its user's alone
        path = Path(folder, "kept.gif")
        path.write_text("kept")
        path.chmod(0o444)
        os.chmod(folder, 0o777)
        try:
            if user == 0:
                os.seteuid(65534)  # root may write to any file
            with pytest.raises(PermissionError), new_file(path):
                pass
        finally:
            os.seteuid(user)
        assert os.listdir(folder) == ["kept.gif"]
        assert path.read_text() == "kept"


def test_a_file_may_have_the_longest_name(tmp_path):
    path = tmp_path / ("x" * 251 + ".gif")
    with new_file(path) as written:
        written.write_text("new")
    assert path.read_text() == "new"


@pytest.mark.parametrize("suffix", [".gif", ".mp4"])
@pytest.mark.parametrize("fails_at", [0, 2])
def test_a_recording_that_fails_leaves_the_file_that_was_there(tmp_path, suffix, fails_at):
    pytest.importorskip("imageio_ffmpeg")
    path = tmp_path / f"lamps{suffix}"
    path.write_text("what was there before")
    num_calls = iter(range(10))

    def policy(obs):
        if next(num_calls) == fails_at:
            raise KeyboardInterrupt
        return [0] * 4

    with lamps() as envs:
        with pytest.raises(KeyboardInterrupt):
            record(envs, path, policy, num_frames=5)
        assert path.read_text() == "what was there before"
        assert list(tmp_path.iterdir()) == [path]
        record(envs, path, lambda obs: [0] * 4, num_frames=5)
    assert path.stat().st_size > 100
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_to_the_file_and_its_permissions_stay(tmp_path):
    path, link = tmp_path / "lamps.gif", tmp_path / "link.gif"
    path.touch(mode=0o640)
    link.symlink_to(path)
    with lamps() as envs:
        record(envs, link, num_frames=2)
    assert link.is_symlink()
    assert len(imageio.imread(path)) == 2
    assert path.stat().st_mode & 0o777 == 0o640


def test_numpy_numbers_are_arguments(tmp_path):
    options = {"num_frames": np.int64(2), "fps": np.float32(5), "max_width": np.int32(30), "env_ids": np.array([1, 3])}
    with lamps() as envs:
        path = record(envs, tmp_path / "x.gif", **options)
    assert imageio.imread(path).shape == (2, 7, 21, 3)
    assert imageio.immeta(path)["duration"] == 200


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("imageio"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr("importlib.import_module", without)
    with lamps() as envs:
        for suffix, package in ((".gif", "imageio"), (".mp4", "imageio-ffmpeg")):
            with pytest.raises(envfleet.MissingExtraError, match=rf"'{package}'.*pip install"):
                record(envs, tmp_path / f"x{suffix}")
