"""check_env(): runs an env as a pool would, and reports what would break."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, create_empty_array

from envfleet.building.native_envs import find_entry, supports_params
from envfleet.envs.adapters import AdaptedEnv, adapt, reset_keywords
from envfleet.testing.factories import EnvFactory, check_pickling, is_factory
from envfleet.testing.native_checker import NativeCheck
from envfleet.testing.report import EnvReport, Findings, describe_error, describe_error_of_env, short
from envfleet.testing.rollouts import Rollout, RolloutStopped, Row, first_difference
from envfleet.testing.shared_state import GlobalGenerators, SharedState

_WATCHED_STEPS = 5
_SEED_REMEDY = "call super().reset(seed=seed) in reset() and only use self.np_random"
_SHARED_REMEDY = "keep all state in self: no class attributes, module variables or global generators that change"


class _CheckStopped(Exception):  # noqa: N818 (not an error: the finding is already recorded)
    """The remaining checks depend on the one that just failed."""


def check_env(
    env: Any,
    *,
    num_steps: int = 100,
    seed: int = 0,
    env_kwargs: Mapping[str, Any] | None = None,
    strict: bool = False,
) -> EnvReport:
    """Report what would break an env in a pool, with a remedy for each finding.

    Six short rollouts with random actions run in this process: an env that crashes or hangs does so here. Exceptions of
    the env are not raised but reported. Of an id, the env that make() would choose is checked: for many ids, and those
    of compile(), a native one. To check Gymnasium's Python env of such an id, pass its class.

    Args:
        env: An id, a Gymnasium EnvSpec, a class or a factory, as in make().
        num_steps: The steps per rollout.
        seed: The seed of the env and of the actions.
        env_kwargs: Parameters of the env.
        strict: Raise EnvCheckError if there are errors.
    """
    findings = Findings()
    name = short(env)
    entry = find_entry(env)
    if entry is not None and supports_params(entry, [dict(env_kwargs or {})]):
        name = repr(env)
        NativeCheck(env, env_kwargs or {}, num_steps, seed, findings).run()
    elif is_factory(env, findings):
        factory = EnvFactory(env, dict(env_kwargs or {}))
        name = factory.name
        check_pickling(factory, findings)
        check = _Check(factory, num_steps, seed, findings)
        try:
            check.run()
        except (_CheckStopped, RolloutStopped):
            pass
        except Exception as error:  # such as a property that raises: the author still gets the report
            findings.error(
                "env cannot be examined",
                f"expected an env that can be inspected, got {describe_error_of_env(error)}",
                "fix that place first; the remaining checks were not run",
            )
        finally:
            check.close()
            check.report_global_generators()
    report = findings.report(name)
    if strict:
        report.raise_on_error()
    return report


class _Check:
    def __init__(self, factory: EnvFactory, num_steps: int, seed: int, findings: Findings) -> None:
        self.factory = factory
        self.num_steps = num_steps
        self.seed = seed
        self.findings = findings
        self.generators = GlobalGenerators()
        self.envs: list[Any] = []
        self.changed_outside: list[str] = []

    def run(self) -> None:
        """Run the checks, each of which depends on those before it."""
        env = self.build()
        self.check_spaces(env)
        self.takes = self.check_reset_signature(env)
        self.actions = self.sample_actions(env)
        shared = SharedState(_innermost(env))
        alone = self.rollout(env).run(self.seed, self.actions)
        again = self.run_watching(env, shared)
        if self.is_same_instance(env):
            return
        self.check_seeding(alone, again)
        self.check_interleaving(alone)

    def run_watching(self, env: Any, shared: SharedState) -> list[Row]:
        """Run a rollout and record what changes outside the env.

        No env is built meanwhile, so that a mere count of instances does not count as shared state. The first steps
        are watched one by one, since the end of an episode may restore everything.
        """
        rollout = self.rollout(env)
        rollout.reset(self.seed)
        changed: dict[str, None] = {}
        for index, action in enumerate(self.actions):
            rollout.step(action)
            if index < _WATCHED_STEPS:
                changed.update(dict.fromkeys(shared.changed()))
        changed.update(dict.fromkeys(shared.changed()))
        self.changed_outside = list(changed)
        return rollout.rows

    def build(self) -> Any:
        which = "a second env" if self.envs else "an env"
        try:
            built = self.factory.build()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self.report_construction(which, error)
            raise _CheckStopped from error
        try:
            env = adapt(built)
        except Exception as error:
            remedy = "set observation_space and action_space in __init__()"
            self.findings.error("spaces are missing", describe_error(error), remedy)
            raise _CheckStopped from error
        if isinstance(env, AdaptedEnv) and not self.envs:
            self.findings.notes.append(f"it has the {env.style} API and runs in an adapter; Gymnasium's API is faster")
        self.envs.append(env)
        return env

    def report_construction(self, which: str, error: BaseException) -> None:
        if isinstance(error, gymnasium.error.UnregisteredEnv):
            self.findings.error(
                "unknown id",
                f"expected an id that envfleet.make() knows, got {describe_error(error)}",
                "import the package that registers it, or build it with envfleet.compile()",
            )
        else:
            self.findings.error(
                "constructor raises",
                f"expected {which}, got {describe_error_of_env(error)}",
                "a pool builds many envs: one must not block a resource of the next one (a port, a file, a display)"
                if self.envs
                else "construct the env by hand to see the whole traceback; env_kwargs={...} are its arguments",
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
                    f"expected {name} to work with gymnasium.vector.utils.batch_space(), got {describe_error(error)}",
                    "use Gymnasium's spaces, or register the space with batch_space() and create_empty_array()",
                    name,
                )
        if self.findings.has("spaces are missing"):
            raise _CheckStopped

    def check_reset_signature(self, env: Any) -> frozenset[str]:
        """Return the keywords that reset() accepts, so that the env can be checked even if some are missing."""
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
            # A copy: the env may sample from its own space, and the check must not affect that.
            space = copy.deepcopy(env.action_space)
            space.seed(self.seed)
            actions = [space.sample() for _ in range(self.num_steps)]
            refused = [action for action in actions if not env.action_space.contains(action)]
        except Exception as error:
            self.findings.error(
                "action space cannot be sampled",
                f"expected action_space.sample() to return an action, got {describe_error(error)}",
                "use Gymnasium's spaces, or fix sample() and contains() of your own",
            )
            raise _CheckStopped from error
        if refused:
            self.findings.error(
                "action space refuses its own sample",
                f"expected contains(sample()) to be true, got false for {short(refused[0])}",
                "fix sample() and contains() of the space: a pool checks every action with it",
            )
        return actions

    def rollout(self, env: Any, circumstance: str = "") -> Rollout:
        return Rollout(env, self.takes, self.findings, circumstance)

    def is_same_instance(self, env: Any) -> bool:
        other = self.build()
        if other is not env and _innermost(other) is not _innermost(env):
            return False
        self.findings.error(
            "factory returns the same env twice",
            f"expected a new env at each call, got {short(env)} both times",
            "construct the env inside the factory: lambda: MyEnv(), not lambda: env",
        )
        return True

    def check_seeding(self, alone: list[Row], again: list[Row]) -> None:
        fresh = self.rollout(self.envs[-1]).run(self.seed, self.actions)
        difference = first_difference(alone, fresh)
        if difference is not None and self.changed_outside:
            self.report_shared(f"two envs with the seed {self.seed} differ in {difference}")
        elif difference is not None:
            self.findings.error(
                "unseeded randomness",
                f"expected the same rollout of two new envs with seed {self.seed}, got a difference in {difference}",
                f"{_SEED_REMEDY}; keep no state in class attributes or module variables",
            )
        else:
            difference = first_difference(alone, again)
            if difference is None:
                return
            self.findings.error(
                "reset(seed) does not start over",
                f"expected the same rollout after a second reset(seed={self.seed}), got a difference in {difference}",
                f"{_SEED_REMEDY}; reset everything that step() changes",
            )
        # Interleaved rollouts mean nothing if rollouts of one env already differ.
        raise _CheckStopped

    def check_interleaving(self, alone: list[Row]) -> None:
        """Check that two envs, stepped alternately, behave like each one alone."""
        other_alone = self.rollout(self.build()).run(self.seed + 1, self.actions)
        beside = ", while another env was stepped alternately"
        pair = [self.rollout(self.build(), beside), self.rollout(self.build(), beside)]
        for rollout, seed in zip(pair, (self.seed, self.seed + 1), strict=True):
            rollout.reset(seed)
        for action in self.actions:
            for rollout in pair:
                rollout.step(action)
        for rollout, expected in zip(pair, (alone, other_alone), strict=True):
            difference = first_difference(expected, rollout.rows)
            if difference is not None:
                self.report_shared(f"an env alone and beside another one differ in {difference}")
                return

    def report_shared(self, seen: str) -> None:
        changed = self.changed_outside + self.generators.changed()
        culprit = f"; state that changed outside the envs: {', '.join(changed)}" if changed else ""
        self.findings.error(
            "envs share state", f"expected envs that do not affect each other, but {seen}{culprit}", _SHARED_REMEDY
        )

    def close(self) -> None:
        """Close every env that was built."""
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
                    "close() must work at any time: before a reset, during an episode, and twice",
                )

    def report_global_generators(self) -> None:
        """Report the global generators that the env used, and restore them."""
        for name in self.generators.changed():
            self.findings.warning(
                "uses a global random generator",
                f"expected {name} not to be used, but its state has changed",
                f"use self.np_random: all envs of a process share {name}, so seeds do not make rollouts reproducible",
                name,
            )
        self.generators.restore()


def _innermost(env: Any) -> Any:
    return getattr(env, "unwrapped", env)
