"""The native MiniGrid envs against the minigrid package, value for value: grids, observations, rewards, pictures.

The reference is the package's own env, stepped one by one and reset without a seed after each episode.
ENVFLEET_MINIGRID_SEEDS is the number of seeds per id of the long form.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest

import envfleet
from envfleet.core.errors import ConfigError, EnvError, MissingExtraError
from envfleet.families.minigrid import NATIVE, class_name

pytest.importorskip("minigrid")
from minigrid.core import world_object

pytestmark = pytest.mark.filterwarnings("ignore:.*is out of date")

IDS = [f"MiniGrid-{name}" for name in NATIVE]
NUM_SEEDS = int(os.environ.get("ENVFLEET_MINIGRID_SEEDS", "50"))
# Every grid is the same.
WITHOUT_CHANCE = {
    *(f"MiniGrid-Empty-{n}x{n}-v0" for n in (5, 6, 8, 16)),
    "MiniGrid-DistShift1-v0",
    "MiniGrid-DistShift2-v0",
}
LEFT, RIGHT, FORWARD, PICK_UP, DROP, TOGGLE, DONE = range(7)


def package_env(env_id: str, **kwargs: Any) -> Any:
    return gymnasium.make(env_id, disable_env_checker=True, **kwargs).unwrapped


def curious_action(env: Any, draw: np.random.Generator) -> int:
    """Mostly what the square ahead is good for: random actions alone hardly ever open a door."""
    if env.action_space.n == 3 or draw.random() < 0.2:
        return int(draw.integers(env.action_space.n))
    ahead = env.grid.get(*env.front_pos)
    if ahead is not None and ahead.type in ("door", "box") and draw.random() < 0.7:
        return TOGGLE if getattr(ahead, "is_open", False) is False else FORWARD
    if ahead is not None and ahead.can_pickup():
        return PICK_UP if draw.random() < 0.6 else RIGHT
    return int(draw.choice([LEFT, RIGHT, FORWARD, FORWARD, FORWARD]))


def assert_rows(obs: Mapping[str, Any], wanted: list[dict[str, Any]]) -> None:
    assert obs.keys() == wanted[0].keys()
    assert np.array_equal(obs["image"], np.stack([own["image"] for own in wanted]))
    assert obs["direction"].tolist() == [own["direction"] for own in wanted]
    assert tuple(obs["mission"]) == tuple(own["mission"] for own in wanted)


def compare(env_id: str, num_seeds: int, num_steps: int, **kwargs: Any) -> tuple[int, int]:
    """Steps both side by side; returns the number of episodes and of successes."""
    plain = [package_env(env_id, **kwargs) for _ in range(num_seeds)]
    draw = np.random.default_rng(num_seeds)
    num_ends = num_successes = 0
    with envfleet.make(env_id, num_envs=num_seeds, autoreset_mode="same_step", **kwargs) as envs:
        assert envs.spec.backend == "native"
        assert envs.single_observation_space == plain[0].observation_space
        assert envs.single_action_space == plain[0].action_space
        assert envs.spec.max_episode_steps == plain[0].max_steps
        obs, _ = envs.reset(seed=11)
        wanted = [env.reset(seed=11 + k)[0] for k, env in enumerate(plain)]
        for _ in range(num_steps):
            assert_rows(obs, wanted)
            actions = [curious_action(env, draw) for env in plain]
            obs, reward, terminated, truncated, _ = envs.step(np.array(actions))
            steps = [env.step(action) for env, action in zip(plain, actions, strict=True)]
            assert reward.tolist() == [own[1] for own in steps]
            assert terminated.tolist() == [own[2] for own in steps]
            assert truncated.tolist() == [own[3] for own in steps]
            is_over = terminated | truncated
            wanted = [env.reset()[0] if over else own[0] for env, own, over in zip(plain, steps, is_over, strict=True)]
            num_ends += int(is_over.sum())
            num_successes += int((reward > 0).sum())
    return num_ends, num_successes


@pytest.mark.parametrize("env_id", IDS)
def test_episodes(env_id: str) -> None:
    num_ends, _ = compare(env_id, num_seeds=3, num_steps=40, max_steps=18)
    assert num_ends >= 6
    # The package's own limit.
    assert envfleet.make_spec(env_id, mission="code").max_episode_steps == package_env(env_id).max_steps


def beside_success(env: Any) -> tuple[tuple[int, int], int, int] | None:
    """Where to stand and look to succeed with one action, for tasks that have a goal or an object to pick up."""
    if hasattr(env, "obj"):
        wanted, action = tuple(env.obj.cur_pos), PICK_UP
    else:
        squares = [(i, j) for i in range(env.width) for j in range(env.height)]
        goals = [own for own in squares if (cell := env.grid.get(*own)) is not None and cell.type == "goal"]
        if not goals:
            return None
        wanted, action = goals[0], FORWARD
    places = [(int(wanted[0] - x), int(wanted[1] - y)) for x, y in ((1, 0), (0, 1), (-1, 0), (0, -1))]
    # A room of one square has walls and doors around it; then in the wall.
    direction = next((own for own, place in enumerate(places) if env.grid.get(*place) is None), 0)
    return places[direction], direction, action


@pytest.mark.parametrize("env_id", IDS)
def test_success(env_id: str) -> None:
    """What chance seldom reaches: the agent is put beside what it is to find."""
    env = package_env(env_id)
    with envfleet.make_pool(env_id) as pool:
        num_successes = 0
        for seed in range(3):
            env.reset(seed=seed)
            pool.reset(seed=seed)
            found = beside_success(env)
            if found is None:
                continue
            env.agent_pos, env.agent_dir, action = np.array(found[0]), found[1], found[2]
            pool.set_attr("agent_pos", [found[0]])
            pool.set_attr("agent_dir", found[1])
            obs, reward, terminated, truncated, _ = env.step(action)
            batch = pool.step([action])
            assert_rows(batch.obs, [obs])
            assert (batch.reward[0], batch.terminated[0], batch.truncated[0]) == (reward, terminated, truncated)
            num_successes += reward > 0
    has_neither = ("Unlock-", "Fetch", "GoTo", "PutNear", "RedBlue", "Memory", "Playground")
    assert num_successes > 0 or env_id.removeprefix("MiniGrid-").startswith(has_neither)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("env_id", IDS)
def test_whole_episodes(env_id: str) -> None:
    # The package makes a few thousand steps per second: its longest limits are cut to have several episodes.
    limit = min(package_env(env_id).max_steps, 300)
    num_ends, num_successes = compare(env_id, NUM_SEEDS, limit * 3 // 2, max_steps=limit)
    print(f"{env_id}: {NUM_SEEDS} seeds, {num_ends} episodes, {num_successes} successes")
    assert num_ends >= NUM_SEEDS


@pytest.mark.parametrize("env_id", IDS)
def test_seeds(env_id: str) -> None:
    """Different seeds differ and the same seeds agree, in the second episode as in the first."""

    def episodes(seeds: list[int]) -> tuple[list[bytes], list[bytes]]:
        with envfleet.make(env_id, num_envs=len(seeds), observation="full", mission="code") as envs:
            first, _ = envs.reset(seed=seeds)
            second, _ = envs.reset()
        return tuple(
            [
                obs["image"][k].tobytes() + bytes([obs["direction"][k], obs["mission"][k] % 256])
                for k in range(len(seeds))
            ]
            for obs in (first, second)
        )

    seeds = [*range(40), 2**64 + 7]
    first, second = episodes(seeds)
    assert (first, second) == episodes(seeds)
    if env_id in WITHOUT_CHANCE:
        assert len({*first, *second}) == 1
    else:
        # LavaGapS5 has but three.
        assert len(set(first)) > 2
        assert len(set(second)) > 2
        assert first != second


ARGUMENTS = [
    ("Empty-8x8-v0", {"size": 11, "agent_start_pos": (4, 2), "agent_start_dir": 3}),
    ("Empty-5x5-v0", {"size": 4, "agent_start_pos": None}),
    ("Dynamic-Obstacles-6x6-v0", {"size": 7, "n_obstacles": 9, "agent_start_pos": (2, 3)}),
    ("DistShift1-v0", {"width": 11, "height": 8, "agent_start_pos": None, "strip2_row": 4}),
    ("DoorKey-8x8-v0", {"size": 9, "see_through_walls": True}),
    ("FourRooms-v0", {"agent_pos": (3, 4), "goal_pos": (12, 13)}),
    ("LavaCrossingS9N1-v0", {"size": 7, "num_crossings": 40, "obstacle_type": world_object.Wall}),
    ("SimpleCrossingS9N1-v0", {"obstacle_type": "lava", "num_crossings": 0}),
    ("LavaGapS5-v0", {"size": 8, "obstacle_type": world_object.Wall}),
    ("MemoryS7-v0", {"size": 15, "random_length": True}),
    ("MultiRoom-N2-S4-v0", {"minNumRooms": 1, "maxNumRooms": 5, "maxRoomSize": 7, "width": 20, "height": 22}),
    ("KeyCorridorS3R3-v0", {"num_rows": 4, "room_size": 5, "obj_type": "key"}),
    ("KeyCorridorS3R1-v0", {"obj_type": "box"}),
    ("Fetch-5x5-N2-v0", {"size": 7, "numObjs": 9}),
    ("GoToDoor-5x5-v0", {"size": 12}),
    ("GoToObject-6x6-N2-v0", {"size": 9, "numObjs": 12}),
    ("PutNear-6x6-N2-v0", {"size": 11, "numObjs": 7}),
    ("LockedRoom-v0", {"size": 22}),
    ("RedBlueDoors-6x6-v0", {"size": 9}),
    ("ObstructedMaze-Full-v1", {"agent_room": (0, 2), "num_quarters": 3, "blocked": False, "num_rooms_visited": 2}),
    ("Playground-v0", {"agent_view_size": 13, "see_through_walls": True}),
    ("UnlockPickup-v0", {"agent_view_size": 3, "max_steps": 9}),
]


@pytest.mark.parametrize(("name", "kwargs"), ARGUMENTS, ids=[f"{name} {[*kwargs]}" for name, kwargs in ARGUMENTS])
def test_arguments_of_the_package(name: str, kwargs: dict[str, Any]) -> None:
    compare(f"MiniGrid-{name}", num_seeds=3, num_steps=25, **kwargs)


PICTURES: list[dict[str, Any]] = [
    {"observation": "full", "mission": "code"},
    {"observation": "rgb"},
    {"observation": "rgb", "obs_tile_size": 13, "highlight": False, "tile_size": 7},
    {"observation": "rgb_partial", "mission": "code", "agent_pov": True, "tile_size": 24},
    {"observation": "rgb_partial", "obs_tile_size": 5, "agent_view_size": 9},
]


@pytest.mark.parametrize("options", PICTURES, ids=str)
@pytest.mark.parametrize(
    "name", ["LavaCrossingS9N3-v0", "ObstructedMaze-2Dlhb-v1", "RedBlueDoors-6x6-v0", "Fetch-8x8-N3-v0"]
)
def test_pictures_and_wrappers(name: str, options: dict[str, Any]) -> None:
    """The observation of the package's wrappers and its render(), through backend="serial", which runs them."""
    draw = np.random.default_rng(0)
    with (
        envfleet.make(f"MiniGrid-{name}", num_envs=2, render_mode="rgb_array", **options) as envs,
        envfleet.make(f"MiniGrid-{name}", num_envs=2, render_mode="rgb_array", backend="serial", **options) as python,
    ):
        assert (envs.spec.backend, python.spec.backend) == ("native", "serial")
        assert envs.single_observation_space == python.single_observation_space
        obs, wanted = envs.reset(seed=3)[0], python.reset(seed=3)[0]
        for step in range(16):
            assert obs.keys() == wanted.keys()
            assert all(np.array_equal(obs[key], wanted[key]) for key in obs)
            if step % 5 == 0:
                assert all(np.array_equal(*frames) for frames in zip(envs.render(), python.render(), strict=True))
            actions = np.where(draw.random(2) < 0.4, FORWARD, draw.integers(0, 7, 2))
            obs, wanted = envs.step(actions)[0], python.step(actions)[0]


def test_ids_are_registered_as_in_the_package() -> None:
    registered = {
        env_id: spec
        for env_id, spec in gymnasium.registry.items()
        if env_id.startswith("MiniGrid-") and not env_id.startswith("MiniGrid-WFC")
    }
    assert {*IDS} == registered.keys()
    for name, (task, kwargs) in NATIVE.items():
        spec = registered[f"MiniGrid-{name}"]
        assert (spec.entry_point, spec.kwargs) == (f"minigrid.envs:{class_name(task)}", kwargs)
        assert spec.max_episode_steps is None
    assert "MiniGrid" not in envfleet.list_all_envs()


def test_ids_that_are_not_native() -> None:
    for env_id in ("MiniGrid-WFC-MazeSimple-v0", "BabyAI-GoToObj-v0"):
        with pytest.raises(ConfigError, match="backend='native' expected an env in C"):
            envfleet.make(env_id, backend="native")


def test_options_of_ids_that_are_not_native() -> None:
    with envfleet.make("BabyAI-GoToObj-v0", observation="full") as envs:
        assert envs.reset(seed=0)[0]["image"].shape == (1, 8, 8, 3)
    with pytest.raises(ConfigError, match="a finite set of missions"):
        envfleet.make("BabyAI-GoToObj-v0", mission="code")


def test_code_of_a_mission_needs_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envfleet.core.family.find_spec", lambda package: None)
    with envfleet.make("MiniGrid-GoToDoor-5x5-v0", num_envs=3, mission="code") as envs:
        obs, _ = envs.reset(seed=0)
        assert envs.single_observation_space["mission"] == gymnasium.spaces.Discrete(6)
        assert obs["mission"].shape == (3,)
    with pytest.raises(MissingExtraError, match=r'pip install "envfleet\[minigrid\]"'):
        envfleet.make("MiniGrid-GoToDoor-5x5-v0")


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_missions_in_every_kind_of_batch(mode: str) -> None:
    texts = {f"go to the {color} door" for color in ("blue", "green", "grey", "purple", "red", "yellow")}
    with envfleet.make("MiniGrid-GoToDoor-5x5-v0", num_envs=4, autoreset_mode=mode) as envs:
        first, _ = envs.reset(seed=0)
        assert {*first["mission"]} <= texts
        assert len({*first["mission"]}) > 1
        obs, _, terminated, _, info = envs.step(np.full(4, DONE))
        assert terminated.all()
        assert ({*obs["mission"]} if mode == "same_step" else set()) <= texts
        if mode == "same_step":
            assert tuple(own["mission"] for own in info["final_obs"]) == first["mission"]
        else:
            assert obs["mission"] == first["mission"]
        assert envs.reset(np.array([2]))[0]["mission"][0] in texts
        assert envs.reset(np.zeros(0, np.int32))[0]["mission"] == ()
        masked, _ = envs.reset(options={"reset_mask": np.array([True, False, False, True])})
        assert len(masked["mission"]) == 4
    with envfleet.make("MiniGrid-GoToDoor-5x5-v0", num_envs=4, batch_size=2) as envs:
        envs.async_reset()
        assert {*envs.recv()[0]["mission"]} <= texts


def test_state_and_attributes() -> None:
    with envfleet.make_pool("MiniGrid-DoorKey-6x6-v0", num_envs=2, seed=4) as pool:
        pool.reset()
        state = pool.get_state()
        actions = np.random.default_rng(0).integers(0, 7, (60, 2))
        before = [pool.step(own) for own in actions]
        assert [*pool.get_attr("step_count")] == [60, 60]
        pool.set_state(state)
        for own, old in zip(actions, before, strict=True):
            batch = pool.step(own)
            assert all(np.array_equal(batch.obs[key], old.obs[key]) for key in old.obs)
        assert all(np.shape(own) == (2,) for own in pool.get_attr("agent_pos"))
        pool.set_attr("agent_pos", [[1, 1]], [0])
        assert pool.get_attr("agent_pos", [0])[0].tolist() == [1, 1]
        with pytest.raises(EnvError, match="no world of this size"):
            pool.set_attr("agent_dir", 4, [0])
        with pytest.raises(EnvError, match="mission expected"):
            pool.set_attr("mission", 1, [0])


def test_an_argument_of_each_env() -> None:
    with envfleet.make("MiniGrid-Empty-8x8-v0", num_envs=2, size=[5, 9], max_steps=[3, None]) as envs:
        assert envs.pool.params_of(1)["size"] == 9
        envs.reset(seed=0)
        for _ in range(3):
            truncated = envs.step(np.zeros(2, int))[3]
        assert truncated.tolist() == [True, False]
    with envfleet.make("MiniGrid-Empty-8x8-v0", num_envs=2, agent_start_pos=[(1, 1), None]) as envs:
        envs.reset(seed=0)
    with pytest.raises(ConfigError, match="same spaces"):
        envfleet.make("MiniGrid-Empty-8x8-v0", num_envs=2, mission=["text", "code"])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("DoorKey-8x8-v0", {"num_crossings": 2}, "unknown option 'num_crossings'"),
        ("Empty-8x8-v0", {"see_through_walls": False}, "unknown option 'see_through_walls'"),
        ("Empty-8x8-v0", {"mission": "number"}, "mission expected 'text' or 'code', got 'number'"),
        ("Empty-8x8-v0", {"observation": "pixels"}, "observation expected 'partial'"),
        ("Empty-8x8-v0", {"agent_view_size": 4}, "agent_view_size expected an odd number, got 4"),
        ("Empty-8x8-v0", {"agent_view_size": 65}, "agent_view_size expected a number from 3 to 63"),
        ("Empty-8x8-v0", {"max_steps": 0}, "max_steps expected an integer of at least 1"),
        ("Empty-8x8-v0", {"agent_start_pos": (1, 2, 3)}, "agent_start_pos expected two integers"),
        ("Empty-8x8-v0", {"size": 10**9}, "size expected a number from 0 to 255"),
        ("DoorKey-8x8-v0", {"size": 4}, "size expected a number from 5 to 255, got 4"),
        ("LavaGapS5-v0", {"obstacle_type": "water"}, "obstacle_type expected 'lava' or 'wall'"),
        ("KeyCorridorS3R1-v0", {"obj_type": "sword"}, "obj_type expected"),
        ("GoToObject-6x6-N2-v0", {"numObjs": 19}, "numObjs expected a number from 1 to 18"),
    ],
)
def test_arguments_that_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        envfleet.make(f"MiniGrid-{name}", num_envs=2, **options)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Fetch-5x5-N2-v0", {"numObjs": 40}, "no free square"),
        ("MultiRoom-N6-v0", {"minNumRooms": 60, "maxNumRooms": 60}, "no way to lay out 60 rooms"),
        ("Empty-8x8-v0", {"agent_start_pos": (8, 1)}, "agent_start_pos expected a square of the grid"),
        ("Empty-8x8-v0", {"agent_start_pos": (7, 1)}, "the agent to start on a free square"),
        ("LockedRoom-v0", {"size": 9}, "expected a square of the 9 x 9 grid"),
    ],
)
def test_grids_that_cannot_be_made(name: str, options: dict[str, Any], message: str) -> None:
    with envfleet.make(f"MiniGrid-{name}", num_envs=1, **options) as envs, pytest.raises(EnvError, match=message):
        envs.reset(seed=0)
