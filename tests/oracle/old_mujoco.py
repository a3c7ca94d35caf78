"""gym's MuJoCo envs of versions 2 and 3, and Pusher-v4, restated in Python on today's bindings.

Written from the rules of those versions, and apart from the native envs: each env is a few functions of
MuJoCo's data. mujoco-py, on which the originals ran, called the same functions of MuJoCo in the same order, and did not
compute contact forces, which therefore are zero unless post_constraint is set.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import mujoco
import numpy as np
from gymnasium import spaces

from envfleet.envs.mujoco_plugin import asset_folder


class OldEnv(gymnasium.Env):
    xml_file = ""
    frame_skip = 5
    noise = 0.1
    is_normal = False  # noise in velocities: normal, or uniform
    limit = 1000
    threshold: float | None = None

    def __init__(self, version: int, max_episode_steps: int | None = None, **params: Any) -> None:
        self.version = version
        self.params = {**self.defaults(), **params}
        self.frame_skip = self.params.pop("frame_skip", self.frame_skip)
        self.noise = self.params.get("reset_noise_scale", self.noise)
        self.has_forces = self.params.get("post_constraint", version > 3)
        self.model = mujoco.MjModel.from_xml_path(str(asset_folder() / self.xml_file))
        self.data = mujoco.MjData(self.model)
        self.init_qpos, self.init_qvel = self.data.qpos.copy(), self.data.qvel.copy()
        self.dt = self.model.opt.timestep * self.frame_skip
        self.max_episode_steps, self.elapsed = max_episode_steps or self.limit, 0
        mujoco.mj_forward(self.model, self.data)
        self.observation_space = spaces.Box(-np.inf, np.inf, self.observe().shape, np.float64)
        low, high = self.model.actuator_ctrlrange.T.astype(np.float32)
        self.action_space = spaces.Box(low, high, dtype=np.float32)

    def defaults(self) -> dict[str, Any]:
        return {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:], self.data.qvel[:] = self.start()
        mujoco.mj_forward(self.model, self.data)
        self.elapsed = 0
        return self.observe(), {}

    def start(self):
        qpos = self.init_qpos + self.np_random.uniform(-self.noise, self.noise, self.model.nq)
        if self.is_normal:
            return qpos, self.init_qvel + self.noise * self.np_random.standard_normal(self.model.nv)
        return qpos, self.init_qvel + self.np_random.uniform(-self.noise, self.noise, self.model.nv)

    def step(self, action):
        before = self.measure()
        self.data.ctrl[:] = action
        for _ in range(self.frame_skip):
            mujoco.mj_step(self.model, self.data)
        if self.has_forces:
            mujoco.mj_rnePostConstraint(self.model, self.data)
        reward, terminated, info = self.score(action, before, self.measure())
        self.elapsed += 1
        return self.observe(), reward, bool(terminated), self.elapsed >= self.max_episode_steps, info

    def measure(self):
        return self.data.qpos[:2].copy()

    def place(self, name):
        return self.data.body(name).xpos.copy()

    def positions(self, skipped):
        return self.data.qpos[skipped if self.params.get("exclude_current_positions_from_observation", True) else 0 :]

    def travel(self, before, after, forward):
        """The infos that version 3 added."""
        if self.version == 2:
            return {}
        velocity = (after - before) / self.dt
        return {
            "x_position": after[0],
            "y_position": after[1],
            "distance_from_origin": np.linalg.norm(after, ord=2),
            "x_velocity": velocity[0],
            "y_velocity": velocity[1],
            "forward_reward": forward,
        }

    def survival(self, is_healthy):
        """The reward for health, and whether the episode ends."""
        ends = self.params["terminate_when_unhealthy"]
        return float(is_healthy or ends) * self.params["healthy_reward"], ends and not is_healthy


class Ant(OldEnv):
    xml_file, is_normal, threshold = "ant.xml", True, 6000.0

    def defaults(self):
        return {
            "ctrl_cost_weight": 0.5,
            "contact_cost_weight": 5e-4,
            "healthy_reward": 1.0,
            "terminate_when_unhealthy": True,
            "healthy_z_range": (0.2, 1.0),
            "contact_force_range": (-1.0, 1.0),
        }

    def measure(self):
        return self.place("torso")[:2]

    def forces(self):
        return np.clip(self.data.cfrc_ext, *self.params["contact_force_range"])

    def observe(self):
        return np.concatenate([self.positions(2), self.data.qvel, self.forces().ravel()])

    def score(self, action, before, after):
        forward = ((after - before) / self.dt)[0]
        ctrl = self.params["ctrl_cost_weight"] * np.sum(np.square(action))
        contact = self.params["contact_cost_weight"] * np.sum(np.square(self.forces()))
        state, (low, high) = np.concatenate([self.data.qpos, self.data.qvel]), self.params["healthy_z_range"]
        survive, terminated = self.survival(np.isfinite(state).all() and low <= state[2] <= high)
        v2 = self.version == 2
        reward = forward - ctrl - contact + survive if v2 else (forward + survive) - (ctrl + contact)
        parts = {"reward_forward": forward, "reward_ctrl": -ctrl, "reward_contact": -contact, "reward_survive": survive}
        return reward, terminated, {**parts, **self.travel(before, after, forward)}


class HalfCheetah(OldEnv):
    xml_file, is_normal, threshold = "half_cheetah.xml", True, 4800.0

    def defaults(self):
        return {"forward_reward_weight": 1.0, "ctrl_cost_weight": 0.1}

    def observe(self):
        return np.concatenate([self.positions(1), self.data.qvel])

    def score(self, action, before, after):
        velocity = (after[0] - before[0]) / self.dt
        run, ctrl = (
            self.params["forward_reward_weight"] * velocity,
            self.params["ctrl_cost_weight"] * np.sum(np.square(action)),
        )
        place = {} if self.version == 2 else {"x_position": after[0], "x_velocity": velocity}
        return run - ctrl, False, {**place, "reward_run": run, "reward_ctrl": -ctrl}


class Swimmer(OldEnv):
    xml_file, frame_skip, threshold = "swimmer.xml", 4, 360.0

    def defaults(self):
        return {"forward_reward_weight": 1.0, "ctrl_cost_weight": 1e-4}

    def observe(self):
        return np.concatenate([self.positions(2), self.data.qvel])

    def score(self, action, before, after):
        forward = self.params["forward_reward_weight"] * ((after - before) / self.dt)[0]
        ctrl = self.params["ctrl_cost_weight"] * np.sum(np.square(action))
        infos = {"reward_fwd": forward, "reward_ctrl": -ctrl, **self.travel(before, after, forward)}
        return forward - ctrl, False, infos


class Walker2d(OldEnv):
    xml_file, frame_skip, noise = "walker2d.xml", 4, 5e-3

    def defaults(self):
        return {
            "forward_reward_weight": 1.0,
            "ctrl_cost_weight": 1e-3,
            "healthy_reward": 1.0,
            "terminate_when_unhealthy": True,
            "healthy_z_range": (0.8, 2.0),
            "healthy_angle_range": (-1.0, 1.0),
        }

    def observe(self):
        return np.concatenate([self.positions(1), np.clip(self.data.qvel, -10, 10)])

    def is_healthy(self):
        (low, high), (left, right) = self.params["healthy_z_range"], self.params["healthy_angle_range"]
        return low < self.data.qpos[1] < high and left < self.data.qpos[2] < right

    def score(self, action, before, after):
        velocity = (after[0] - before[0]) / self.dt
        survive, terminated = self.survival(self.is_healthy())
        ctrl = self.params["ctrl_cost_weight"] * np.sum(np.square(action))
        reward = self.params["forward_reward_weight"] * velocity + survive - ctrl
        return reward, terminated, {} if self.version == 2 else {"x_position": after[0], "x_velocity": velocity}


class Hopper(Walker2d):
    xml_file, threshold = "hopper.xml", 3800.0

    def defaults(self):
        own = {"healthy_z_range": (0.7, np.inf), "healthy_angle_range": (-0.2, 0.2)}
        return {**super().defaults(), **own, "healthy_state_range": (-100.0, 100.0)}

    def is_healthy(self):
        low, high = self.params["healthy_state_range"]
        state = np.concatenate([self.data.qpos, self.data.qvel])[2:]
        return super().is_healthy() and np.all((low < state) & (state < high))


class Humanoid(OldEnv):
    xml_file, noise = "humanoid.xml", 1e-2

    def defaults(self):
        return {
            "forward_reward_weight": 1.25,
            "ctrl_cost_weight": 0.1,
            "contact_cost_weight": 5e-7,
            "contact_cost_range": (-np.inf, 10.0),
            "healthy_reward": 5.0,
            "terminate_when_unhealthy": True,
            "healthy_z_range": (1.0, 2.0),
        }

    def measure(self):
        mass = np.expand_dims(self.model.body_mass, axis=1)
        return (np.sum(mass * self.data.xipos, axis=0) / np.sum(mass))[:2]

    def observe(self):
        data = self.data
        parts = (data.qvel, data.cinert, data.cvel, data.qfrc_actuator, data.cfrc_ext)
        return np.concatenate([self.positions(2), *(part.ravel() for part in parts)])

    def costs(self):
        ctrl = self.params["ctrl_cost_weight"] * np.sum(np.square(self.data.ctrl))
        contact = self.params["contact_cost_weight"] * np.sum(np.square(self.data.cfrc_ext))
        return ctrl, np.clip(contact, *self.params["contact_cost_range"])

    def score(self, action, before, after):
        (ctrl, contact), z, (low, high) = self.costs(), self.data.qpos[2], self.params["healthy_z_range"]
        weight = self.params["forward_reward_weight"]
        if self.version == 2:
            forward = weight * (after[0] - before[0]) / self.dt
            survive, terminated = self.survival(not (z < low or z > high))
            reward = forward - ctrl - contact + survive
        else:
            forward = weight * ((after - before) / self.dt)[0]
            survive, terminated = self.survival(low < z < high)
            reward = (forward + survive) - (ctrl + contact)
        parts = {"reward_linvel": forward, "reward_quadctrl": -ctrl, "reward_alive": survive, "reward_impact": -contact}
        return reward, terminated, {**parts, **self.travel(before, after, forward)}


class HumanoidStandup(Humanoid):
    xml_file = "humanoidstandup.xml"

    def score(self, action, before, after):
        (ctrl, impact), up = self.costs(), (self.data.qpos[2] - 0) / self.model.opt.timestep
        infos = {"reward_linup": up, "reward_quadctrl": -ctrl, "reward_impact": -impact}
        return up - ctrl - impact + 1, False, infos


class InvertedPendulum(OldEnv):
    xml_file, frame_skip, noise, threshold = "inverted_pendulum.xml", 2, 0.01, 950.0

    def observe(self):
        return np.concatenate([self.data.qpos, self.data.qvel])

    def score(self, action, before, after):
        seen = self.observe()
        return 1.0, not (np.isfinite(seen).all() and np.abs(seen[1]) <= 0.2), {}


class InvertedDoublePendulum(OldEnv):
    xml_file, is_normal, threshold = "inverted_double_pendulum.xml", True, 9100.0

    def observe(self):
        data = self.data
        turned = (data.qpos[:1], np.sin(data.qpos[1:]), np.cos(data.qpos[1:]))
        return np.concatenate([*turned, np.clip(data.qvel, -10, 10), np.clip(data.qfrc_constraint, -10, 10)])

    def score(self, action, before, after):
        x, _, y = self.data.site_xpos[0]
        v1, v2 = self.data.qvel[1:3]
        reward = 10 - (0.01 * x**2 + (y - 2) ** 2) - (1e-3 * v1**2 + 5e-3 * v2**2)
        return reward, y <= 1, {}


class Reacher(OldEnv):
    xml_file, frame_skip, limit, threshold = "reacher.xml", 2, 50, -3.75

    def start(self):
        qpos = self.np_random.uniform(-0.1, 0.1, self.model.nq) + self.init_qpos
        while True:
            goal = self.np_random.uniform(-0.2, 0.2, 2)
            if np.linalg.norm(goal) < 0.2:
                break
        qpos[-2:] = goal
        qvel = self.init_qvel + self.np_random.uniform(-0.005, 0.005, self.model.nv)
        qvel[-2:] = 0
        return qpos, qvel

    def measure(self):
        return self.place("fingertip") - self.place("target")

    def observe(self):
        theta = self.data.qpos[:2]
        return np.concatenate([np.cos(theta), np.sin(theta), self.data.qpos[2:], self.data.qvel[:2], self.measure()])

    def score(self, action, before, after):
        dist, ctrl = -np.linalg.norm(before), -np.square(action).sum()
        return dist + ctrl, False, {"reward_dist": dist, "reward_ctrl": ctrl}


class Pusher(OldEnv):
    xml_file, limit, threshold = "pusher.xml", 100, 0.0

    def start(self):
        qpos = self.init_qpos.copy()
        while True:
            cylinder = np.concatenate([self.np_random.uniform(-0.3, 0, 1), self.np_random.uniform(-0.2, 0.2, 1)])
            if np.linalg.norm(cylinder) > 0.17:
                break
        qpos[-4:-2], qpos[-2:] = cylinder, 0
        qvel = self.init_qvel + self.np_random.uniform(-0.005, 0.005, self.model.nv)
        qvel[-4:] = 0
        return qpos, qvel

    def measure(self):
        return self.place("object") - self.place("tips_arm"), self.place("object") - self.place("goal")

    def observe(self):
        places = [self.place(name) for name in ("tips_arm", "object", "goal")]
        return np.concatenate([self.data.qpos[:7], self.data.qvel[:7], *places])

    def score(self, action, before, after):
        near, dist = (-np.linalg.norm(way) for way in before)
        ctrl = -np.square(action).sum()
        return dist + 0.1 * ctrl + 0.5 * near, False, {"reward_dist": dist, "reward_ctrl": ctrl}


CLASSES: dict[str, type[OldEnv]] = {own.__name__: own for own in (
    Ant, HalfCheetah, Hopper, Humanoid, HumanoidStandup, InvertedDoublePendulum, InvertedPendulum, Pusher, Reacher,
    Swimmer, Walker2d,
)}  # fmt: skip


def make_old(env_id: str, **params: Any) -> OldEnv:
    name, version = env_id.split("-v")
    return CLASSES[name](int(version), **params)
