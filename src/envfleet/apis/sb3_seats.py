"""Seats of the Stable-Baselines3 drop-ins: envs as SB3's own DummyVecEnv and SubprocVecEnv call them.

Not in the package sb3: a worker that unpickles this must not import Stable-Baselines3, and torch with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium

from envfleet.making.builders import EnvBuilder
from envfleet.vector.seats import NEXT_ACTION, Seat, SeatBuilder

# The one option of a reset: (seed of each env, options of each env).
_ASKED = "envfleet.sb3"
# The attribute through which a vec env asks what no attribute of the env answers.
ASK = "envfleet.sb3.ask"


def asked_reset(seeds: Sequence[int | None], options: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The options that tell each seat of a reset that a user asked for."""
    return {_ASKED: (list(seeds), list(options) if any(options) else None)}


class Sb3Seat(Seat):
    """One env as its runner sees it."""

    def __init__(
        self, env: Any, env_id: int, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
    ) -> None:
        super().__init__(env, env_id, observation_space)
        self.action_space = action_space

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        """A reset as SB3 does it: a seed by name, options only where there are some. The pool's seeds are not used."""
        if not options or _ASKED not in options:
            return self.env.reset()
        seeds, all_options = options[_ASKED]
        own = all_options[self._env_id] if all_options else None
        return self.env.reset(seed=seeds[self._env_id], **({"options": own} if own else {}))

    def get_wrapper_attr(self, name: str) -> Any:
        """An attribute of the env or of one that it wraps, or the way to ask for more."""
        return self._answer if name == ASK else self.env.get_wrapper_attr(name)

    def set_wrapper_attr(self, name: str, value: Any) -> None:
        """Sets an attribute of the outermost wrapper, as SB3 does."""
        if name == NEXT_ACTION:
            super().set_wrapper_attr(name, value)
        else:
            setattr(self.env, name, value)

    def _answer(self, what: str, *details: Any) -> Any:
        if what == "call":
            name, args, kwargs = details
            return self.env.get_wrapper_attr(name)(*args, **kwargs)
        if what == "has":
            return self.env.has_wrapper_attr(details[0])
        assert what == "is_wrapped", what
        env = self.env
        while isinstance(env, gymnasium.Wrapper):
            if isinstance(env, details[0]):
                return True
            env = env.env
        return False


@dataclass(frozen=True)
class Sb3SeatBuilder(SeatBuilder):
    """Builds one env in its seat. The spaces are those of the first env where they are given, else its own."""

    def build(self, env_id: int) -> Seat:
        """The env in its seat."""
        env = self.ready.pop(env_id) if self.ready and env_id in self.ready else EnvBuilder.build(self, env_id)
        return Sb3Seat(
            env,
            env_id,
            env.observation_space if self.observation_space is None else self.observation_space,
            env.action_space if self.action_space is None else self.action_space,
        )
