"""Recipe: how check_env() builds an env, from an id, a class or a factory; and whether it travels."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import cloudpickle
import gymnasium

from envfleet.envs.adapters import takes_env_id
from envfleet.making.builders import gymnasium_spec
from envfleet.testing.report import Findings, describe_error, short

_SEARCH_DEPTH = 6


@dataclass(frozen=True)
class Recipe:
    """An id, a class or a callable, with its keywords."""

    env: Any
    keywords: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The env as a user would call it."""
        if isinstance(self.env, str):
            return repr(self.env)
        name = getattr(self.env, "__qualname__", None)
        return name if isinstance(name, str) else short(self.env)

    def build(self) -> Any:
        """A new env, not adapted."""
        if isinstance(self.env, str):
            # Gymnasium's own checker would raise first, and in other words than ours.
            return gymnasium.make(gymnasium_spec(self.env), **{"disable_env_checker": True, **self.keywords})
        if takes_env_id(self.env):
            return self.env(self.env.__name__, **self.keywords)
        return self.env(**self.keywords)


def is_recipe(env: Any, findings: Findings) -> bool:
    """Whether make() could build envs from this; says what is wrong where it could not."""
    if isinstance(env, gymnasium.Env) or not (isinstance(env, str) or callable(env)):
        findings.error(
            "not a factory",
            f"expected an id, a class or a callable that makes an env, got {short(env)} of type {type(env).__name__}",
            "pass the class, or a lambda that makes a new env at each call; check the members of a list one by one",
        )
        return False
    return True


def check_pickling(recipe: Recipe, findings: Findings) -> None:
    """Worker processes get the factory by cloudpickle."""
    try:
        data = cloudpickle.dumps((recipe.env, dict(recipe.keywords)))
    except Exception as error:
        found = find_unpicklable(recipe.env, "the factory") or find_unpicklable(dict(recipe.keywords), "env_kwargs")
        culprit = f"; what cannot be pickled is {found}" if found else ""
        findings.error(
            "factory cannot be pickled",
            f"expected a factory that cloudpickle can send to a worker, got {describe_error(error)}{culprit}",
            "create locks, files, sockets and simulators inside the env's __init__(), not outside the factory",
        )
        return
    try:
        cloudpickle.loads(data)
    except Exception as error:
        findings.error(
            "factory cannot be pickled",
            f"expected a factory that can be unpickled in a worker, got {describe_error(error)}",
            "check __reduce__(), __getstate__() and __setstate__() of what the factory holds",
        )


def find_unpicklable(thing: Any, path: str, depth: int = 0) -> str | None:
    """The innermost part of a thing that cloudpickle refuses, as a path; None if all can be pickled."""
    if _pickles(thing):
        return None
    if depth < _SEARCH_DEPTH:
        for name, part in _parts(thing):
            found = find_unpicklable(part, f"{path}{name}", depth + 1)
            if found is not None:
                return found
    return f"{path} (of type {type(thing).__name__})"


def _pickles(thing: Any) -> bool:
    try:
        cloudpickle.dumps(thing)
    except Exception:
        return False
    return True


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(thing, functools.partial):
        yield "'s function", thing.func
        yield "'s arguments", thing.args
        yield "'s keywords", thing.keywords
    elif inspect.ismethod(thing):
        yield "'s object", thing.__self__
    elif inspect.isfunction(thing):
        for name, cell in zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=False):
            try:
                yield f"'s variable {name!r}", cell.cell_contents
            except ValueError:  # not yet assigned
                continue
        yield "'s defaults", (thing.__defaults__, thing.__kwdefaults__)
        for name in thing.__code__.co_names:
            if name in thing.__globals__:
                yield f"'s global {name!r}", thing.__globals__[name]
    elif isinstance(thing, Mapping):
        for key, part in thing.items():
            yield f"[{key!r}]", part
    elif isinstance(thing, list | tuple):
        for index, part in enumerate(thing):
            yield f"[{index}]", part
    else:
        for name, part in list(getattr(thing, "__dict__", {}).items()):
            yield f".{name}", part
