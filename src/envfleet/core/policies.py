"""What rollout() and record() accept as a policy, as one function from a batch of observations to actions.

A policy is a callable or an object with predict(), such as a model of Stable-Baselines3. It returns actions, or actions
and either a dict of extras or a state. A policy that takes its state as Stable-Baselines3's predict() does gets it
back, whatever it is. Any other policy's state, None or a tuple, is dropped.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias, cast

import gymnasium
import numpy as np
from numpy.typing import NDArray

from envfleet.core.errors import ConfigError


class Predictor(Protocol):
    """An object with predict(), such as a model of Stable-Baselines3."""

    def predict(self, obs: Any, /) -> Any:
        """Return actions, or actions and a state."""


Policy: TypeAlias = Callable[[Any], Any] | Predictor

_STATE_ARGUMENTS = {"state", "episode_start"}  # as Stable-Baselines3 names them


class BatchPolicy:
    """Calls a policy for one batch of envs after another, and keeps its state in between.

    policy: None for random actions, which the caller draws. action_space: that of one env.
    """

    def __init__(self, policy: Policy | None, action_space: gymnasium.Space[Any]) -> None:
        self._function = None if policy is None else _function_of(policy)
        self._takes_state = self._function is not None and _takes_state(self._function)
        self._has_tuple_actions = isinstance(action_space, gymnasium.spaces.Tuple)
        self._state: Any = None

    @property
    def is_random(self) -> bool:
        """Whether there is no policy."""
        return self._function is None

    @property
    def has_state(self) -> bool:
        """Whether the policy gets its state back, as Stable-Baselines3's predict() does, which takes arrays alone."""
        return self._takes_state

    def continue_from(self, other: BatchPolicy | None) -> None:
        """Take over the state of a policy that was used for the same envs before, if it is the same policy."""
        if other is not None and other._function == self._function:
            self._state = other._state

    def act(self, obs: Any, starts: Callable[[], NDArray[np.bool_]]) -> tuple[Any, Mapping[str, Any]]:
        """Return actions and extras. starts: returns which of the observations are the first of an episode."""
        assert self._function is not None
        if not self._takes_state:
            return self._parts(self._function(obs))
        first = starts()
        result = self._function(
            obs, state=self._state, episode_start=np.ones_like(first) if self._state is None else first
        )
        if not isinstance(result, tuple) or len(result) != 2:
            raise ConfigError(
                f"policy expected to return (actions, state), as it takes a state, got {type(result).__name__}"
            )
        self._state = result[1]
        return result[0], {}

    def _parts(self, result: Any) -> tuple[Any, Mapping[str, Any]]:
        if not isinstance(result, tuple) or len(result) != 2:
            return result, {}
        actions, other = result
        # Tuple actions of two parts, the second a Dict, look the same; but then the first part is not a tuple.
        if self._has_tuple_actions and not isinstance(actions, tuple):
            return result, {}
        if isinstance(other, Mapping):
            return actions, other
        # Two rows of actions may be a tuple, too; but then they are of one type.
        is_state = isinstance(other, tuple) and hasattr(actions, "__array__")
        return (actions, {}) if other is None or is_state else (result, {})


def as_arrays(value: Any) -> Any:
    """Return actions or extras with torch's tensors as arrays."""
    if isinstance(value, Mapping):
        return {key: as_arrays(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(map(as_arrays, value))
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def _function_of(policy: Any) -> Callable[..., Any]:
    predict = getattr(policy, "predict", None)
    # A policy network of Stable-Baselines3 can be called as well, but with tensors.
    if callable(predict) and (not callable(policy) or _takes_state(predict)):
        return cast("Callable[..., Any]", predict)
    if not callable(policy):
        raise ConfigError(
            "policy expected a callable from observations to actions, an object with predict(), or None for random "
            f"actions, got {policy!r}"
        )
    return cast("Callable[..., Any]", policy)


def _takes_state(function: Callable[..., Any]) -> bool:
    try:
        return inspect.signature(function).parameters.keys() >= _STATE_ARGUMENTS
    except (TypeError, ValueError):  # of some functions in C
        return False
