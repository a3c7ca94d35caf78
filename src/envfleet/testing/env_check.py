"""check_env(): one env, run as a pool would run it, with a report of what would break."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, create_empty_array

from envfleet.envs.adapters import AdaptedEnv, adapt, reset_keywords
from envfleet.testing.recipe import Recipe, check_pickling, is_recipe
from envfleet.testing.report import EnvReport, Findings, describe_error, describe_error_of_env, short
from envfleet.testing.rollouts import RolloutStopped, Row, Runner, first_difference
from envfleet.testing.shared_state import GlobalGenerators, SharedState

_WATCHED_STEPS = 5
_SEED_REMEDY = "call super().reset(seed=seed) in reset() and draw from self.np_random alone"
_SHARED_REMEDY = "keep all state in self: no class attributes, module variables or global generators that change"


class _CannotGoOn(Exception):  # noqa: N818 (no error of ours: the finding is already noted)
    """What follows needs what just failed."""


def check_env(
    env: Any,
    *,
    num_steps: int = 100,
    seed: int = 0,
    env_kwargs: Mapping[str, Any] | None = None,
    strict: bool = False,
) -> EnvReport:
    """Tells what would break an env in a pool, each with its remedy.

    env is an id, a class or a factory, as in make(). Six short rollouts of num_steps random
    actions are made in this process: an env that crashes or hangs takes the caller with it.
    Nothing else of what the env does is raised here: it is in the report. strict raises
    EnvCheckError if there are errors.
    """
    findings = Findings()
    name = short(env)
    if is_recipe(env, findings):
        recipe = Recipe(env, dict(env_kwargs or {}))
        name = recipe.name
        check_pickling(recipe, findings)
        check = _Check(recipe, num_steps, seed, findings)
        try:
            check.run()
        except (_CannotGoOn, RolloutStopped):
            pass
        except Exception as error:  # a property that raises, a space that lies: an author still gets the report
            findings.error(
                "env cannot be examined",
                f"expected an env to look at, got {describe_error_of_env(error)}",
                "look at that place first; the checks that come after it were not made",
            )
        finally:
            check.close()
            check.report_global_generators()
    report = findings.report(name)
    if strict:
        report.raise_on_error()
    return report


class _Check:
    def __init__(self, recipe: Recipe, num_steps: int, seed: int, findings: Findings) -> None:
        self.recipe = recipe
        self.num_steps = num_steps
        self.seed = seed
        self.findings = findings
        self.generators = GlobalGenerators()
        self.envs: list[Any] = []
        self.changed_outside: list[str] = []

    def run(self) -> None:
        """The checks, each leaning on those before it."""
        env = self.build()
        self.check_spaces(env)
        self.takes = self.check_reset_signature(env)
        self.actions = self.sample_actions(env)
        shared = SharedState(_innermost(env))
        alone = self.runner(env).run(self.seed, self.actions)
        again = self.run_watching(env, shared)
        if self.is_same_instance(env):
            return
        self.check_seeding(alone, again)
        self.check_interleaving(alone)

    def run_watching(self, env: Any, shared: SharedState) -> list[Row]:
        """A rollout that notes what changes outside the env.

        No env is made in it, so that a mere count of instances is not taken for shared state. The
        first steps are watched one by one, for an episode's end may put everything back.
        """
        runner = self.runner(env)
        runner.reset(self.seed)
        changed: dict[str, None] = {}
        for index, action in enumerate(self.actions):
            runner.step(action)
            if index < _WATCHED_STEPS:
                changed.update(dict.fromkeys(shared.changed()))
        changed.update(dict.fromkeys(shared.changed()))
        self.changed_outside = list(changed)
        return runner.rows

    def build(self) -> Any:
        which = "a second env" if self.envs else "an env"
        try:
            built = self.recipe.build()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self.report_construction(which, error)
            raise _CannotGoOn from error
        try:
            env = adapt(built)
        except Exception as error:
            remedy = "set observation_space and action_space in __init__()"
            self.findings.error("spaces are missing", describe_error(error), remedy)
            raise _CannotGoOn from error
        if isinstance(env, AdaptedEnv) and not self.envs:
            self.findings.notes.append(f"an env of the {env.style} API, run through an adapter; Gymnasium's costs less")
        self.envs.append(env)
        return env

    def report_construction(self, which: str, error: BaseException) -> None:
        if isinstance(error, gymnasium.error.UnregisteredEnv):
            self.findings.error(
                "unknown id",
                f"expected an id that envfleet.make() knows, got {describe_error(error)}",
                "import the package that registers it; native envs need no check",
            )
        else:
            self.findings.error(
                "constructor raises",
                f"expected {which}, got {describe_error_of_env(error)}",
                "a pool makes many envs: one must not hold what the next one needs (a port, a file, a display)"
                if self.envs
                else "make the env once by hand to see the whole traceback",
            )

    def check_spaces(self, env: Any) -> None:
        for name in ("observation_space", "action_space"):
            space = getattr(env, name, None)
            if not isinstance(space, spaces.Space):
                self.findings.error(
                    "spaces are missing",
                    f"expected {name} to be a gymnasium.spaces.Space, got {short(space)}",
                    f"set self.{name} in __init__()",
                    name,
                )
                continue
            try:
                batch_space(space, 2)
                create_empty_array(space, 2)
            except Exception as error:
                self.findings.error(
                    "space cannot be batched",
                    f"expected {name} that gymnasium.vector.utils.batch_space() takes, got {describe_error(error)}",
                    "use Gymnasium's spaces, or register the space with batch_space() and create_empty_array()",
                    name,
                )
        if self.findings.has("spaces are missing"):
            raise _CannotGoOn

    def check_reset_signature(self, env: Any) -> frozenset[str]:
        """What reset() may be called with, so that one which takes too little is still looked at."""
        wanted = frozenset({"seed", "options"})
        if isinstance(env, AdaptedEnv):
            return wanted
        takes = reset_keywords(_innermost(env))
        missing = wanted - (wanted if takes is None else takes)
        if missing:
            self.findings.error(
                "reset() takes no seed or options",
                f"expected reset(seed=..., options=...), got a reset() without {' and '.join(sorted(missing))}",
                "def reset(self, *, seed=None, options=None), with super().reset(seed=seed) as its first line",
            )
        return wanted - missing

    def sample_actions(self, env: Any) -> list[Any]:
        try:
            # A copy: the env may draw from its own space, and the check must not disturb that.
            space = copy.deepcopy(env.action_space)
            space.seed(self.seed)
            actions = [space.sample() for _ in range(self.num_steps)]
            refused = [action for action in actions if not env.action_space.contains(action)]
        except Exception as error:
            self.findings.error(
                "action space cannot be sampled",
                f"expected action_space.sample() to give an action, got {describe_error(error)}",
                "use Gymnasium's spaces, or mend sample() and contains() of your own",
            )
            raise _CannotGoOn from error
        if refused:
            self.findings.error(
                "action space refuses its own sample",
                f"expected contains(sample()) to be true, got false for {short(refused[0])}",
                "mend sample() and contains() of the space: a pool checks every action with it",
            )
        return actions

    def runner(self, env: Any, circumstance: str = "") -> Runner:
        return Runner(env, self.takes, self.findings, circumstance)

    def is_same_instance(self, env: Any) -> bool:
        other = self.build()
        if other is not env and _innermost(other) is not _innermost(env):
            return False
        self.findings.error(
            "factory returns the same env twice",
            f"expected a new env at each call, got {short(env)} both times",
            "make the env inside the factory: lambda: MyEnv(), not lambda: env",
        )
        return True

    def check_seeding(self, alone: list[Row], again: list[Row]) -> None:
        fresh = self.runner(self.envs[-1]).run(self.seed, self.actions)
        difference = first_difference(alone, fresh)
        if difference is not None and self.changed_outside:
            self.report_shared(f"two envs of the seed {self.seed} part in {difference}")
        elif difference is not None:
            self.findings.error(
                "unseeded randomness",
                f"expected one rollout from two new envs of the seed {self.seed}, got a difference in {difference}",
                f"{_SEED_REMEDY}; nothing may outlive an env in a class attribute or a module either",
            )
        else:
            difference = first_difference(alone, again)
            if difference is None:
                return
            self.findings.error(
                "reset(seed) does not start over",
                f"expected the same rollout after a second reset(seed={self.seed}), got a difference in {difference}",
                f"{_SEED_REMEDY}; set everything that step() changes back in reset()",
            )
        # Rollouts that differ by themselves show nothing about envs side by side.
        raise _CannotGoOn

    def check_interleaving(self, alone: list[Row]) -> None:
        """Two envs stepped in turn must go as each goes alone."""
        other_alone = self.runner(self.build()).run(self.seed + 1, self.actions)
        beside = ", while another env was stepped in turn"
        pair = [self.runner(self.build(), beside), self.runner(self.build(), beside)]
        for runner, seed in zip(pair, (self.seed, self.seed + 1), strict=True):
            runner.reset(seed)
        for action in self.actions:
            for runner in pair:
                runner.step(action)
        for runner, expected in zip(pair, (alone, other_alone), strict=True):
            difference = first_difference(expected, runner.rows)
            if difference is not None:
                self.report_shared(f"an env alone and beside another part in {difference}")
                return

    def report_shared(self, seen: str) -> None:
        changed = self.changed_outside + self.generators.changed()
        culprit = f"; what changed outside the envs: {', '.join(changed)}" if changed else ""
        self.findings.error(
            "envs share state", f"expected envs that do not touch each other, but {seen}{culprit}", _SHARED_REMEDY
        )

    def close(self) -> None:
        """Closes every env that was made."""
        for env in {id(env): env for env in self.envs}.values():
            close = getattr(env, "close", None)
            try:
                if callable(close):
                    close()
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                self.findings.error(
                    "close() raises",
                    f"expected None, got {describe_error_of_env(error)}",
                    "let close() work at any time: before a reset, in an episode, and twice",
                )

    def report_global_generators(self) -> None:
        """Says which were used, and puts them back."""
        for name in self.generators.changed():
            self.findings.warning(
                "uses a global random generator",
                f"expected {name} to be left alone, but its state has changed",
                f"draw from self.np_random: all envs of a process share {name}, so no seed repeats a rollout",
                name,
            )
        self.generators.restore()


def _innermost(env: Any) -> Any:
    return getattr(env, "unwrapped", env)
