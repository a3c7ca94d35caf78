"""Observations and rewards scaled by their running mean and variance."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from envfleet.core.errors import ConfigError, StateError
from envfleet.core.files import new_file
from envfleet.core.spaces import join, leaves_of, path_text, split
from envfleet.core.statistics import add_to_moments
from envfleet.wrappers.base import BatchRows, FinalObservations, PoolWrapper, check_number, map_leaves


class _Normalizer(PoolWrapper):
    """The parts that both share: named moments, update_running_mean, save() and load().

    update_running_mean: whether rows update the statistics; set it to False for evaluation.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], epsilon: float, clip: float | None) -> None:
        super().__init__(env)
        name = type(self).__name__
        check_number(self, "epsilon", epsilon)
        if not epsilon > 0:
            raise ConfigError(f"{name} expected an epsilon above 0, got {epsilon!r}")
        if clip is not None:
            check_number(self, "clip", clip)
        if clip is not None and not clip > 0:
            raise ConfigError(f"{name} expected clip above 0, or None for no bounds, got {clip!r}")
        self.epsilon, self.clip = epsilon, clip
        self.update_running_mean = True

    def _moments(self) -> dict[str, RunningMeanStd]:
        raise NotImplementedError

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the statistics to an npz file."""
        arrays: dict[str, Any] = {}
        for name, moments in self._moments().items():
            arrays |= {f"{name}/mean": moments.mean, f"{name}/var": moments.var, f"{name}/count": moments.count}
        # An open file: savez() would put .npz after a name without it.
        with new_file(path) as own, open(own, "wb") as file:
            np.savez(file, **arrays)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Read what save() wrote. Nothing changes if it raises."""
        own = self._moments()
        wanted = {f"{name}/{part}" for name in own for part in ("mean", "var", "count")}
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
        except (ValueError, zipfile.BadZipFile, EOFError, AttributeError) as error:
            raise StateError(f"load() expected a file that save() wrote, got {str(path)!r}: {error}") from error
        if arrays.keys() != wanted:
            raise StateError(f"load() expected statistics of {sorted(wanted)}, got {sorted(arrays)} in {str(path)!r}")
        for name, moments in own.items():
            if arrays[f"{name}/mean"].shape != moments.mean.shape:
                raise StateError(
                    f"load() expected statistics of shape {moments.mean.shape} for {name}, got "
                    f"{arrays[f'{name}/mean'].shape} in {str(path)!r}; they belong to another env"
                )
        for name, moments in own.items():
            moments.mean, moments.var = arrays[f"{name}/mean"], arrays[f"{name}/var"]
            moments.count = float(arrays[f"{name}/count"])

    def _clipped(self, values: Any) -> Any:
        return values if self.clip is None else np.clip(values, -self.clip, self.clip)


class NormalizeObservation(_Normalizer):
    """Scales observations to mean 0 and variance 1 by the running mean and variance.

    In Dict and Tuple observations every Box is normalized, and everything else is unchanged. The results are float32
    (float64 for a float64 Box).

    Args:
        env: The pool, or another wrapper of it.
        epsilon: Added to the variance.
        clip: Clip the results to [-clip, clip]; None for no bounds.

    Attributes:
        obs_rms: The statistics: mean, var and count; for several Boxes by name: {"obs['position']": ...}.
        update_running_mean: Whether rows update the statistics; set it to False for evaluation.
    """

    state_names = ("obs_rms",)

    def __init__(self, env: VectorEnv[Any, Any, Any], epsilon: float = 1e-8, *, clip: float | None = None) -> None:
        super().__init__(env, epsilon, clip)
        inner = env.single_observation_space
        leaves = leaves_of(inner)
        boxes = {position: leaf for position, leaf in enumerate(leaves) if isinstance(leaf.space, spaces.Box)}
        if not boxes:
            raise ConfigError(
                f"NormalizeObservation expected an observation space that contains a Box, got {inner}; leave it out"
            )
        self._positions = {f"obs{path_text(leaf.path)}": position for position, leaf in boxes.items()}
        by_name = {name: RunningMeanStd(boxes[position].shape) for name, position in self._positions.items()}
        # For a single Box the moments themselves, as in Gymnasium: code reads the mean and copies it from env to env.
        self.obs_rms = by_name if isinstance(inner, (spaces.Dict, spaces.Tuple)) else by_name["obs"]
        self._split, self._join = split(inner), join(inner)
        self.single_observation_space = map_leaves(inner, self._space)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)

    def _space(self, leaf: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        if not isinstance(leaf, spaces.Box):
            return leaf
        bound = np.inf if self.clip is None else self.clip
        return spaces.Box(-bound, bound, leaf.shape, _float_of(leaf.dtype).type)

    def _moments(self) -> dict[str, RunningMeanStd]:
        return self.obs_rms if isinstance(self.obs_rms, dict) else {"obs": self.obs_rms}

    def process(
        self, rows: BatchRows, obs: Any, reward: NDArray[np.float64], info: dict[str, Any]
    ) -> tuple[Any, NDArray[np.float64]]:
        """Update the statistics with the rows, and normalize their observations."""
        columns = self._split(obs)
        finals = FinalObservations(info, self._split)
        # The row of a failed env repeats its last observation, or is zeros; in same_step mode it is the next episode's
        # first one.
        seen = rows.first | (rows.stepped & ~rows.failed)
        for name, moments in self._moments().items():
            position = self._positions[name]
            last = finals.leaf(position)
            if self.update_running_mean:
                self._update(moments, columns[position], seen, last, rows.failed[finals.rows])
            columns[position] = self._normalized(columns[position], moments)
            if last:
                finals.replace(position, self._normalized(np.stack(last), moments))
        if finals.rows.size:
            finals.write(self._join)
        return self._join(columns), reward

    def _update(
        self, moments: RunningMeanStd, column: NDArray[Any], seen: Any, last: Sequence[Any], last_failed: Any
    ) -> None:
        values = column if seen.all() else column[seen]
        if last and not last_failed.all():
            values = np.concatenate([values, np.stack(last)[~last_failed]])
        if len(values):
            moments.update(values)

    def _normalized(self, column: NDArray[Any], moments: RunningMeanStd) -> NDArray[Any]:
        scaled = (column - moments.mean) / np.sqrt(moments.var + self.epsilon)
        result: NDArray[Any] = self._clipped(scaled).astype(_float_of(column.dtype), copy=False)
        return result


class NormalizeReward(_Normalizer):
    """Divides rewards by the standard deviation of the discounted return so far within each episode.

    Args:
        env: The pool, or another wrapper of it.
        gamma: The discount factor.
        epsilon: Added to the variance.
        clip: Clip the results to [-clip, clip]; None for no bounds.

    Attributes:
        return_rms: The statistics of the discounted return: mean, var and count.
        accumulated_reward: The discounted return of each env so far.
        update_running_mean: Whether rows update the statistics; set it to False for evaluation.
    """

    state_names = ("return_rms", "accumulated_reward")

    def __init__(
        self, env: VectorEnv[Any, Any, Any], gamma: float = 0.99, epsilon: float = 1e-8, *, clip: float | None = None
    ) -> None:
        super().__init__(env, epsilon, clip)
        check_number(self, "gamma", gamma)
        if not 0 <= gamma <= 1:
            raise ConfigError(f"NormalizeReward expected a gamma from 0 to 1, got {gamma!r}")
        self.gamma = gamma
        self.return_rms = RunningMeanStd()
        self.accumulated_reward = np.zeros(self.num_envs)

    def _moments(self) -> dict[str, RunningMeanStd]:
        return {"return": self.return_rms}

    def process(
        self, rows: BatchRows, obs: Any, reward: NDArray[np.float64], info: dict[str, Any]
    ) -> tuple[Any, NDArray[np.float64]]:
        """Update the statistics with the rows, and scale their rewards."""
        running = self.accumulated_reward[rows.env_index]
        running = np.where(rows.stepped, running * self.gamma + reward, running)
        counted = running[rows.stepped & ~rows.failed]
        if self.update_running_mean and counted.size:
            self.return_rms.update(counted)
        # The return starts from 0 after an end, including a truncation.
        running[rows.ended | rows.first] = 0.0
        self.accumulated_reward[rows.env_index] = running
        return obs, self._clipped(reward / np.sqrt(self.return_rms.var + self.epsilon))


def _float_of(dtype: Any) -> np.dtype[Any]:
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


_FIRST_COUNT = 1e-4  # of mean 0 and variance 1, so that there is something to divide by before the first row


class RunningMeanStd:
    """Running mean and variance, in float64."""

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self.mean: NDArray[np.float64] = np.zeros(shape)
        self.var: NDArray[np.float64] = np.ones(shape)
        self.count: float = _FIRST_COUNT

    def update(self, rows: NDArray[Any]) -> None:
        """Add rows."""
        count, mean, squares = add_to_moments(self.count, self.mean, self.var * self.count, rows)
        self.count, self.mean, self.var = count, np.asarray(mean), np.asarray(squares / count)
