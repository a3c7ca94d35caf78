"""Errors and warnings about one env: remedies, and classes that carry the env's id as data.

An executor that hosts another one (an actor of the Ray backend) knows its envs under other ids: it reports the same
problem under the id of the whole pool without touching any text.
"""

from __future__ import annotations

from typing import Any

import gymnasium

from envfleet.core.aliases import missing_alias_remedy
from envfleet.core.batch import Fault
from envfleet.core.errors import StateError

BUILD_REMEDY = "its constructor must not raise"
RESET_REMEDY = "reset the env, which rebuilds it"


def build_remedy(fault: Fault) -> str:
    """Return the remedy for an exception in an env's constructor."""
    return import_remedy(fault) or BUILD_REMEDY


def import_remedy(fault: Fault) -> str | None:
    """Return the remedy for an import that failed; None for any other exception."""
    if not isinstance(fault.cause, (ImportError, gymnasium.error.DependencyNotInstalled)):
        return None
    return missing_alias_remedy(fault.cause) or "install the package that it needs"


def call_remedy(fault: Fault, remedy: str) -> str:
    """Return the remedy for a call of an env that failed: a reset if the env died with its worker, else `remedy`.

    A constructor may have failed because a package is missing.
    """
    if fault.method == "__init__":
        return import_remedy(fault) or remedy
    return remedy if fault.exit_code is None else RESET_REMEDY


class NoSuchAttributeError(AttributeError):
    """An env lacks the attribute that the caller asked for: the caller's mistake, not the env's."""


class EnvStateError(StateError):
    """A state of one env that cannot be saved or restored. problem: what cannot be done, and why."""

    def __init__(self, env_id: int, env_name: str, problem: str) -> None:
        super().__init__(f"env {env_id} of {env_name} {problem}")
        self.env_id = env_id
        self.env_name = env_name
        self.problem = problem

    def with_env_id(self, env_id: int) -> EnvStateError:
        """Return the same error about the env of this id."""
        return EnvStateError(env_id, self.env_name, self.problem)

    def __reduce__(self) -> tuple[Any, ...]:
        return EnvStateError, (self.env_id, self.env_name, self.problem)


class EnvCloseWarning(RuntimeWarning):
    """An env raised in close(). With env_id -1, the message is about the workers instead."""

    def __init__(self, env_id: int, message: str) -> None:
        super().__init__(message if env_id < 0 else f"env {env_id} raised in close(): {message}")
        self.env_id = env_id
        self.message = message

    def __reduce__(self) -> tuple[Any, ...]:
        return EnvCloseWarning, (self.env_id, self.message)
