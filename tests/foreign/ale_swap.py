"""A pytest plug-in that puts envfleet's Atari pools in the place of ale-py's vector env.

Loaded with `-p ale_swap` before a test imports anything: gymnasium.make_vec() of an ALE id then makes a pool with
EnvPool's Atari options. AleDialect translates what docs/compatibility.md lists as ale-py's own conventions, and
nothing else.
"""

import gymnasium
import numpy as np
from gymnasium.vector.utils import batch_space

import envfleet

OPTION_NAMES = {"grayscale": "gray_scale", "maxpool": "max_pool", "reward_clipping": "reward_clip"}


class AleDialect:
    """A pool whose rows read as those of ale_py.AtariVectorEnv."""

    def __init__(self, pool, stack_num, has_colours):
        self._pool, self._stack_num, self._has_colours = pool, stack_num, has_colours
        batch_size = pool.config["batch_size"]
        self._is_async = batch_size < pool.num_envs
        self.single_observation_space = gymnasium.spaces.Box(
            0, 255, self._frames(np.zeros((1, *pool.single_observation_space.shape), np.uint8)).shape[1:], np.uint8
        )
        self.observation_space = batch_space(self.single_observation_space, batch_size)
        self.action_space = batch_space(pool.single_action_space, batch_size)
        self._num_frames = np.zeros(pool.num_envs, np.int64)  # since the last reset, per env
        self._has_ended = np.zeros(pool.num_envs, bool)
        self._env_ids = np.arange(pool.num_envs)
        names = ("lives", "episode_frame_number", "frame_number")
        self._last_infos = {name: np.zeros(pool.num_envs, np.int32) for name in names}

    def __getattr__(self, name):
        return getattr(self._pool, name)

    def reset(self, *, seed=None, options=None):
        if self._is_async and not options:  # one batch comes back, as from EnvPool
            self._pool.async_reset(seed=seed)
            obs, *_, info = self._pool.recv()
        else:
            obs, info = self._pool.reset(seed=seed, options=options)
        mask = (options or {}).get("reset_mask")
        ids = self._env_ids = info["env_id"] if mask is None else np.arange(self._pool.num_envs)
        if mask is None:
            self._has_ended[:] = True  # an asynchronous pool delivers the other envs' first rows later
        received = ids if mask is None else ids[mask]
        self._num_frames[received] = 1
        self._has_ended[received] = False
        return self._observations(obs, ids), self._infos(info, ids)

    def step(self, actions):
        # ale-py's asynchronous step() sends to the envs that were received last.
        obs, rewards, terminated, truncated, info = self._pool.step(actions, self._env_ids)
        ids = self._env_ids = info["env_id"]
        self._num_frames[ids] = np.where(self._has_ended[ids], 1, self._num_frames[ids] + 1)
        self._has_ended[ids] = terminated | truncated
        return self._observations(obs, ids), rewards.astype(np.int32), terminated, truncated, self._infos(info, ids)

    def _frames(self, obs):
        if not self._has_colours:
            return obs
        num_envs, _, height, width = obs.shape
        return np.moveaxis(obs.reshape(num_envs, self._stack_num, 3, height, width), 2, -1)

    def _observations(self, obs, ids):
        frames = self._frames(obs).copy()
        for row, num_frames in enumerate(self._num_frames[ids]):
            frames[row, : max(0, self._stack_num - num_frames)] = 0
        return frames

    def _infos(self, info, ids):
        result = {"env_id": ids}
        for name, values in self._last_infos.items():
            is_set = info[f"_{name}"]  # a partial reset has the infos of its own envs alone; ale-py repeats the others'
            values[ids[is_set]] = info[name][is_set]
            result[name] = values[ids]
        return result


_their_make_vec = gymnasium.make_vec


def _make_vec(env_id, num_envs=1, **options):
    if not str(env_id).startswith("ALE/"):
        return _their_make_vec(env_id, num_envs, **options)
    options = {OPTION_NAMES.get(name, name): value for name, value in options.items()}
    try:
        pool = envfleet.make(
            env_id.removeprefix("ALE/"), num_envs=num_envs, backend="serial", frames_in_info=True, **options
        )
    except envfleet.ConfigError as error:
        raise gymnasium.error.Error(str(error)) from error
    return AleDialect(pool, options.get("stack_num", 4), not options.get("gray_scale", True))


gymnasium.make_vec = _make_vec


def pytest_report_header() -> str:
    return "ALE ids of gymnasium.make_vec() are pools of envfleet"
