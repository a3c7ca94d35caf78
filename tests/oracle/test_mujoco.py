"""The native MuJoCo envs against Gymnasium's as oracle: the same seeds and actions, whole episodes.

The versions that Gymnasium no longer has, and Pusher-v4, which it refuses, are compared with old_mujoco.py.

Both sides call the same functions of the same library in the same order, and the native envs add
up as numpy does: observations, rewards and infos come out equal to the last bit.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from support.reference import ReferenceEnv, Row
from support.script_runs import run_script

import envfleet
from envfleet.envs.mujoco_plugin import asset_folder
from envfleet.families.mujoco import IDS

pytest.importorskip("mujoco")

from old_mujoco import make_old

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is out of date"),  # what Gymnasium says of version 4
    # What Gymnasium says where a test asks for frames that its version does not announce.
    pytest.mark.filterwarnings("ignore:.*Overriding environment"),
]

EXACT = 0.0
# Where the two sides may take different code for the same formula: numpy's sine and cosine are its own on
# some CPUs (Reacher, InvertedDoublePendulum), and BLAS fuses the multiply-adds of a norm only where the CPU
# can (distance_from_origin, Reacher, Pusher). A last bit; it never enters the simulation.
LAST_BITS = 1e-14
_LAST_BITS_IN = ("Reacher", "InvertedDoublePendulum", "Pusher")
_LAST_BITS_OF = ("distance_from_origin",)


@dataclass(frozen=True)
class Case:
    id: str
    params: dict[str, Any] = field(default_factory=dict)
    steps: int = 150
    num_envs: int = 3
    limit: int | None = None  # another time limit than the id's

    @property
    def tolerance(self) -> float:
        return LAST_BITS if self.id.startswith(_LAST_BITS_IN) else EXACT

    @property
    def options(self) -> dict[str, Any]:
        return {**self.params, **({} if self.limit is None else {"max_episode_steps": self.limit})}

    @property
    def is_old(self) -> bool:
        """Whether Gymnasium has no class that runs it."""
        return self.id.endswith(("-v2", "-v3")) or self.id == "Pusher-v4"

    def make_reference(self) -> gymnasium.Env:
        if self.is_old:
            return make_old(self.id, **self.options)
        return gymnasium.make(self.id, disable_env_checker=True, **self.options)

    def __str__(self) -> str:
        return "-".join([self.id, *(f"{name}={value}" for name, value in self.params.items())])


# Whole episodes up to the id's own limit where a step is cheap; a short limit elsewhere.
_FULL_LENGTH = ("HalfCheetah", "Swimmer")
_SHORT = ("Ant", "HalfCheetah", "Swimmer")
_NEVER_END = ("HumanoidStandup",)
DEFAULTS = [
    Case(env_id, steps=1010, num_envs=2)
    if env_id.startswith(_FULL_LENGTH) and env_id.endswith(("-v4", "-v5"))
    else Case(env_id, limit=40 if env_id.startswith(_NEVER_END) else 60 if env_id.startswith(_SHORT) else None)
    for env_id in IDS
]
_FORCES = {"post_constraint": True}
_STILL_WALKING = {"terminate_when_unhealthy": False, "healthy_reward": 0.3}
_ALL_POSITIONS = {"exclude_current_positions_from_observation": False}
_NO_EXTRAS = dict.fromkeys(("include_cinert_in_observation", "include_cvel_in_observation"), False)
_NO_FORCES = dict.fromkeys(("include_qfrc_actuator_in_observation", "include_cfrc_ext_in_observation"), False)
PARAMS = [
    Case(
        "Ant-v5", {**_ALL_POSITIONS, "include_cfrc_ext_in_observation": False, "forward_reward_weight": 2.5}, limit=60
    ),
    Case("Ant-v5", {**_STILL_WALKING, "contact_force_range": (-0.3, 0.6), "contact_cost_weight": 0.02}, limit=60),
    Case("Ant-v5", {"main_body": "torso", "frame_skip": 2, "ctrl_cost_weight": 0.1}, limit=60),
    Case("Ant-v5", {"main_body": 4, "healthy_z_range": (0.4, 0.9), "reset_noise_scale": 0.3}),
    Case("Ant-v4", {"use_contact_forces": True, "contact_cost_weight": 0.1}, limit=60),
    Case("Ant-v4", {**_STILL_WALKING, **_ALL_POSITIONS, "xml_file": "ant.xml"}, limit=60),
    Case("HalfCheetah-v5", {**_ALL_POSITIONS, "frame_skip": 3, "forward_reward_weight": 0.7}, limit=60),
    Case("HalfCheetah-v4", {**_ALL_POSITIONS, "ctrl_cost_weight": 0.3, "reset_noise_scale": 0.0}, limit=60),
    Case("Hopper-v5", {**_STILL_WALKING, **_ALL_POSITIONS}, limit=60),
    Case("Hopper-v5", {"healthy_state_range": (-4.0, 4.0), "healthy_z_range": (0.5, 2), "frame_skip": 2}),
    Case("Hopper-v4", {**_STILL_WALKING, "healthy_angle_range": (-1, 1)}, limit=60),
    Case("Humanoid-v5", {**_NO_EXTRAS, "contact_cost_range": (0.0, 0.01), "contact_cost_weight": 1e-3}),
    Case("Humanoid-v5", {**_NO_FORCES, **_ALL_POSITIONS, **_STILL_WALKING, "frame_skip": 2}, limit=60),
    Case("Humanoid-v4", {**_ALL_POSITIONS, **_STILL_WALKING, "ctrl_cost_weight": 0.7}, limit=60),
    Case("HumanoidStandup-v5", {**_NO_EXTRAS, "impact_cost_range": (0.1, 0.2), "uph_cost_weight": 2.0}, limit=30),
    Case("HumanoidStandup-v5", {**_NO_FORCES, **_ALL_POSITIONS, "reset_noise_scale": 0.1}, limit=30),
    Case("InvertedPendulum-v5", {"reset_noise_scale": 0.1, "frame_skip": 1}),
    Case("InvertedDoublePendulum-v5", {"healthy_reward": 3.0, "reset_noise_scale": 0.02, "frame_skip": 2}),
    Case("Pusher-v5", {"reward_near_weight": 0.1, "reward_dist_weight": 2.0, "reward_control_weight": 0.7}),
    Case("Reacher-v5", {"reward_dist_weight": 0.3, "reward_control_weight": 0.01, "frame_skip": 5}),
    Case("Swimmer-v5", {**_ALL_POSITIONS, "ctrl_cost_weight": 0.01, "frame_skip": 2}, limit=60),
    Case("Swimmer-v4", {**_ALL_POSITIONS, "forward_reward_weight": 0.1}, limit=60),
    Case("Walker2d-v5", {**_STILL_WALKING, **_ALL_POSITIONS}, limit=60),
    Case("Walker2d-v5", {"xml_file": "walker2d.xml", "healthy_z_range": (1.0, 1.5), "frame_skip": 2}),
    Case("Walker2d-v4", {**_STILL_WALKING, "healthy_angle_range": (-0.1, 0.1)}, limit=60),
    Case("Ant-v3", {**_FORCES, **_STILL_WALKING, "contact_force_range": (-0.3, 0.6), "frame_skip": 2}, limit=60),
    Case("Ant-v2", {**_FORCES, "contact_cost_weight": 0.02}, limit=60),
    Case("HalfCheetah-v3", {**_ALL_POSITIONS, "forward_reward_weight": 0.7}, limit=60),
    Case("Hopper-v3", {**_STILL_WALKING, **_ALL_POSITIONS, "healthy_state_range": (-4.0, 4.0)}, limit=60),
    Case("Hopper-v2", {"frame_skip": 2}, limit=60),
    Case("Humanoid-v3", {**_FORCES, **_ALL_POSITIONS, "contact_cost_range": (0.0, 0.01), "contact_cost_weight": 1e-3}),
    Case("Humanoid-v2", {**_FORCES, "contact_cost_weight": 1e-3}),
    Case("HumanoidStandup-v2", _FORCES, limit=30),
    Case("Swimmer-v3", {**_ALL_POSITIONS, "reset_noise_scale": 0.3, "ctrl_cost_weight": 0.01}, limit=60),
    Case("Walker2d-v3", {**_STILL_WALKING, "healthy_angle_range": (-0.1, 0.1)}, limit=60),
]


def assert_same(actual: Any, expected: Any, tolerance: float, where: str) -> None:
    # Asked first: assert_allclose() takes longer than the envs' steps.
    if not np.array_equal(actual, expected):
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance, err_msg=where)


def assert_same_row(case: Case, batch: Any, i: int, row: Row, where: str) -> None:
    assert_same(batch.obs[i], row.obs, case.tolerance, f"{where}: observation")
    assert_same(batch.reward[i], row.reward, case.tolerance, f"{where}: reward")
    assert (batch.terminated[i], batch.truncated[i]) == (row.terminated, row.truncated), where
    assert batch.elapsed_step[i] == row.elapsed_step, where
    assert_same_info(case, batch.info, i, row.info, where)


def assert_same_info(case: Case, info: dict[str, Any], i: int, expected: dict[str, Any], where: str) -> None:
    there = {key for key in info if not key.startswith("_") and info.get(f"_{key}", np.ones(i + 1, bool))[i]}
    assert there == set(expected), where
    for key, value in expected.items():
        tolerance = LAST_BITS if key in _LAST_BITS_OF else case.tolerance
        assert_same(info[key][i], value, tolerance, f"{where}: {key}")
        assert info[key].dtype == np.asarray(value).dtype, key


def random_actions(space: gymnasium.spaces.Box, num_envs: int, rng: np.random.Generator) -> np.ndarray:
    return rng.uniform(space.low, space.high, (num_envs, *space.shape)).astype(space.dtype)


def assert_rollouts_are_equal(case: Case, mode: AutoresetMode = AutoresetMode.NEXT_STEP, **options: Any) -> None:
    pool = envfleet.make_pool(case.id, num_envs=case.num_envs, autoreset_mode=mode, **case.options, **options)
    assert pool.spec.backend == "native"
    references = [ReferenceEnv(case.make_reference(), mode) for _ in range(case.num_envs)]
    oracle = references[0].env
    assert pool.spec.observation_space == oracle.observation_space
    assert pool.spec.action_space == oracle.action_space
    registered = (
        (oracle.max_episode_steps, oracle.threshold)
        if case.is_old
        else (oracle.spec.max_episode_steps, oracle.spec.reward_threshold)
    )
    assert (pool.spec.max_episode_steps, pool.spec.reward_threshold) == registered
    batch = pool.reset(seed=42)
    for i, reference in enumerate(references):
        assert_same_row(case, batch, i, reference.reset(seed=42 + i), f"reset of env {i}")
    rng, num_ends = np.random.default_rng(7), 0
    for step in range(case.steps):
        actions = random_actions(oracle.action_space, case.num_envs, rng)
        batch = pool.step(actions)
        for i, reference in enumerate(references):
            row = reference.step(actions[i])
            where = f"env {i}, step {step}"
            assert_same_row(case, batch, i, row, where)
            if row.final_obs is not None:
                assert_same(batch.final.obs[i], row.final_obs, case.tolerance, f"{where}: final observation")
                assert_same_info(case, batch.final.info, i, row.final_info or {}, f"{where}: final")
            num_ends += row.terminated or row.truncated
    assert num_ends >= case.num_envs, "too few episodes ended for this test to mean anything"
    pool.close()
    for reference in references:
        reference.env.close()


@pytest.mark.parametrize("case", DEFAULTS, ids=str)
def test_rollouts_equal_gymnasium(case: Case) -> None:
    assert_rollouts_are_equal(case)


_TRAVEL = {"x_position", "y_position", "distance_from_origin", "x_velocity", "y_velocity", "forward_reward"}
_PLACE = {"x_position", "x_velocity"}
_ANT = {"reward_forward", "reward_ctrl", "reward_contact", "reward_survive"}
# docs/mujoco.md, "Versions 2, 3 and 4": the size of an observation, and the infos of a step.
VERSIONS = {
    "Ant-v2": (111, _ANT),
    "Ant-v3": (111, _ANT | _TRAVEL),
    "Ant-v4": (27, {"reward_forward", "reward_ctrl", "reward_survive"} | _TRAVEL),
    "Ant-v5": (105, _ANT | _TRAVEL - {"forward_reward"}),
    "HalfCheetah-v2": (17, {"reward_run", "reward_ctrl"}),
    "HalfCheetah-v3": (17, {"reward_run", "reward_ctrl"} | _PLACE),
    "Hopper-v2": (11, set()),
    "Hopper-v3": (11, _PLACE),
    "Humanoid-v2": (376, {"reward_linvel", "reward_quadctrl", "reward_alive", "reward_impact"}),
    "Humanoid-v3": (376, {"reward_linvel", "reward_quadctrl", "reward_alive", "reward_impact"} | _TRAVEL),
    "Humanoid-v4": (376, {"reward_linvel", "reward_quadctrl", "reward_alive"} | _TRAVEL),
    "HumanoidStandup-v2": (376, {"reward_linup", "reward_quadctrl", "reward_impact"}),
    "InvertedDoublePendulum-v2": (11, set()),
    "InvertedPendulum-v2": (4, set()),
    "Pusher-v2": (23, {"reward_dist", "reward_ctrl"}),
    "Reacher-v2": (11, {"reward_dist", "reward_ctrl"}),
    "Reacher-v5": (10, {"reward_dist", "reward_ctrl"}),
    "Swimmer-v2": (8, {"reward_fwd", "reward_ctrl"}),
    "Swimmer-v3": (8, {"reward_fwd", "reward_ctrl"} | _TRAVEL),
    "Walker2d-v2": (17, set()),
    "Walker2d-v3": (17, _PLACE),
}


def test_versions_differ_as_documented() -> None:
    for env_id, (size, infos) in VERSIONS.items():
        with envfleet.make(env_id, num_envs=1) as envs:
            envs.reset(seed=0)
            obs, _, _, _, info = envs.step(np.zeros((1, *envs.single_action_space.shape), np.float32))
            assert obs.shape == (1, size), env_id
            assert {key for key in info if key[0] != "_"} - {"env_id", "elapsed_step"} == infos, env_id
    # Contact forces of versions 2 and 3 are zero unless they are asked for. Falling makes some.
    for env_id in ("Ant-v2", "Ant-v3", "Humanoid-v2", "Humanoid-v3", "HumanoidStandup-v2"):
        for forces in (False, True):
            with envfleet.make(env_id, num_envs=1, **(_FORCES if forces else {})) as envs:
                envs.reset(seed=0)
                for _ in range(15):
                    obs, *_ = envs.step(np.zeros((1, *envs.single_action_space.shape), np.float32))
                assert obs[0, -84:].any() == forces, env_id
    # Humanoid-v2 is healthy at exactly the bounds of its height, later versions between them.
    action = np.zeros((1, 17), np.float32)
    for env_id, is_unhealthy in (("Humanoid-v2", False), ("Humanoid-v3", True)):
        with envfleet.make(env_id, num_envs=1) as envs:
            envs.reset(seed=0)
            height = envs.step(action)[0][0, 0]
        with envfleet.make(env_id, num_envs=1, healthy_z_range=(height, 2.0)) as envs:
            envs.reset(seed=0)
            assert envs.step(action)[2].tolist() == [is_unhealthy], env_id


@pytest.mark.parametrize("case", PARAMS, ids=str)
def test_parameters_act_as_in_gymnasium(case: Case) -> None:
    assert_rollouts_are_equal(case)


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("env_id", ["Ant-v5", "Hopper-v5"])
def test_same_step_autoreset_and_threads(env_id: str, num_threads: int) -> None:
    assert_rollouts_are_equal(
        Case(env_id, num_envs=5, steps=120, limit=50), AutoresetMode.SAME_STEP, num_threads=num_threads
    )


def test_first_observations_and_infos_of_many_seeds() -> None:
    for env_id in IDS:
        case = Case(env_id)
        pool, reference = (
            envfleet.make_pool(env_id, num_envs=20),
            ReferenceEnv(case.make_reference(), AutoresetMode.DISABLED),
        )
        batch = pool.reset(seed=1000)
        for i in range(20):
            assert_same_row(case, batch, i, reference.reset(seed=1000 + i), f"{env_id}, seed {1000 + i}")
        pool.close()


def test_a_model_of_the_users_own(tmp_path: Path) -> None:
    """Other bodies, joints, tendons and actuators, and so another observation."""
    text = (asset_folder() / "humanoid.xml").read_text()
    tendons = text[text.index("<tendon>") : text.index("</tendon>") + len("</tendon>")]
    (tmp_path / "no_tendons.xml").write_text(text.replace(tendons, ""))
    heavy = (asset_folder() / "ant.xml").read_text().replace('density="5.0"', 'density="20.0"')
    assert 'density="20.0"' in heavy
    (tmp_path / "heavy.xml").write_text(heavy)
    assert_rollouts_are_equal(Case("Ant-v5", {"xml_file": str(tmp_path / "heavy.xml")}, limit=60))
    assert_rollouts_are_equal(
        Case("Ant-v5", {"xml_file": str(asset_folder() / "humanoid.xml"), "healthy_z_range": (1, 2)}, limit=60)
    )
    pool = envfleet.make_pool("Humanoid-v5", xml_file=str(tmp_path / "no_tendons.xml"))
    # An empty column cannot be; all others are there.
    assert "tendon_length" not in pool.reset(seed=0).info
    pool.close()


def test_attributes_equal_gymnasiums_and_reading_them_changes_nothing() -> None:
    pool, oracle = envfleet.make_pool("Walker2d-v5"), gymnasium.make("Walker2d-v5").unwrapped
    pool.reset(seed=3)
    oracle.reset(seed=3)
    rng = np.random.default_rng(0)
    for _ in range(10):
        action = random_actions(oracle.action_space, 1, rng)
        obs, reward, *_ = oracle.step(action[0])
        batch = pool.step(action)
        np.testing.assert_array_equal(batch.obs[0], obs)
        assert batch.reward[0] == reward
        attributes = pool.get_attrs(0)
        for name in ("time", "qpos", "qvel", "act", "ctrl", "qacc_warmstart", "qfrc_applied"):
            np.testing.assert_array_equal(attributes[name], getattr(oracle.data, name), err_msg=name)
        for name in ("init_qpos", "init_qvel", "frame_skip"):
            np.testing.assert_array_equal(attributes[name], getattr(oracle, name), err_msg=name)
    pool.close()


@pytest.mark.parametrize("env_id", [env_id for env_id in IDS if env_id.endswith("5")])
def test_setting_qpos_and_qvel_is_gymnasiums_set_state(env_id: str) -> None:
    envs, oracle = envfleet.make(env_id, num_envs=2), gymnasium.make(env_id).unwrapped
    case, rng = Case(env_id), np.random.default_rng(0)
    envs.reset(seed=3)
    oracle.reset(seed=3)
    action = random_actions(oracle.action_space, 2, rng)
    envs.step(action)
    oracle.step(action[0])
    qpos, qvel = oracle.init_qpos + 0.01, oracle.init_qvel + 0.02
    oracle.set_state(qpos, qvel)
    envs.set_attr("qpos", [qpos, qpos])
    envs.set_attr("qvel", [qvel, qvel])
    for _ in range(3):
        action[:] = random_actions(oracle.action_space, 1, rng)
        obs, reward, *_ = envs.step(action)
        expected, expected_reward, *_ = oracle.step(action[0])
        assert_same(obs[0], expected, case.tolerance, env_id)
        assert_same(reward[0], expected_reward, case.tolerance, env_id)
    envs.close()


def test_a_simulation_that_diverges_goes_on_as_gymnasiums(tmp_path: Path) -> None:
    """MuJoCo resets it and warns, once per process; no file is left where the program runs."""
    code = """
        import os
        import gymnasium, numpy as np
        import envfleet
        files = os.listdir()
        envs = envfleet.make("Hopper-v5", num_envs=2, terminate_when_unhealthy=False)
        envs.reset(seed=0)
        envs.set_attr("qvel", [np.full(6, 1e12)] * 2)
        obs, *_ = envs.step(np.zeros((2, 3), np.float32))
        assert os.listdir() == files
        oracle = gymnasium.make("Hopper-v5", terminate_when_unhealthy=False).unwrapped
        oracle.reset(seed=0)
        oracle.set_state(oracle.data.qpos.copy(), np.full(6, 1e12))
        expected, *_ = oracle.step(np.zeros(3, np.float32))
        np.testing.assert_array_equal(obs[0], expected)
        envs.close()
    """
    result = run_script(tmp_path, code)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("MuJoCo warns: ") == 1  # Gymnasium's own is another


def test_pictures_equal_gymnasiums(monkeypatch: pytest.MonkeyPatch) -> None:
    if not os.environ.get("DISPLAY"):
        monkeypatch.setenv("MUJOCO_GL", os.environ.get("MUJOCO_GL", "egl"))
    import mujoco

    camera = {"distance": 3.0, "lookat": np.array([0.1, 0.0, 0.5])}
    tracking = {"type": mujoco.mjtCamera.mjCAMERA_TRACKING, "trackbodyid": np.int64(2)}
    flags = {mujoco.mjtVisFlag.mjVIS_JOINT: True}
    for env_id, params in (
        ("Ant-v5", {"width": 120, "height": 80}),
        ("Hopper-v5", {"default_camera_config": camera, "visual_options": {0: True}}),
        ("Swimmer-v5", {"default_camera_config": tracking, "visual_options": flags}),
        ("HalfCheetah-v4", {"camera_id": -1}),
        ("Walker2d-v5", {"camera_name": "track"}),
    ):
        try:
            oracle = gymnasium.make(env_id, render_mode="rgb_array", **params)
            oracle.reset(seed=5)
            expected = oracle.render()
        except Exception as error:  # each of the three libraries has errors of its own
            pytest.skip(f"nothing to draw with here: {error}")
        envs = envfleet.make(env_id, num_envs=2, render_mode="rgb_array", **params)
        envs.reset(seed=5)
        frames = envs.render()
        np.testing.assert_array_equal(frames[0], expected, err_msg=env_id)
        assert (frames[0] != frames[1]).any()
        envs.close()
        oracle.close()
