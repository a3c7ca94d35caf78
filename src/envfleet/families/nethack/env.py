"""The classes of nle and minihack, with episodes that depend on the seed alone and ends in Gymnasium's sense."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import load_env_creator
from gymnasium.utils import seeding
from nle.env.base import NLE

from envfleet.envs.watchdog import unwatch, watch

_ABORTED = -1  # StepStatus.ABORTED of every task


def make_env(package_class: str, render_mode: str | None = None, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Return an env of this class. render_mode="rgb_array" is the package's "pixel"."""
    # Moon phases and Fridays the 13th change the player's luck: with the package's default, the clock's.
    kwargs.setdefault("fix_moon_phase", True)
    if render_mode is not None:
        kwargs["render_mode"] = "pixel" if render_mode == "rgb_array" else render_mode
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about minihack's own dependencies
        loaded: Any = load_env_creator(package_class)
    make = _reproducible(loaded)
    env: gymnasium.Env[Any, Any] = make(**kwargs)
    env.render_mode = render_mode
    return env


@cache
def _reproducible(package_class: Any) -> Any:
    return type(package_class.__name__, (ReproducibleNetHack, package_class), {})


class ReproducibleNetHack(NLE):  # type: ignore[misc]  # nle has no types
    """Mixed into a class of the package.

    The package's reset(seed=...) does not seed the game, and NetHack draws new randomness from the system in each
    episode and now and then within one. Here, reset(seed=s) starts the episode that the package plays after
    env.seed(core=s, disp=s), and the seeds of the following episodes are drawn from Gymnasium's stream for s.
    """

    metadata = {"render_modes": ["rgb_array", "ansi"], "render_fps": 4}  # noqa: RUF012 (Gymnasium's name)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # The game saves its levels there. The package removes the folder in close(), which a killed worker never calls.
        self.folder: str = self.nethack._vardir
        watch(self.folder)
        self.info_space = spaces.Dict(
            {"end_status": spaces.Box(-128, 127, (), np.int64), "is_ascended": spaces.Box(0, 1, (), np.bool_)}
        )

    @property
    def max_steps(self) -> int:
        """The number of steps after which the package aborts an episode."""
        return int(self._max_episode_steps)

    def envfleet_time_limit(self, limit: int | None) -> None:
        """Abort episodes after this many steps, so that tasks reward the end of the pool's time limit as theirs."""
        if limit is not None:
            self._max_episode_steps = limit

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        if seed is not None:
            self._np_random, self._np_random_seed = seeding.np_random(seed)
            core = disp = seed % 2**64  # NetHack's seeds have 64 bits
        else:
            core, disp = (int(own) for own in self.np_random.integers(0, 2**64, 2, dtype=np.uint64))
        levels = getattr(self, "_level_seeds", None)  # MiniHack's option seeds: the levels to choose from
        if levels is not None:
            core = disp = levels[int(self.np_random.integers(len(levels)))]
        generator = getattr(self, "minigrid_env", None)
        if generator is not None:  # MiniHack's levels from MiniGrid; the package calls a method that it no longer has
            generator.unwrapped.np_random = seeding.np_random(core)[0]
        # Not seed(): NetHackChallenge refuses it and disables nethack.set_initial_seeds(), both for a competition.
        self.nethack._pynethack.set_initial_seeds(core, disp, False, None)
        kwargs = {} if levels is None else {"sample_seed": False}
        observation, info = super().reset(options=options, **kwargs)
        return observation, _plain(info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the game. An episode that the package aborts is truncated; the package terminates it."""
        observation, reward, done, _, info = super().step(action)
        aborted = info["end_status"] == _ABORTED
        return observation, reward, bool(done and not aborted), bool(aborted), _plain(info)

    def _quit_game(self, observation: Any, done: bool) -> None:
        """Do not play the commands that quit an aborted game: its last observation would show their dialogs.

        reset() ends the game.
        """

    def render(self) -> Any:
        """Render the map with NetHack's tiles, or as text."""
        if self.render_mode != "rgb_array":
            return super().render()
        self.nethack.draw_frame(buffer=self.rendered_frame)
        return self.rendered_frame.copy()

    def close(self) -> None:
        """End the game and remove its folder."""
        super().close()
        unwatch(self.folder)


def _plain(info: dict[str, Any]) -> dict[str, Any]:
    """Make the status an integer, which travels as a column in shared memory."""
    return {**info, "end_status": int(info["end_status"])}
