"""Parameters of native envs: checked by name and type, one value for all envs or one per env."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from envfleet.core.errors import ConfigError, short_repr
from envfleet.core.options import misspelt_option


@dataclass(frozen=True)
class Param:
    """A parameter that an env declares. kind: "integer", "real", "flag", "text" or "reals"."""

    name: str
    kind: str
    default: Any
    doc: str = ""


def parameter_values(
    env_id: str, declared: Sequence[Param], params: Mapping[str, Any], num_envs: int
) -> list[dict[str, Any]]:
    """Return the value of every parameter: one dict for all envs, or one per env if some parameter is a list.

    params: of declared names.
    """
    by_name = {param.name: param for param in declared}
    shared = {param.name: param.default for param in declared}
    per_env: dict[str, list[Any]] = {}
    for name, value in params.items():
        param = by_name[name]
        if not _is_list_of_values(param, value):
            shared[name] = _checked(env_id, param, value)
            continue
        if len(value) != num_envs:
            raise ConfigError(
                f"{env_id} expected {num_envs} values of {name}, one per env, got {len(value)}; "
                "pass a single value for all envs"
            )
        per_env[name] = [_checked(env_id, param, own) for own in value]
    if not per_env:
        return [shared]
    return [{**shared, **{name: values[i] for name, values in per_env.items()}} for i in range(num_envs)]


def unknown_option(env_id: str, name: str, params: Iterable[str], pool_options: Iterable[str]) -> ConfigError:
    """Return the error for an unknown option, with the closest match and the valid options."""
    own, common = sorted(params), sorted(pool_options)
    # Nearer to an option of the pool than to one of the env: there are many of them, and short ones.
    nearest = next(iter(difflib.get_close_matches(name, own, n=1)), None) or misspelt_option(name)
    hint = f"; did you mean {nearest!r}?" if nearest else ";"
    return ConfigError(
        f"{env_id} got the unknown option {name!r}{hint} "
        f"expected parameters of the env ({', '.join(own) or 'it has none'}) "
        f"or options of the pool ({', '.join(common)})"
    )


def _is_list_of_values(param: Param, value: Any) -> bool:
    if not isinstance(value, (list, tuple, np.ndarray)) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return False
    if param.kind == "reals":
        return len(value) > 0 and isinstance(value[0], (list, tuple, np.ndarray))
    return True


def _checked(env_id: str, param: Param, value: Any) -> Any:
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        value = value.item()
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if param.kind == "flag" and isinstance(value, bool):
        return value
    if param.kind == "integer" and is_number and isinstance(value, int) and abs(value) < 2**63:
        return value
    # A number may be too large for a float, and a string may not be valid UTF-8.
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        if param.kind == "real" and is_number:
            return float(value)
        if param.kind == "text" and isinstance(value, str) and b"\0" not in value.encode():
            return value
        if param.kind == "reals" and not isinstance(value, (str, bytes)):
            return [float(own) for own in value]
    kinds = {"flag": "True or False", "integer": "an integer", "real": "a number", "text": "a string (UTF-8, no NUL)"}
    expected = kinds.get(param.kind, "a list of numbers")
    raise ConfigError(f"{env_id} expected {expected} for {param.name}, got {short_repr(value)}")
