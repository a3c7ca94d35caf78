"""check_env(): one broken env for each finding about factories and about methods that raise."""

from __future__ import annotations

import copy
import functools
import sys
import threading
from typing import Any

import gymnasium
import pytest
from support.check_env_probes import CleanEnv, found, only

from envfleet.testing import check_env


@pytest.mark.parametrize("env", [CleanEnv(), 3, [CleanEnv], None])
def test_what_is_no_factory_is_told(env: Any) -> None:
    assert "expected an id, an EnvSpec, a class or a callable" in only(check_env(env), "error", "not a factory")


def test_a_gymnasium_spec_is_built_with_its_kwargs() -> None:
    spec = copy.deepcopy(gymnasium.spec("CartPole-v1"))
    spec.kwargs = {"sutton_barto_reward": True}
    report = check_env(spec, num_steps=20)
    assert "'CartPole-v1'" in str(report)
    assert not report.errors
    spec.kwargs = {"no_such_argument": 1}
    assert "no_such_argument" in str(check_env(spec))


def test_an_unknown_id_is_told() -> None:
    assert "NoSuchEnv" in only(check_env("NoSuchEnv-v0"), "error", "unknown id")


def test_a_factory_that_cannot_be_pickled_names_the_culprit() -> None:
    class Settings:
        def __init__(self) -> None:
            self.length = 5
            self.guard = threading.Lock()

    settings = Settings()
    seen = only(check_env(lambda: CleanEnv(settings.length)), "error", "factory cannot be pickled")
    assert "the factory's variable 'settings'.guard (of type lock)" in seen

    seen = only(
        check_env(functools.partial(lambda length: CleanEnv(), threading.Lock())), "error", "factory cannot be pickled"
    )
    assert "the factory's arguments[0]" in seen

    env = functools.partial(lambda **_: CleanEnv())
    seen = only(check_env(env, env_kwargs={"guard": threading.Lock()}), "error", "factory cannot be pickled")
    assert "env_kwargs['guard']" in seen


def test_a_factory_that_cannot_be_unpickled_is_told() -> None:
    class OneWay:
        def __reduce__(self) -> Any:
            return int, ("no number",)

    one_way = OneWay()

    def factory() -> Any:
        return CleanEnv() if one_way else None

    assert "unpickled" in only(check_env(factory), "error", "factory cannot be pickled")


def test_the_same_env_twice_is_told() -> None:
    env = CleanEnv()
    assert "CleanEnv" in only(check_env(lambda: env), "error", "factory returns the same env twice")
    report = check_env(lambda: gymnasium.wrappers.TimeLimit(env, 5))
    only(report, "error", "factory returns the same env twice")


def test_a_constructor_that_raises_is_told() -> None:
    class Raises(CleanEnv):
        def __init__(self) -> None:
            raise OSError("no display")

    assert "OSError: no display (in __init__(), " in only(check_env(Raises), "error", "constructor raises")


def test_a_constructor_with_arguments_is_told_where_they_go() -> None:
    class Sized(CleanEnv):
        def __init__(self, size: int) -> None:
            super().__init__()

    report = check_env(Sized)
    only(report, "error", "constructor raises")
    assert "env_kwargs" in report.findings[0].remedy
    assert check_env(Sized, env_kwargs={"size": 2}).ok


def test_a_second_env_that_cannot_be_made_is_told() -> None:
    made: list[int] = []

    def factory() -> Any:
        made.append(1)
        if len(made) > 1:
            raise OSError("port in use")
        return CleanEnv()

    report = check_env(factory)
    assert "expected a second env, got OSError: port in use" in only(report, "error", "constructor raises")
    assert "port" in report.findings[0].remedy


# --- methods that raise -------------------------------------------------------------------------------


class ExitsInStep(CleanEnv):
    def step(self, action: Any) -> Any:
        sys.exit(3)


class RaisesInReset(CleanEnv):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        raise RuntimeError("no map")


class RaisesOddly(CleanEnv):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        class OddError(Exception):
            def __str__(self) -> str:
                raise ValueError

        raise OddError


@pytest.mark.parametrize(
    ("env", "name", "seen"),
    [
        (ExitsInStep, "step() raises", "SystemExit: 3"),
        (RaisesInReset, "reset() raises", "RuntimeError: no map"),
        (RaisesOddly, "reset() raises", "OddError"),
    ],
)
def test_methods_that_raise_are_told(env: Any, name: str, seen: str) -> None:
    assert seen in only(check_env(env), "error", name)


def test_the_action_that_made_it_raise_is_told() -> None:
    class Refuses(CleanEnv):
        def step(self, action: Any) -> Any:
            if action == 2:
                raise ValueError("unknown action")
            return super().step(action)

    assert "; the action was np.int64(2)" in only(check_env(Refuses), "error", "step() raises")


def test_a_reset_without_keywords_is_told_and_the_rest_still_checked() -> None:
    class NoOptions(CleanEnv):
        def reset(self, *, seed: int | None = None) -> Any:  # type: ignore[override]
            return super().reset(seed=seed)

    seen = only(check_env(NoOptions), "error", "reset() takes no seed or options")
    assert seen.endswith("without options")

    class Neither(CleanEnv):
        def reset(self) -> Any:  # type: ignore[override]
            return super().reset()

    report = check_env(Neither)
    assert found(report) == ["reset() takes no seed or options", "unseeded randomness"]
    assert "without options and seed" in report.findings[0].seen


def test_a_close_that_raises_is_told() -> None:
    class Closes(CleanEnv):
        def close(self) -> None:
            raise RuntimeError("window is gone")

    report = check_env(Closes)
    assert "window is gone" in only(report, "error", "close() raises")
