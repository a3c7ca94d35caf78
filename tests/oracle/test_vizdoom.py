"""ViZDoom: the package's ids against the package's own wrapper, EnvPool's against the bare engine."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import envfleet
from envfleet.core.errors import UnknownEnvError
from envfleet.families.vizdoom.ids import ENVPOOL_SCENARIOS, all_ids, package_ids
from envfleet.families.vizdoom.options import INFO_VARIABLES

vizdoom = pytest.importorskip("vizdoom")


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return np.asarray(one).dtype == np.asarray(other).dtype and np.array_equal(one, other)


# --- names --------------------------------------------------------------------------------------------


def wheel_env(env_id: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    # Imports pygame, which is slow: only where it is compared with.
    from vizdoom import gymnasium_wrapper  # noqa: F401 (it registers the ids)

    return gymnasium.make(env_id, disable_env_checker=True, **kwargs).unwrapped


def test_ids_are_those_of_the_package() -> None:
    from vizdoom import gymnasium_wrapper  # noqa: F401 (it registers the ids)

    registered = {env_id: spec for env_id, spec in gymnasium.registry.items() if env_id.startswith("Vizdoom")}
    assert set(package_ids()) == set(registered)
    assert all(package_ids()[env_id] == spec.kwargs for env_id, spec in registered.items())


def test_scenarios_are_those_of_the_package() -> None:
    folder = Path(vizdoom.scenarios_path)
    with_wad = {path.name for path in folder.glob("*.cfg") if path.with_suffix(".wad").exists()}
    named = {cfg for cfg in ENVPOOL_SCENARIOS.values() if cfg and not cfg.startswith("D")}
    assert named == with_wad


def test_listed_and_known() -> None:
    assert all_ids() <= set(envfleet.list_all_envs())
    with pytest.raises(UnknownEnvError, match="HealthGathering-v1"):
        envfleet.make("HealthGatering-v1")
    with pytest.raises(UnknownEnvError, match="VizdoomBasic-v1"):
        envfleet.make("VizdoomBasik-v1")


# --- the package's ids --------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning:pygame")
@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [
        ("VizdoomBasic-v1", {"frame_skip": 4}),
        ("VizdoomDeathmatch-v1", {"max_buttons_pressed": 2, "labels_buffer_enabled": True}),
        ("VizdoomTakeCover-MultiBinary-v1", {"screen_format": "GRAY8", "depth_buffer_enabled": True}),
        ("VizdoomBasicNotifications-v1", {"frame_skip": 2, "automap_buffer_enabled": True}),
        ("VizdoomFreedoom2MAP01-S3-v0", {"audio_buffer_enabled": False, "frame_skip": 4}),
    ],
)
def test_package_ids_equal_the_package(
    env_id: str, kwargs: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the package's own env leaves files where it is
    if env_id.startswith("VizdoomFreedoom2"):
        kwargs = {**kwargs, "doom_game_path": str(Path(vizdoom.__file__).parent / "freedoom2.wad")}
    theirs = wheel_env(env_id, render_mode="rgb_array", **kwargs)
    pool = envfleet.make_pool(env_id, backend="serial", num_envs=1, render_mode="rgb_array", **kwargs)
    try:
        assert pool.spec.observation_space == theirs.observation_space
        assert pool.spec.action_space == theirs.action_space
        actions = theirs.action_space
        actions.seed(1)
        want, _ = theirs.reset(seed=7)
        got = pool.reset(seed=7)
        ends = 0
        for _ in range(120):
            assert same(want, row(got))
            action = actions.sample()
            if ends < 1:
                assert np.array_equal(theirs.render(), pool.render(0))
            want, reward, terminated, truncated, _ = theirs.step(action)
            got = pool.step(batch_of(actions, action))
            assert (float(got.reward[0]), bool(got.terminated[0]), bool(got.truncated[0])) == (
                reward,
                terminated,
                truncated,
            )
            if terminated or truncated:
                ends += 1
                assert same(want, row(got))
                want, _ = theirs.reset()
                got = pool.step(batch_of(actions, action))  # the pool resets on the step after an end
    finally:
        theirs.close()
        pool.close()
    assert not list(tmp_path.glob("envfleet*"))


def row(batch: Any) -> dict[str, Any]:
    return {key: batch.obs[key][0] for key in batch.obs}


def batch_of(space: gymnasium.Space[Any], action: Any) -> Any:
    if isinstance(space, gymnasium.spaces.Dict):
        return {key: np.asarray(value)[None] for key, value in action.items()}
    return np.asarray(action)[None]


# --- EnvPool's ids ------------------------------------------------------------------------------------


class Bare:
    """The engine itself, with the observation and reward written down once more."""

    def __init__(self, folder: Path, seed: int, gray: bool) -> None:
        game = self.game = vizdoom.DoomGame()
        game.load_config(str(Path(vizdoom.scenarios_path) / "basic.cfg"))
        game.set_window_visible(False)
        game.set_sound_enabled(False)
        game.set_episode_timeout(0)
        game.set_screen_format(vizdoom.ScreenFormat.GRAY8 if gray else vizdoom.ScreenFormat.CRCGCB)
        game.set_doom_config_path(str(folder / "bare.ini"))
        self.names = INFO_VARIABLES
        for name in self.names:
            game.add_available_game_variable(getattr(vizdoom.GameVariable, name))
        self.random = np.random.default_rng(np.random.PCG64(np.random.SeedSequence(seed)))
        self.is_new = True

    def begin(self) -> Any:
        self.game.set_seed(int(self.random.integers(0, 2**32, dtype=np.uint32)))
        if self.is_new:
            self.game.init()
        else:
            self.game.new_episode()
        self.is_new = False
        return self.game.get_state().screen_buffer

    def variables(self) -> dict[str, float]:
        return {name: self.game.get_game_variable(getattr(vizdoom.GameVariable, name)) for name in self.names}


@pytest.mark.parametrize("gray", [True, False])
def test_envpool_id_against_the_engine(gray: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cv2 = pytest.importorskip("cv2")
    monkeypatch.chdir(tmp_path)
    bare = Bare(tmp_path, 3, gray)
    pool = envfleet.make_pool("Basic-v1", backend="serial", gray_scale=gray, stack_num=2)
    planes = 1 if gray else 3
    assert pool.spec.observation_space.shape == (2 * planes, 84, 84)
    assert pool.spec.max_episode_steps == 525
    try:
        got = pool.reset(seed=3)
        screen = bare.begin()
        frames = [screen, screen]
        before = bare.variables()
        random = np.random.default_rng(0)
        kills = 0
        for _ in range(150):
            pictures = np.concatenate([frame[None] if gray else frame for frame in frames])
            wanted = np.stack([cv2.resize(plane, (84, 84), interpolation=cv2.INTER_AREA) for plane in pictures])
            # OpenCV rounds its sums in floats, the kernel in whole numbers.
            assert np.abs(wanted.astype(int) - got.obs[0]).max() <= 1
            assert {name: got.info[name][0] for name in bare.names} == pytest.approx(
                {**before, "HITCOUNT": got.info["HITCOUNT"][0], "DAMAGECOUNT": got.info["DAMAGECOUNT"][0]}
            )
            buttons = random.integers(0, 2, 3).astype(float)
            bare.game.make_action(buttons.tolist(), 4)
            after = bare.variables()
            got = pool.step(buttons[None])
            assert bool(got.terminated[0]) == bare.game.is_episode_finished()
            if bare.game.is_episode_finished():
                # The shot that ends the episode counts; the picture is the last one there was.
                kills += 1
                assert got.info["KILLCOUNT"][0] == after["KILLCOUNT"] == 1
                assert got.reward[0] >= 0.99
                screen = bare.begin()
                frames = [screen, screen]
                after = bare.variables()
                got = pool.step(buttons[None])
            else:
                frames = [frames[-1], bare.game.get_state().screen_buffer]
            before = after
        assert kills > 0
    finally:
        bare.game.close()
        pool.close()


# --- backends -----------------------------------------------------------------------------------------


def rollout(env_id: str, backend: str, **options: Any) -> list[Any]:
    with envfleet.make(env_id, num_envs=3, backend=backend, num_workers=2, **options) as envs:
        envs.action_space.seed(0)
        obs, info = envs.reset(seed=11)
        rows = [obs, info]
        for _ in range(40):
            rows.extend(envs.step(envs.action_space.sample()))
    return rows


@pytest.mark.parametrize(
    ("env_id", "options"),
    [
        ("HealthGathering-v1", {"use_combined_action": True, "depth": True, "labels": True, "automap": True}),
        ("VizdoomDefendCenter-v1", {"frame_skip": 4}),
    ],
)
def test_same_seed_same_rollout(env_id: str, options: dict[str, Any]) -> None:
    serial, threads, processes = (rollout(env_id, backend, **options) for backend in ("serial", "threads", "processes"))
    for other in (threads, processes):
        assert all(itertools.starmap(same, zip(serial, other, strict=True)))
