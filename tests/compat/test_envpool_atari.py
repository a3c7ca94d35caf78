"""Atari through EnvPool's API, as CleanRL's EnvPool scripts use it."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

import envfleet
from envfleet.compat import envpool

pytest.importorskip("ale_py")


KEYS = {"lives", "reward", "terminated", "elapsed_step", "env_id", "players", "ram", "TimeLimit.truncated"}


class EpisodeRecorder(gymnasium.Wrapper):
    """Sums up unclipped rewards until a game is over, whatever the episodes are that the agent sees."""

    def __init__(self, pool):
        super().__init__(pool)
        self.num_envs = pool.num_envs

    def reset(self, **kwargs):
        self.returns = np.zeros(self.num_envs, np.float32)
        self.lengths = np.zeros(self.num_envs, np.int32)
        return self.env.reset(**kwargs)

    def step(self, action):
        obs, rewards, dones, infos = self.env.step(action)
        self.returns += infos["reward"]
        self.lengths += 1
        infos["returned"], infos["lengths"] = self.returns.copy(), self.lengths.copy()
        self.returns *= 1 - infos["terminated"]
        self.lengths *= 1 - infos["terminated"]
        return obs, rewards, dones, infos


def make(num_envs, **options):
    pool = envpool.make(
        "Breakout-v5", env_type="gym", num_envs=num_envs, episodic_life=True, reward_clip=True, seed=1, **options
    )
    # What these scripts do before they wrap it.
    pool.num_envs = num_envs
    pool.single_action_space = pool.action_space
    pool.single_observation_space = pool.observation_space
    return pool


def test_a_training_loops_use():
    num_envs = 2
    pool = EpisodeRecorder(make(num_envs))
    obs = pool.reset()
    assert obs.shape == (num_envs, 4, 84, 84)
    assert obs.dtype == np.uint8
    random = np.random.default_rng(0)
    num_lost = num_over = 0
    lives = np.full(num_envs, 5)
    for _ in range(700):
        obs, rewards, dones, infos = pool.step(random.integers(pool.unwrapped.single_action_space.n, size=num_envs))
        assert rewards.dtype == np.float32
        assert set(np.unique(rewards)) <= {-1.0, 0.0, 1.0}
        assert {
            "lives",
            "reward",
            "terminated",
            "elapsed_step",
            "env_id",
            "players",
            "ram",
            "TimeLimit.truncated",
        } <= set(infos)
        for env_id in range(num_envs):
            if infos["terminated"][env_id]:
                assert dones[env_id]
                assert infos["lives"][env_id] == 0
                # The script logs the return of the whole game here, not of a life.
                assert infos["lengths"][env_id] > infos["elapsed_step"][env_id] >= 5
                num_over += 1
            elif dones[env_id]:
                assert infos["lives"][env_id] == lives[env_id] - 1 > 0
                num_lost += 1
        lives = infos["lives"].copy()
    assert num_over >= 2
    assert num_lost >= 8
    pool.close()


def test_elapsed_step_counts_the_game_and_so_does_the_limit():
    pool = make(1, max_episode_steps=70)
    pool.reset()
    random = np.random.default_rng(1)
    last, num_lost = 0, 0
    for _ in range(200):
        _, _, dones, infos = pool.step(random.integers(4, size=1))
        elapsed = infos["elapsed_step"][0]
        assert elapsed in (last, last + 1)  # the reset after a life counts nothing
        last = elapsed
        if infos["TimeLimit.truncated"][0]:
            break
        num_lost += dones[0]
    assert last == 70
    assert num_lost >= 1
    _, _, _, infos = pool.step(np.array([0]))
    assert (infos["elapsed_step"][0], infos["lives"][0]) == (0, 5)
    pool.close()


def test_asynchronous_use():
    pool = envpool.make_gymnasium("Pong-v5", num_envs=4, batch_size=2, num_threads=2, seed=1)
    pool.async_reset()
    seen = set()
    while len(seen) < 4:  # first come, first served: loading a game may take some as long as others play for
        obs, _, _, _, info = pool.recv()
        assert obs.shape == (2, 4, 84, 84)
        seen.update(info["env_id"].tolist())
        pool.send(np.zeros(2, np.int32), info["env_id"])
    pool.close()


def test_options_and_dm():
    pytest.importorskip("dm_env")
    pool = envpool.make_dm(
        "Pong-v5", num_envs=2, stack_num=2, img_height=40, img_width=50, gray_scale=False, noop_max=1, seed=0
    )
    step = pool.reset()
    assert step.observation.obs.shape == (2, 6, 40, 50)
    assert step.observation.lives.shape == (2,)
    step = pool.step(np.array([0, 1]))
    assert step.observation.ram.shape == (2, 128)
    pool.close()


@pytest.mark.parametrize(("env_id", "height"), [("Pong-v5", 210), ("Carnival-v5", 214)])
def test_render_gives_the_whole_screen_as_ale_py_does(env_id, height):
    """EnvPool cuts all screens to 210 rows: documented as a difference."""
    pool = envpool.make(env_id, env_type="gymnasium", num_envs=1, render_mode="rgb_array", backend="serial")
    pool.reset()
    assert pool.render().shape == (1, height, 160, 3)
    pool.close()


@pytest.mark.parametrize("name", ["frame_skip", "frameskip"])
def test_an_error_names_the_option_as_it_was_spelled(name):
    with pytest.raises(envfleet.ConfigError, match=rf"^{name} expected"):
        envfleet.make_spec("Pong-v5", **{name: 0})
