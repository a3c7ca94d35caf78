"""Real third-party code that imports envpool, unchanged, on the alias.

Each runs in a process of its own: these libraries look for envpool when they are imported.
"""

from __future__ import annotations

import importlib.util

import pytest

START = """
import warnings
import envfleet.compat.envpool
envfleet.compat.envpool.install()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what third-party imports deprecate is theirs
    import torch
    {imports}
warnings.simplefilter("ignore", DeprecationWarning)
torch.set_num_threads(1)
import numpy as np
"""


def needs(*packages):
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


def run(run_python, tmp_path, imports, body):
    # Not -W error: the warnings are those of the libraries.
    (tmp_path / "main.py").write_text(START.format(imports=imports) + body)
    return run_python("-W", "default", "main.py").stdout


TORCHRL = "from torchrl.envs import GymEnv, MultiThreadedEnv, MultiThreadedEnvWrapper, check_env_specs"


@needs("torch", "torchrl", "treevalue")
def test_torchrl_multi_threaded_env(run_python, tmp_path):
    body = """
for name in ("CartPole-v1", "Pendulum-v1", "Taxi-v4"):
    env = MultiThreadedEnv(num_workers=3, env_name=name)
    check_env_specs(env)
    assert env.rollout(30, break_when_any_done=False).shape == (3, 30)
    env.set_seed(7)
    first = env.reset()["observation"]
    env.set_seed(7)
    data = env.reset()
    assert (first == data["observation"]).all()
    before = data["observation"].clone()  # TorchRL writes the new rows into what it gave out
    partly = env.reset(data.clone().set("_reset", torch.tensor([True, False, True])))["observation"]
    assert (partly[1] == before[1]).all()
    assert name == "Taxi-v4" or not (partly[0] == before[0]).any()
    env.close()
    env.reset()
    env.close()
check_env_specs(GymEnv("CartPole-v1"))  # Gymnasium's envs as before, beside the light gym
print("done")
"""
    assert "done" in run(run_python, tmp_path, TORCHRL, body)


@needs("torch", "torchrl", "treevalue")
def test_our_multi_threaded_env_is_torchrls(run_python, tmp_path):
    """TorchRL's own class on the alias, and the one of envfleet.compat.torchrl, have the same specs and rows."""
    body = """
from envfleet.compat.torchrl import MultiThreadedEnv as Ours
from envfleet.building.registry import family_of
import envpool

ids = {"toy text": [], "classic control": [], "bsuite": [], "atari": [], "dm_control": []}
for env_id in envpool.list_all_envs():
    ids.get(family_of(env_id).name, []).append(env_id)
# A game or a task each time: they differ by number of actions and by keys, but take a second to start.
some = [*ids["toy text"], *ids["classic control"], *ids["bsuite"], *ids["atari"][::150], *ids["dm_control"][::25]]
num_compared = 0
for env_id in some:
    try:
        theirs = MultiThreadedEnv(2, env_id)
    except ImportError:  # an extra that is not installed
        continue
    ours = Ours(2, env_id)
    for name in ("observation_spec", "action_spec", "reward_spec", "done_spec"):
        assert getattr(ours, name) == getattr(theirs, name), (env_id, name)
    action = ours.action_spec.rand()
    # A clone: TorchRL writes the new rows into what it gave out.
    expected, got = theirs.reset().clone(), ours.reset()
    expected, got = theirs.step(expected.set("action", action)), ours.step(got.set("action", action))
    assert set(got.keys(True, True)) == set(expected.keys(True, True)), env_id
    for key, column in expected.items(True, True):
        assert got[key].dtype == column.dtype, (env_id, key)
        # Where the spec has a dimension of one for a scalar Box, TorchRL's rows lack it.
        assert (got[key] == column.reshape(got[key].shape)).all(), (env_id, key)
    theirs.close()
    ours.close()
    num_compared += 1
assert num_compared >= 16
print("done")
"""
    assert "done" in run(run_python, tmp_path, TORCHRL, body)


@needs("torch", "torchrl", "treevalue")
def test_torchrl_multi_threaded_env_wrapper(run_python, tmp_path):
    (tmp_path / "lives.py").write_text(DICT_ENV)
    body = """
import envpool
from lives import DictEnv
for env_type in ("gym", "gymnasium"):
    for task in ("CartPole-v1", DictEnv):
        pool = envpool.make(task, env_type=env_type, num_envs=4, gym_reset_return_info=True, backend="auto")
        env = MultiThreadedEnvWrapper(pool)
        check_env_specs(env)
        assert env.rollout(10, break_when_any_done=False).shape == (4, 10)
        env.close()
try:
    MultiThreadedEnvWrapper(object())
except (TypeError, AttributeError):
    print("done")
"""
    assert "done" in run(run_python, tmp_path, TORCHRL, body)


DICT_ENV = """
import gymnasium
import numpy as np
from gymnasium import spaces


class DictEnv(gymnasium.Env):
    observation_space = spaces.Dict({"place": spaces.Box(-1, 1, (2,), np.float32), "kind": spaces.Discrete(3)})
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._obs(), {}

    def step(self, action):
        return self._obs(), 1.0, bool(self.np_random.random() < 0.1), False, {}

    def _obs(self):
        place = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return {"place": place, "kind": int(self.np_random.integers(3))}
"""


@needs("torch", "tianshou")
def test_tianshou_collects_from_it(run_python, tmp_path):
    imports = """
    from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.highlevel.env import EnvMode, EnvPoolFactory
    from tianshou.utils.net.common import Net
"""
    body = """
env = EnvPoolFactory().create_venv("CartPole-v1", num_envs=4, mode=EnvMode.TRAINING, seed=0, kwargs={})
net = Net(state_shape=env.observation_space.shape, action_shape=env.action_space.n, hidden_sizes=[8])
policy = DiscreteQLearningPolicy(model=net, action_space=env.action_space, eps_training=1.0)
buffer = VectorReplayBuffer(1000, 4)
collector = Collector(policy, env, buffer)
collector.reset()
stats = collector.collect(n_step=200)
assert stats.n_collected_steps == 200
stats = collector.collect(n_episode=6)
assert stats.n_collected_episodes == 6
stats = collector.collect(n_step=40, random=True)
batch = buffer[:]
# The row of an end is the last of its episode: nothing of an autoreset came between.
assert (batch.info.elapsed_step[batch.done] >= 8).all()
assert (batch.rew == 1).all()
collector.close()
print("done")
"""
    assert "done" in run(run_python, tmp_path, imports.strip(), body)


@needs("torch")
def test_a_training_script_in_cleanrls_style(run_python, tmp_path, request):
    probes = request.path.parent / "compat_probes.py"
    (tmp_path / "compat_probes.py").write_text(probes.read_text())
    body = """
import envpool, gym
from compat_probes import LivesEnv
from torch import nn
from torch.distributions.categorical import Categorical


class EpisodeStatistics(gym.Wrapper):
    def __init__(self, env):
        super().__init__(env)
        self.num_envs = getattr(env, "num_envs", 1)
        env.reset()
        self.has_lives = env.step(np.zeros(self.num_envs, dtype=int))[-1]["lives"].sum() > 0

    def reset(self, **kwargs):
        observations = super().reset(**kwargs)
        self.returns = np.zeros(self.num_envs, dtype=np.float32)
        self.lengths = np.zeros(self.num_envs, dtype=np.int32)
        return observations

    def step(self, action):
        observations, rewards, dones, infos = super().step(action)
        self.returns += infos["reward"]
        self.lengths += 1
        infos["r"], infos["l"] = self.returns.copy(), self.lengths.copy()
        over = infos["terminated"]
        self.returns *= 1 - over
        self.lengths *= 1 - over
        return observations, rewards, dones, infos


num_envs, num_steps = 4, 32
envs = envpool.make(LivesEnv, env_type="gym", num_envs=num_envs, episodic_life=True, reward_clip=True, seed=1)
envs.num_envs = num_envs
envs.single_action_space = envs.action_space
envs.single_observation_space = envs.observation_space
envs = EpisodeStatistics(envs)
assert envs.has_lives
assert isinstance(envs.action_space, gym.spaces.Discrete)
trunk = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(envs.single_observation_space.shape)), 16), nn.Tanh())
actor, critic = nn.Linear(16, envs.single_action_space.n), nn.Linear(16, 1)
optimizer = torch.optim.Adam([*trunk.parameters(), *actor.parameters(), *critic.parameters()], lr=1e-3)
obs = torch.zeros((num_steps, num_envs, *envs.single_observation_space.shape))
actions = torch.zeros((num_steps, num_envs, *envs.single_action_space.shape))
rewards, dones = torch.zeros((num_steps, num_envs)), torch.zeros((num_steps, num_envs))
next_obs, next_done = torch.Tensor(envs.reset()), torch.zeros(num_envs)
episodes = []
for update in range(3):
    for step in range(num_steps):
        obs[step], dones[step] = next_obs, next_done
        with torch.no_grad():
            action = Categorical(logits=actor(trunk(next_obs / 255.0))).sample()
        actions[step] = action
        next_obs, reward, done, info = envs.step(action.cpu().numpy())
        rewards[step] = torch.tensor(reward).view(-1)
        next_obs, next_done = torch.Tensor(next_obs), torch.Tensor(done)
        episodes += [float(info["r"][i]) for i, d in enumerate(done) if d and info["lives"][i] == 0]
    hidden = trunk(obs.flatten(0, 1) / 255.0)
    chosen = Categorical(logits=actor(hidden)).log_prob(actions.flatten())
    advantage = rewards.flatten() - critic(hidden).flatten()
    loss = -(chosen * advantage.detach()).mean() + advantage.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
assert episodes and max(episodes) > 1.0  # the raw rewards of whole games, not of lives
assert set(rewards.unique().tolist()) <= {0.0, 1.0}
envs.close()
print("done")
"""
    assert "done" in run(run_python, tmp_path, "", body)


@needs("torch", "stable_baselines3")
def test_an_adapter_for_stable_baselines3(run_python, tmp_path):
    imports = "from stable_baselines3 import PPO"
    body = """
import envpool
from envpool.python.protocol import EnvPool
from stable_baselines3.common.vec_env import VecEnvWrapper, VecMonitor


class Adapter(VecEnvWrapper):
    def __init__(self, venv: EnvPool):
        venv.num_envs = venv.spec.config.num_envs
        super().__init__(venv=venv)

    def step_async(self, actions):
        self.actions = actions

    def reset(self):
        return self.venv.reset()[0]

    def step_wait(self):
        obs, rewards, terminated, truncated, info = self.venv.step(self.actions)
        dones = terminated | truncated
        infos = []
        for i in range(self.num_envs):
            infos.append({key: value[i] for key, value in info.items() if isinstance(value, np.ndarray)})
            if dones[i]:
                infos[i]["terminal_observation"] = obs[i]
                obs[i] = self.venv.reset(np.array([i]))[0]
        return obs, rewards, dones, infos


env = VecMonitor(Adapter(envpool.make("CartPole-v1", env_type="gymnasium", num_envs=4, seed=0)))
PPO("MlpPolicy", env, n_steps=16, batch_size=32, n_epochs=1, device="cpu").learn(128)
env.close()
print("done")
"""
    assert "done" in run(run_python, tmp_path, imports, body)
