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
    """A snapshot of the plain data that all envs of a class share, to name what has changed since."""

    def __init__(self, env: Any) -> None:
        self._cls = type(env)
        self._before = self._snapshot()

    def changed(self) -> list[str]:
        """Return the names of the data that has changed."""
        now = self._snapshot()
        return [name for name in self._before if name not in now or not same(self._before[name], now[name])]

    def _snapshot(self) -> dict[str, Any]:
        snapshot: dict[str, Any] = {}
        for cls in self._cls.__mro__:
            if cls is object or cls.__module__.split(".")[0] in ("gymnasium", "gym", "abc", "typing"):
                continue
            for name, value in list(vars(cls).items()):
                if isinstance(value, _PLAIN) and not name.startswith("__"):
                    snapshot[f"{cls.__qualname__}.{name}"] = _copied(value)
                for function in _functions_of(value):
                    for global_name in function.__code__.co_names:
                        shared = function.__globals__.get(global_name)
                        if isinstance(shared, _PLAIN):
                            snapshot[f"{function.__module__}.{global_name}"] = _copied(shared)
        return snapshot


class GlobalGenerators:
    """The states of random and numpy.random, to detect their use and to restore them."""

    def __init__(self) -> None:
        self._python = random.getstate()
        self._numpy = np.random.get_state()

    def changed(self) -> list[str]:
        """Return which of the two has been used."""
        used = []
        if random.getstate() != self._python:
            used.append("random")
        if not same(_plain_state(np.random.get_state()), _plain_state(self._numpy)):
            used.append("numpy.random")
        return used

    def restore(self) -> None:
        """Restore both states."""
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
    except Exception:  # not copied: then only its replacement is detected
        return value
