"""baselines.common.vec_env's wrappers for env-wrappers' vector envs: VecNormalize, VecFrameStack, VecMonitor.

Autoreset is same-step, so the row of a step that ends an episode already shows the next one's first observation. The
last observation, info["terminal_observation"], is normalized and stacked like the others.
"""

from __future__ import annotations

import csv
import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.compat.env_wrappers.vec_env import SubprocVecEnv, VecEnv, VecEnvWrapper, VecStep
from envfleet.core.errors import ConfigError
from envfleet.wrappers.normalize import RunningMeanStd

_TERMINAL = "terminal_observation"


class ShmemVecEnv(SubprocVecEnv):
    """SubprocVecEnv under baselines' other name: observations are in shared memory in both.

    spaces: accepted and ignored; the envs define theirs.
    """

    def __init__(
        self, env_fns: Sequence[Callable[[], Any]], spaces: Any = None, context: str | None = None, **options: Any
    ) -> None:
        super().__init__(env_fns, context, **options)


class VecNormalize(VecEnvWrapper):
    """Observations and rewards scaled by running statistics: ob_rms and ret_rms, None where ob or ret is False."""

    def __init__(
        self,
        venv: VecEnv,
        ob: bool = True,
        ret: bool = True,
        clipob: float = 10.0,
        cliprew: float = 10.0,
        gamma: float = 0.99,
        epsilon: float = 1e-8,
        use_tf: bool = False,
    ) -> None:
        super().__init__(venv)
        if use_tf:
            raise ConfigError("use_tf expected False, got True; the statistics are NumPy arrays, leave it out")
        self.ob_rms = RunningMeanStd(_box_of("VecNormalize", venv).shape) if ob else None
        self.ret_rms = RunningMeanStd() if ret else None
        self.clipob, self.cliprew, self.gamma, self.epsilon = clipob, cliprew, gamma, epsilon
        self.ret = np.zeros(self.num_envs)

    def reset(self) -> Any:
        """Reset all envs and normalize their observations."""
        self.ret = np.zeros(self.num_envs)
        return self._updated(self.venv.reset())

    def step_wait(self) -> VecStep:
        """Receive the step and normalize it."""
        obs, rewards, dones, infos = self.venv.step_wait()
        self.ret = self.ret * self.gamma + rewards
        obs = self._updated(obs)
        if self.ret_rms is not None:
            self.ret_rms.update(self.ret)
            rewards = np.clip(rewards / np.sqrt(self.ret_rms.var + self.epsilon), -self.cliprew, self.cliprew)
        self.ret[dones] = 0.0
        for row in np.flatnonzero(dones):
            infos[row][_TERMINAL] = self._normalized(infos[row][_TERMINAL])
        return obs, rewards, dones, infos

    def _updated(self, obs: NDArray[Any]) -> NDArray[Any]:
        if self.ob_rms is not None:
            self.ob_rms.update(obs)
        return self._normalized(obs)

    def _normalized(self, obs: NDArray[Any]) -> NDArray[Any]:
        if self.ob_rms is None:
            return obs
        scaled = (obs - self.ob_rms.mean) / np.sqrt(self.ob_rms.var + self.epsilon)
        clipped: NDArray[Any] = np.clip(scaled, -self.clipob, self.clipob)
        return clipped


class VecFrameStack(VecEnvWrapper):
    """Stacks the last nstack observations along the last axis, newest last; an episode starts after zeros."""

    def __init__(self, venv: VecEnv, nstack: int) -> None:
        space = _box_of("VecFrameStack", venv)
        if not isinstance(nstack, (int, np.integer)) or nstack < 1 or not space.shape:
            raise ConfigError(
                f"VecFrameStack expected nstack >= 1 and array observations, got nstack={nstack!r} and {space}"
            )
        low, high = (np.repeat(side, nstack, axis=-1) for side in (space.low, space.high))
        super().__init__(venv, observation_space=spaces.Box(low, high, low.shape, np.dtype(space.dtype).type))
        self.nstack = int(nstack)
        self.stackedobs = np.zeros((self.num_envs, *low.shape), low.dtype)
        self._width = space.shape[-1]

    def reset(self) -> Any:
        """Reset all envs and begin their stacks."""
        self.stackedobs[...] = 0
        self.stackedobs[..., -self._width :] = self.venv.reset()
        return self.stackedobs.copy()

    def step_wait(self) -> VecStep:
        """Receive the step and add its observations to the stacks."""
        obs, rewards, dones, infos = self.venv.step_wait()
        self.stackedobs = np.roll(self.stackedobs, -self._width, axis=-1)
        for row in np.flatnonzero(dones):
            last = self.stackedobs[row].copy()
            last[..., -self._width :] = infos[row][_TERMINAL]
            infos[row][_TERMINAL] = last
        self.stackedobs[dones] = 0
        self.stackedobs[..., -self._width :] = obs
        return self.stackedobs.copy(), rewards, dones, infos


class VecMonitor(VecEnvWrapper):
    """Adds info["episode"] = {"r": return, "l": length, "t": seconds since the start} to the step that ends an episode.

    filename: a CSV file that gets a line per episode, in baselines' monitor format. keep_buf: how many episodes
    epret_buf and eplen_buf keep. info_keywords: entries of info that are copied into the episode's.
    """

    def __init__(
        self, venv: VecEnv, filename: str | None = None, keep_buf: int = 0, info_keywords: Sequence[str] = ()
    ) -> None:
        super().__init__(venv)
        self.eprets: NDArray[np.float32] = np.zeros(self.num_envs, dtype=np.float32)
        self.eplens: NDArray[np.int32] = np.zeros(self.num_envs, dtype=np.int32)
        self.epcount = 0
        self.tstart = time.time()
        self.info_keywords = tuple(info_keywords)
        self.keep_buf = keep_buf
        self.epret_buf: deque[float] = deque(maxlen=keep_buf)
        self.eplen_buf: deque[int] = deque(maxlen=keep_buf)
        self._file = None if filename is None else self._open(filename)

    def reset(self) -> Any:
        """Reset all envs and their statistics."""
        self.eprets[:] = 0
        self.eplens[:] = 0
        return self.venv.reset()

    def step_wait(self) -> VecStep:
        """Receive the step and count."""
        obs, rewards, dones, infos = self.venv.step_wait()
        self.eprets += rewards
        self.eplens += 1
        for row in np.flatnonzero(dones):
            seconds = round(time.time() - self.tstart, 6)
            episode = {"r": float(self.eprets[row]), "l": int(self.eplens[row]), "t": seconds}
            episode.update({key: infos[row][key] for key in self.info_keywords})
            infos[row]["episode"] = episode
            self.epret_buf.append(episode["r"])
            self.eplen_buf.append(int(episode["l"]))
            self.epcount += 1
            if self._file is not None:
                self._writer.writerow(episode)
                self._file.flush()
            self.eprets[row], self.eplens[row] = 0, 0
        return obs, rewards, dones, infos

    def close(self) -> None:
        """Close the file and the envs."""
        if self._file is not None:
            self._file.close()
            self._file = None
        super().close()

    def _open(self, filename: str) -> Any:
        path = Path(filename)
        if path.is_dir():
            path = path / "monitor.csv"
        elif not path.name.endswith("monitor.csv"):
            path = path.with_name(f"{path.name}.monitor.csv")
        file = path.open("w", newline="")
        file.write(f"# {json.dumps({'t_start': self.tstart})}\n")
        self._writer = csv.DictWriter(file, fieldnames=("r", "l", "t", *self.info_keywords))
        self._writer.writeheader()
        return file


def _box_of(wrapper: str, venv: VecEnv) -> spaces.Box:
    if not isinstance(venv.observation_space, spaces.Box):
        raise ConfigError(f"{wrapper} expected envs with a Box observation_space, got {venv.observation_space}")
    return venv.observation_space
