"""gym.wrappers of the stand-in: the commonly used wrappers of gym 0.25.

reset() returns the observation and step() a 4-tuple. If an env returns more (reset(return_info=True), a vector env's
arrays), the wrappers pass it on.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces.utils import flatten, flatten_space
from numpy.typing import NDArray

from envfleet.compat.gym_stand_in import ActionWrapper, ObservationWrapper, RewardWrapper, Wrapper
from envfleet.core.errors import CallOrderError, ConfigError
from envfleet.core.rendering import resized
from envfleet.wrappers.normalize import RunningMeanStd
from envfleet.wrappers.video import Video

_DEFAULT_FPS = 30
_GRAY_WEIGHTS = np.array([0.299, 0.587, 0.114])  # of red, green and blue, as OpenCV has them


# --- episodes --------------------------------------------------------------------------------------------


class TimeLimit(Wrapper):
    """Ends an episode after max_episode_steps; info["TimeLimit.truncated"] says whether only the limit ended it."""

    def __init__(self, env: Any, max_episode_steps: int | None = None) -> None:
        super().__init__(env)
        if max_episode_steps is None:
            max_episode_steps = getattr(getattr(env, "spec", None), "max_episode_steps", None)
        if max_episode_steps is None or max_episode_steps < 1:
            raise ConfigError(f"TimeLimit expected max_episode_steps of at least 1, got {max_episode_steps!r}")
        self._max_episode_steps = int(max_episode_steps)
        self._elapsed_steps: int | None = None

    def reset(self, **kwargs: Any) -> Any:
        """Reset the env and count from 0."""
        self._elapsed_steps = 0
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        """Step the env and count."""
        if self._elapsed_steps is None:
            raise CallOrderError("step() was called before reset(); call reset() first")
        obs, reward, done, info = self.env.step(action)
        self._elapsed_steps += 1
        if self._elapsed_steps >= self._max_episode_steps:
            info["TimeLimit.truncated"] = not done
            done = True
        return obs, reward, done, info


class OrderEnforcing(Wrapper):
    """Refuses step() and render() before the first reset()."""

    def __init__(self, env: Any, disable_render_order_enforcing: bool = False) -> None:
        super().__init__(env)
        self._has_reset = False
        self._allows_render = disable_render_order_enforcing

    def reset(self, **kwargs: Any) -> Any:
        """Reset the env."""
        self._has_reset = True
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        """Step the env."""
        self._check("step()")
        return self.env.step(action)

    def render(self, *args: Any, **kwargs: Any) -> Any:
        """Render the env."""
        if not self._allows_render:
            self._check("render()")
        return self.env.render(*args, **kwargs)

    def _check(self, method: str) -> None:
        if not self._has_reset:
            raise CallOrderError(f"{method} was called before reset(); call reset() first")


class RecordEpisodeStatistics(Wrapper):
    """Adds info["episode"] = {"r": return, "l": length, "t": seconds since the start} to the step that ends an episode.

    Around a vector env the three are arrays, and info["_episode"] masks the envs whose episode ended. return_queue and
    length_queue hold the last deque_size episodes.
    """

    def __init__(self, env: Any, deque_size: int = 100) -> None:
        super().__init__(env)
        self.num_envs = getattr(env, "num_envs", 1)
        self.is_vector_env = bool(getattr(env, "is_vector_env", False))
        self.t0 = time.perf_counter()
        self.episode_count = 0
        self.episode_returns: NDArray[np.float32] | None = None
        self.episode_lengths: NDArray[np.int32] | None = None
        self.return_queue: deque[float] = deque(maxlen=deque_size)
        self.length_queue: deque[int] = deque(maxlen=deque_size)

    def reset(self, **kwargs: Any) -> Any:
        """Reset the env and its statistics."""
        result = self.env.reset(**kwargs)
        self.episode_returns = np.zeros(self.num_envs, dtype=np.float32)
        self.episode_lengths = np.zeros(self.num_envs, dtype=np.int32)
        return result

    def step(self, action: Any) -> Any:
        """Step the env and count."""
        if self.episode_returns is None or self.episode_lengths is None:
            raise CallOrderError("step() was called before reset(); call reset() first")
        obs, reward, done, info = self.env.step(action)
        self.episode_returns += reward
        self.episode_lengths += 1
        ended = np.flatnonzero(np.atleast_1d(done))
        if ended.size:
            seconds = round(time.perf_counter() - self.t0, 6)
            info = {**info, **self._report(ended, seconds)}
            self.return_queue.extend(self.episode_returns[ended])
            self.length_queue.extend(self.episode_lengths[ended])
            self.episode_count += len(ended)
            self.episode_returns[ended] = 0
            self.episode_lengths[ended] = 0
        return obs, reward, done, info

    def _report(self, ended: NDArray[np.intp], seconds: float) -> dict[str, Any]:
        assert self.episode_returns is not None
        assert self.episode_lengths is not None
        if not self.is_vector_env:
            return {"episode": {"r": self.episode_returns[0], "l": self.episode_lengths[0], "t": seconds}}
        mask = np.zeros(self.num_envs, dtype=np.bool_)
        mask[ended] = True
        columns = {"r": self.episode_returns, "l": self.episode_lengths, "t": np.full(self.num_envs, seconds)}
        return {"episode": {key: np.where(mask, own, 0) for key, own in columns.items()}, "_episode": mask}


class RecordVideo(Wrapper):
    """Writes episodes as MP4 files into video_folder; the env renders "rgb_array".

    episode_trigger(episode) or step_trigger(step) chooses what is recorded; by default the episodes 0, 1, 8, 27, … and
    then every thousandth. video_length: frames per video; 0 records to the end of the episode.
    """

    def __init__(
        self,
        env: Any,
        video_folder: str,
        episode_trigger: Callable[[int], bool] | None = None,
        step_trigger: Callable[[int], bool] | None = None,
        video_length: int = 0,
        name_prefix: str = "rl-video",
    ) -> None:
        super().__init__(env)
        if episode_trigger is not None and step_trigger is not None:
            raise ConfigError("RecordVideo expected episode_trigger or step_trigger, got both; pass one")
        self.video_folder, self.name_prefix, self.video_length = video_folder, name_prefix, video_length
        self.step_trigger = step_trigger
        self.episode_trigger = _usual_episodes if episode_trigger is None and step_trigger is None else episode_trigger
        self.step_id = self.episode_id = 0
        self._video: Video | None = None
        self._frames = 0

    @property
    def recording(self) -> bool:
        """Whether a video is being recorded."""
        return self._video is not None

    def reset(self, **kwargs: Any) -> Any:
        """Reset the env, and start a video if a trigger says so."""
        result = self.env.reset(**kwargs)
        if self._video is not None:
            self._capture()
        elif self._begins():
            self._begin()
        return result

    def step(self, action: Any) -> Any:
        """Step the env and record the frame."""
        result = self.env.step(action)
        self.step_id += 1
        done = bool(np.atleast_1d(result[2])[0])
        if self._video is not None:
            self._capture()
            if self._frames >= self.video_length if self.video_length else done:
                self.close_video_recorder()
        elif self.step_trigger is not None and self._begins():
            self._begin()
        self.episode_id += done
        return result

    def close_video_recorder(self) -> None:
        """Complete the current video."""
        if self._video is not None:
            self._video.close()
            self._video = None

    def close(self) -> None:
        """Complete the video and close the env."""
        self.close_video_recorder()
        super().close()

    def _begins(self) -> bool:
        if self.step_trigger is not None:
            return bool(self.step_trigger(self.step_id))
        return self.episode_trigger is not None and bool(self.episode_trigger(self.episode_id))

    def _begin(self) -> None:
        which = f"step-{self.step_id}" if self.step_trigger is not None else f"episode-{self.episode_id}"
        fps = self.env.metadata.get("render_fps") or _DEFAULT_FPS
        self._video = Video(Path(self.video_folder, f"{self.name_prefix}-{which}.mp4"), fps)
        self._frames = 0
        self._capture()

    def _capture(self) -> None:
        assert self._video is not None
        frame = self.env.render("rgb_array")
        if not isinstance(frame, np.ndarray):
            raise ConfigError(
                f'RecordVideo expected render("rgb_array") to return an array, got {type(frame).__name__}'
            )
        self._video.append(frame)
        self._frames += 1


def _usual_episodes(episode: int) -> bool:
    return episode % 1000 == 0 if episode >= 1000 else round(episode ** (1 / 3)) ** 3 == episode


# --- actions ---------------------------------------------------------------------------------------------


class ClipAction(ActionWrapper):
    """Clips actions to the bounds of a Box action space."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        _check_box("ClipAction", "action_space", env.action_space)

    def action(self, action: Any) -> Any:
        """Clip the action."""
        return np.clip(action, self.action_space.low, self.action_space.high)


class RescaleAction(ActionWrapper):
    """Maps actions from min_action … max_action to the bounds of a Box action space."""

    def __init__(self, env: Any, min_action: Any, max_action: Any) -> None:
        super().__init__(env)
        space = _check_box("RescaleAction", "action_space", env.action_space)
        self.min_action = np.zeros(space.shape, dtype=space.dtype) + min_action
        self.max_action = np.zeros(space.shape, dtype=space.dtype) + max_action
        self.action_space = spaces.Box(self.min_action, self.max_action, space.shape, np.dtype(space.dtype).type)

    def action(self, action: Any) -> Any:
        """Rescale the action."""
        low, high = self.env.action_space.low, self.env.action_space.high
        share = (np.asarray(action) - self.min_action) / (self.max_action - self.min_action)
        return np.clip(low + (high - low) * share, low, high)


# --- observations ----------------------------------------------------------------------------------------


class TransformObservation(ObservationWrapper):
    """Passes observations through a function."""

    def __init__(self, env: Any, f: Callable[[Any], Any]) -> None:
        super().__init__(env)
        self.f = f

    def observation(self, observation: Any) -> Any:
        """Transform the observation."""
        return self.f(observation)


class FlattenObservation(ObservationWrapper):
    """Flattens observations of any space to one dimension."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space = flatten_space(env.observation_space)

    def observation(self, observation: Any) -> Any:
        """Flatten the observation."""
        return flatten(self.env.observation_space, observation)


class FilterObservation(ObservationWrapper):
    """Keeps some keys of Dict observations."""

    def __init__(self, env: Any, filter_keys: Sequence[str] | None = None) -> None:
        super().__init__(env)
        inner = env.observation_space
        if not isinstance(inner, spaces.Dict):
            raise ConfigError(f"FilterObservation expected a Dict observation_space, got {inner}")
        self._keys = list(inner.spaces) if filter_keys is None else list(filter_keys)
        missing = [key for key in self._keys if key not in inner.spaces]
        if missing or not self._keys:
            raise ConfigError(f"filter_keys expected some of {list(inner.spaces)}, got {filter_keys!r}")
        self.observation_space = spaces.Dict([(key, inner.spaces[key]) for key in self._keys])

    def observation(self, observation: Any) -> Any:
        """Filter the observation."""
        return {key: observation[key] for key in self._keys}


class GrayScaleObservation(ObservationWrapper):
    """Turns RGB observations into gray ones, (height, width) or with keep_dim (height, width, 1)."""

    def __init__(self, env: Any, keep_dim: bool = False) -> None:
        super().__init__(env)
        shape = _check_image("GrayScaleObservation", env.observation_space)
        if len(shape) != 3 or shape[-1] != 3:
            raise ConfigError(f"GrayScaleObservation expected observations of (height, width, 3), got {shape}")
        self.keep_dim = keep_dim
        self.observation_space = spaces.Box(0, 255, (*shape[:2], 1) if keep_dim else shape[:2], np.uint8)

    def observation(self, observation: Any) -> Any:
        """Convert the observation."""
        gray = np.rint(np.asarray(observation) @ _GRAY_WEIGHTS).astype(np.uint8)
        return gray[..., None] if self.keep_dim else gray


class ResizeObservation(ObservationWrapper):
    """Resizes images to shape: (height, width), or one number for both. Each pixel is the mean of those it covers."""

    def __init__(self, env: Any, shape: int | Sequence[int]) -> None:
        super().__init__(env)
        inner = _check_image("ResizeObservation", env.observation_space)
        self.shape = (shape, shape) if isinstance(shape, int) else tuple(int(side) for side in shape)
        if len(self.shape) != 2 or min(self.shape) < 1:
            raise ConfigError(f"shape expected one or two numbers of at least 1, got {shape!r}")
        self.observation_space = spaces.Box(0, 255, (*self.shape, *inner[2:]), np.uint8)

    def observation(self, observation: Any) -> Any:
        """Resize the observation."""
        return resized(np.asarray(observation), self.shape[1], self.shape[0])


class FrameStack(ObservationWrapper):
    """Stacks the last num_stack observations, oldest first; an episode starts with its first one repeated.

    lz4_compress is accepted and has no effect: observations are arrays, not LazyFrames.
    """

    def __init__(self, env: Any, num_stack: int, lz4_compress: bool = False) -> None:
        super().__init__(env)
        space = _check_box("FrameStack", "observation_space", env.observation_space)
        self.num_stack, self.lz4_compress = num_stack, lz4_compress
        self.frames: deque[Any] = deque(maxlen=num_stack)
        low, high = (np.repeat(side[None], num_stack, axis=0) for side in (space.low, space.high))
        self.observation_space = spaces.Box(low, high, low.shape, np.dtype(space.dtype).type)

    def reset(self, **kwargs: Any) -> Any:
        """Reset the env and fill the stack with the first observation."""
        result = self.env.reset(**kwargs)
        obs = result[0] if kwargs.get("return_info") else result
        self.frames.extend([obs] * (self.num_stack - 1))
        obs = self.observation(obs)
        return (obs, result[1]) if kwargs.get("return_info") else obs

    def observation(self, observation: Any) -> Any:
        """Add the observation and return the stack."""
        self.frames.append(observation)
        return np.stack(self.frames)


class NormalizeObservation(Wrapper):
    """Observations scaled to mean 0 and variance 1 by the running statistics in obs_rms."""

    def __init__(self, env: Any, epsilon: float = 1e-8) -> None:
        super().__init__(env)
        self.epsilon = epsilon
        self.is_vector_env = bool(getattr(env, "is_vector_env", False))
        space = getattr(self, "single_observation_space", None) if self.is_vector_env else None
        self.obs_rms = RunningMeanStd((space or self.observation_space).shape)

    def reset(self, **kwargs: Any) -> Any:
        """Reset the env and normalize the observation."""
        result = self.env.reset(**kwargs)
        if kwargs.get("return_info"):
            return self.normalize(result[0]), result[1]
        return self.normalize(result)

    def step(self, action: Any) -> Any:
        """Step the env and normalize the observation."""
        obs, *others = self.env.step(action)
        return self.normalize(obs), *others

    def normalize(self, obs: Any) -> Any:
        """Update the statistics with an observation and normalize it."""
        self.obs_rms.update(np.asarray(obs) if self.is_vector_env else np.asarray(obs)[None])
        return (obs - self.obs_rms.mean) / np.sqrt(self.obs_rms.var + self.epsilon)


# --- rewards ---------------------------------------------------------------------------------------------


class TransformReward(RewardWrapper):
    """Passes rewards through a function."""

    def __init__(self, env: Any, f: Callable[[Any], Any]) -> None:
        super().__init__(env)
        self.f = f

    def reward(self, reward: Any) -> Any:
        """Transform the reward."""
        return self.f(reward)


class NormalizeReward(Wrapper):
    """Rewards divided by the standard deviation of the discounted return, in return_rms."""

    def __init__(self, env: Any, gamma: float = 0.99, epsilon: float = 1e-8) -> None:
        super().__init__(env)
        self.num_envs = getattr(env, "num_envs", 1)
        self.gamma, self.epsilon = gamma, epsilon
        self.return_rms = RunningMeanStd()
        self.returns = np.zeros(self.num_envs)

    def step(self, action: Any) -> Any:
        """Step the env and normalize the reward."""
        obs, reward, done, info = self.env.step(action)
        self.returns = self.returns * self.gamma + reward
        self.return_rms.update(self.returns)
        self.returns[np.atleast_1d(done)] = 0.0
        return obs, reward / np.sqrt(self.return_rms.var + self.epsilon), done, info


def _check_box(wrapper: str, name: str, space: Any) -> spaces.Box:
    if not isinstance(space, spaces.Box):
        raise ConfigError(f"{wrapper} expected an env with a Box {name}, got {space}")
    return space


def _check_image(wrapper: str, space: Any) -> tuple[int, ...]:
    box = _check_box(wrapper, "observation_space", space)
    if box.dtype != np.uint8 or len(box.shape) not in (2, 3):
        raise ConfigError(f"{wrapper} expected uint8 observations of (height, width[, channels]), got {box}")
    return box.shape


WRAPPERS: dict[str, type[Wrapper]] = {
    cls.__name__: cls
    for cls in (
        ClipAction,
        FilterObservation,
        FlattenObservation,
        FrameStack,
        GrayScaleObservation,
        NormalizeObservation,
        NormalizeReward,
        OrderEnforcing,
        RecordEpisodeStatistics,
        RecordVideo,
        RescaleAction,
        ResizeObservation,
        TimeLimit,
        TransformObservation,
        TransformReward,
    )
}
