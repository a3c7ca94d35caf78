"""State outside the env: class attributes, module variables, and the global random generators."""

from __future__ import annotations

import copy
import inspect
import random
from typing import Any

import numpy as np

from envfleet.testing.rollouts import same

_PLAIN = (bool, int, float, str, bytes, list, dict, set, tuple, np.ndarray, np.generic)


class SharedState:
    """A picture of the plain data that all envs of a class share, to name what has changed."""

    def __init__(self, env: Any) -> None:
        self._cls = type(env)
        self._before = self._picture()

    def changed(self) -> list[str]:
        """The names of what has changed since."""
        now = self._picture()
        return [name for name in self._before if name not in now or not same(self._before[name], now[name])]

    def _picture(self) -> dict[str, Any]:
        picture: dict[str, Any] = {}
        for cls in self._cls.__mro__:
            if cls is object or cls.__module__.split(".")[0] in ("gymnasium", "gym", "abc", "typing"):
                continue
            for name, value in list(vars(cls).items()):
                if isinstance(value, _PLAIN) and not name.startswith("__"):
                    picture[f"{cls.__qualname__}.{name}"] = _copied(value)
                for function in _functions_of(value):
                    for used in function.__code__.co_names:
                        shared = function.__globals__.get(used)
                        if isinstance(shared, _PLAIN):
                            picture[f"{function.__module__}.{used}"] = _copied(shared)
        return picture


class GlobalGenerators:
    """The states of random and numpy.random, to see who draws from them and to put them back."""

    def __init__(self) -> None:
        self._python = random.getstate()
        self._numpy = np.random.get_state()

    def changed(self) -> list[str]:
        """Which of the two has moved since."""
        moved = []
        if random.getstate() != self._python:
            moved.append("random")
        if not same(_plain_state(np.random.get_state()), _plain_state(self._numpy)):
            moved.append("numpy.random")
        return moved

    def restore(self) -> None:
        """Puts both back to where they were."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)


def _plain_state(state: Any) -> tuple[Any, ...]:
    return tuple(state.values()) if isinstance(state, dict) else tuple(state)


def _functions_of(value: Any) -> list[Any]:
    if isinstance(value, property):
        return [f for f in (value.fget, value.fset) if inspect.isfunction(f)]
    value = getattr(value, "__func__", value)
    return [value] if inspect.isfunction(value) else []


def _copied(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # a list of what cannot be copied: only its replacement is seen then
        return value
