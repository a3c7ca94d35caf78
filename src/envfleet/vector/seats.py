"""Seat: what an executor runs in the place of a Gymnasium env, so that the env is called as Gymnasium calls it.

Gymnasium hands its envs seed and options by name at every reset that a user asks for, None included,
and nothing at an autoreset; it never seeds an env by itself; and it gives them actions as they came.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium.spaces.utils import is_space_dtype_shape_equiv

from envfleet.making.builders import EnvBuilder

# The one option of a reset that a user asked for. It holds (seeds, options).
_ASKED = "envfleet.vector"
# The attribute that hands an env its next action past the board.
NEXT_ACTION = "envfleet.vector.next_action"

Seeds = int | Sequence[int | None] | None


def asked_reset(seeds: Seeds, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options that tell each seat of a reset that a user asked for."""
    return {_ASKED: (seeds, options)}


class Seat:
    """One env as its runner sees it."""

    def __init__(self, env: Any, env_id: int, observation_space: gymnasium.Space[Any]) -> None:
        self.env = env
        # That of the batch; the env's own may have other bounds (observation_mode="different").
        self.observation_space = observation_space
        self.action_space = env.action_space
        self.metadata = getattr(env, "metadata", {})
        self.render_mode = getattr(env, "render_mode", None)
        self._env_id = env_id
        self._takes_odd_actions = False
        self._odd_actions: list[Any] = []

    @property
    def unwrapped(self) -> Any:
        """The env without its wrappers."""
        return self.env.unwrapped

    @property
    def step(self) -> Callable[[Any], Any]:
        """The env's own step: nothing is paid for the seat, as long as all actions go through the board."""
        step: Callable[[Any], Any] = self.env.step
        return self._step_odd if self._takes_odd_actions else step

    def _step_odd(self, action: Any) -> Any:
        return self.env.step(self._odd_actions.pop() if self._odd_actions else action)

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        """A reset as Gymnasium does it. The pool's own seeds are not for these envs."""
        if not options or _ASKED not in options:
            return self.env.reset()
        seeds, own_options = options[_ASKED]
        if isinstance(seeds, int):
            own_seed: int | None = seeds + self._env_id
        else:
            own_seed = None if seeds is None else seeds[self._env_id]
        return self.env.reset(seed=own_seed, options=own_options)

    def close(self) -> None:
        """Closes the env."""
        self.env.close()

    def get_wrapper_attr(self, name: str) -> Any:
        """An attribute of the env, or of one that it wraps."""
        return self.env.get_wrapper_attr(name)

    def set_wrapper_attr(self, name: str, value: Any) -> None:
        """Sets an attribute of the env, or hands it its next action."""
        if name == NEXT_ACTION:
            self._takes_odd_actions = True
            self._odd_actions = [value]
        else:
            self.env.set_wrapper_attr(name, value)


@dataclass(frozen=True)
class SeatBuilder(EnvBuilder):
    """Builds one env in its seat, and checks its spaces as Gymnasium does.

    ready: the envs that the caller has built already, by env id; each is taken once.
    """

    class_name: str = "VectorEnv"
    observation_mode: Any = "same"
    observation_space: gymnasium.Space[Any] | None = None
    action_space: gymnasium.Space[Any] | None = None
    ready: dict[int, Any] | None = None

    def build(self, env_id: int) -> Seat:
        """The env in its seat."""
        assert self.observation_space is not None, "a seat needs the space of its batch"
        env = self.ready.pop(env_id) if self.ready and env_id in self.ready else super().build(env_id)
        try:
            self._check(env, self.observation_space)
        except RuntimeError:
            env.close()
            raise
        return Seat(env, env_id, self.observation_space)

    def _check(self, env: Any, want: gymnasium.Space[Any]) -> None:
        got = env.observation_space
        # The texts are Gymnasium's: callers match them.
        if self.observation_mode == "same":
            if want != got:
                raise RuntimeError(
                    f"{self.class_name}(..., observation_mode='same') however the sub-environments observation "
                    f"spaces are not equivalent. single_observation_space={want}, sub-environment observation_space="
                    f"{got}. If this is intentional, use `observation_mode='different'` instead."
                )
        elif not is_space_dtype_shape_equiv(want, got):
            raise RuntimeError(
                f"{self.class_name}(..., observation_mode='different' or custom space) however the sub-environment's "
                "observation spaces do not share a common shape and dtype. "
                f"single_observation_space={want}, sub-environment observation_space={got}"
            )
        if env.action_space != self.action_space:
            raise RuntimeError(
                f"Some environments have an action space different from `{self.action_space}`, for example "
                f"`{env.action_space}`. In order to batch actions, the action spaces from all environments must be "
                "equal."
            )

    def __getstate__(self) -> tuple[_Authkey, dict[str, Any]]:
        # First: what a factory captured (a manager's proxy, a queue) asks for the key while it is unpickled.
        return _Authkey(), {**self.__dict__, "ready": None}

    def __setstate__(self, state: tuple[None, dict[str, Any]]) -> None:
        self.__dict__.update(state[1])


class _Authkey:
    """multiprocessing's key of the caller, which its own children have and envfleet's workers lack."""

    def __reduce__(self) -> tuple[Callable[[bytes], None], tuple[bytes]]:
        return _adopt_authkey, (bytes(multiprocessing.current_process().authkey),)


def _adopt_authkey(key: bytes) -> None:
    multiprocessing.current_process().authkey = key
