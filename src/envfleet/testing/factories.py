"""EnvFactory: builds the envs of check_env() from what make() accepts; and a check that it can be pickled."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import cloudpickle
import gymnasium
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from envfleet.building.builders import gymnasium_spec
from envfleet.envs.adapters import takes_env_id
from envfleet.testing.report import Findings, describe_error, short

_SEARCH_DEPTH = 6


@dataclass(frozen=True)
class EnvFactory:
    """An id, a Gymnasium EnvSpec, a class or a callable, with its keyword arguments."""

    env: Any
    kwargs: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The env's name in the report."""
        if isinstance(self.env, GymnasiumSpec):
            return repr(self.env.id)
        if isinstance(self.env, str):
            return repr(self.env)
        name = getattr(self.env, "__qualname__", None)
        return name if isinstance(name, str) else short(self.env)

    def build(self) -> Any:
        """Build a new env, without adapting its API."""
        if isinstance(self.env, (str, GymnasiumSpec)):
            spec = gymnasium_spec(self.env) if isinstance(self.env, str) else self.env
            # Gymnasium's own checker would raise first, with another message.
            return gymnasium.make(spec, **{"disable_env_checker": True, **self.kwargs})
        if takes_env_id(self.env):
            return self.env(self.env.__name__, **self.kwargs)
        return self.env(**self.kwargs)


def is_factory(env: Any, findings: Findings) -> bool:
    """Return whether make() could build envs from this, and report why not."""
    if isinstance(env, gymnasium.Env) or not (isinstance(env, (str, GymnasiumSpec)) or callable(env)):
        findings.error(
            "not a factory",
            f"expected an id, an EnvSpec, a class or a callable that makes an env, got {short(env)} of type "
            f"{type(env).__name__}",
            "pass the class, or a lambda that makes a new env at each call; check the members of a list one by one",
        )
        return False
    return True


def check_pickling(factory: EnvFactory, findings: Findings) -> None:
    """Check that cloudpickle can send the factory to worker processes."""
    try:
        data = cloudpickle.dumps((factory.env, dict(factory.kwargs)))
    except Exception as error:
        found = find_unpicklable(factory.env, "the factory") or find_unpicklable(dict(factory.kwargs), "env_kwargs")
        culprit = f"; the part that cannot be pickled is {found}" if found else ""
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
            "check __reduce__(), __getstate__() and __setstate__() of the objects that the factory refers to",
        )


def find_unpicklable(value: Any, path: str, depth: int = 0) -> str | None:
    """Return the path of the innermost part that cloudpickle rejects, or None if it rejects none."""
    if _can_pickle(value):
        return None
    if depth < _SEARCH_DEPTH:
        for name, part in _parts(value):
            found = find_unpicklable(part, f"{path}{name}", depth + 1)
            if found is not None:
                return found
    return f"{path} (of type {type(value).__name__})"


def _can_pickle(value: Any) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:
        return False
    return True


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, functools.partial):
        yield "'s function", value.func
        yield "'s arguments", value.args
        yield "'s keywords", value.keywords
    elif inspect.ismethod(value):
        yield "'s object", value.__self__
    elif inspect.isfunction(value):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
            try:
                yield f"'s variable {name!r}", cell.cell_contents
            except ValueError:  # not yet assigned
                continue
        yield "'s defaults", (value.__defaults__, value.__kwdefaults__)
        for name in value.__code__.co_names:
            if name in value.__globals__:
                yield f"'s global {name!r}", value.__globals__[name]
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield f"[{key!r}]", part
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield f"[{index}]", part
    else:
        for name, part in list(getattr(value, "__dict__", {}).items()):
            yield f".{name}", part
