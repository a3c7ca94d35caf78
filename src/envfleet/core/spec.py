"""EnvSpec: what is known of a pool's envs before any of them runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from envfleet.core.errors import ConfigError
from envfleet.core.options import PoolConfig

NAMESPACE = "envfleet"  # of envfleet's ids in Gymnasium's registry


@dataclass(frozen=True)
class ArraySpec:
    """One array of an observation or info: its space, and the rows on which it has a value.

    texts: the strings that a native env's integer codes stand for, if the space is one of strings.
    """

    name: str
    space: gymnasium.Space[Any]
    on_step: bool = True
    on_reset: bool = True
    texts: tuple[str, ...] = ()


@dataclass
class EnvSpec(GymnasiumSpec):
    """A Gymnasium EnvSpec that also has the spaces and the config, like EnvPool's."""

    observation_space: gymnasium.Space[Any] = field(default_factory=lambda: spaces.Discrete(1))
    action_space: gymnasium.Space[Any] = field(default_factory=lambda: spaces.Discrete(1))
    observation_arrays: tuple[ArraySpec, ...] = ()
    info_arrays: tuple[ArraySpec, ...] = ()
    reset_options: tuple[str, ...] = ()
    backend: str = "native"
    native_id: str = ""  # the native env that the id stands for
    has_state: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)  # of the env's class, as in Gymnasium
    render_mode: str | None = None  # of a Python env
    own_step_limit: int | None = None  # the steps after which a Python env itself ends an episode
    config: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return Gymnasium's part of the spec as JSON, from which gymnasium.make_vec() can make the pool again.

        gymnasium.envs.registration.EnvSpec.from_json() reads it. Raises ConfigError if JSON cannot represent the env
        or a parameter, such as a class.
        """
        values = {own.name: getattr(self, own.name) for own in fields(GymnasiumSpec) if own.init}
        values["additional_wrappers"] = [asdict(wrapper) for wrapper in self.additional_wrappers]
        try:
            return json.dumps(values)
        except TypeError as error:
            raise ConfigError(
                f"to_json() of {self.id} expected an env id and parameters that JSON can represent: {error}; "
                "register the env with gymnasium.register() and make it by its id"
            ) from error


def space_from_native(array: Mapping[str, Any]) -> gymnasium.Space[Any]:
    """Return the Gymnasium space of an array that the native module describes."""
    kind, dtype, shape = array["kind"], np.dtype(array["dtype"]), array["shape"]
    if kind == "discrete":
        return spaces.Discrete(array["count"], start=array["start"])
    if kind == "multi_discrete":
        return spaces.MultiDiscrete(np.array(array["nvec"], dtype=np.int64))
    if kind == "multi_binary":
        return spaces.MultiBinary(shape[0])
    low, high = (np.array(array[side], dtype=np.float64) for side in ("low", "high"))
    if low.size == 1:
        low, high = np.full(shape, low[0]), np.full(shape, high[0])
    if np.issubdtype(dtype, np.floating):
        return spaces.Box(low.reshape(shape).astype(dtype), high.reshape(shape).astype(dtype), shape, dtype.type)
    limits = np.iinfo(dtype) if dtype != np.bool_ else None
    lowest, highest = (limits.min, limits.max) if limits else (0, 1)
    # Clipped as integers: 2**63-1 is not representable as a float, so an infinite bound must not be converted to one.
    bounds = [
        np.array([lowest if b <= lowest else highest if b >= highest else int(b) for b in side.ravel()], dtype=dtype)
        for side in (low, high)
    ]
    return spaces.Box(bounds[0].reshape(shape), bounds[1].reshape(shape), shape, dtype.type)


def config_as_dict(config: PoolConfig, params: Mapping[str, Any], seed: Any) -> dict[str, Any]:
    """Return EnvPool's `config`: a flat dict of the pool's options and the env's parameters."""
    flat = {own.name: getattr(config, own.name) for own in fields(config)}
    flat["autoreset_mode"] = config.autoreset_mode.value
    flat["num_threads"] = config.num_workers  # EnvPool's name
    return {**flat, "seed": seed, "max_num_players": 1, "gym_reset_return_info": True, **params}
