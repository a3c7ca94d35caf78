"""What is known before any env runs: spaces, dtypes, limits, config."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec
from gymnasium.vector import AutoresetMode

from envfleet.errors import ConfigError


@dataclass(frozen=True)
class ArraySpec:
    """One array of an observation or info: its space, and on which rows it has a value.

    texts: what the numbers stand for that a native env writes for a space of texts.
    """

    name: str
    space: gymnasium.Space[Any]
    on_step: bool = True
    on_reset: bool = True
    texts: tuple[str, ...] = ()


@dataclass(frozen=True)
class PoolConfig:
    """How a pool runs its envs. The defaults are those of make()."""

    num_envs: int = 1
    batch_size: int = 1  # below num_envs: asynchronous
    num_threads: int = 1  # of the native backend
    num_workers: int = 1  # of the others
    thread_affinity_offset: int = -1  # worker i is pinned to core offset + i; below 0: none is
    autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP
    max_episode_steps: int | None = None
    reward_threshold: float | None = None
    render_mode: str | None = None
    on_error: str = "raise"  # or "restart"
    max_restarts: int = 100  # of one env, with on_error="restart"
    step_timeout: float | None = None  # seconds after which a worker process is given up
    start_method: str = "forkserver"  # of worker processes; or "spawn", "fork"
    check_actions: bool = True  # False: actions go to Python envs as they are, if they have the space's shape
    copy: bool = True  # False: the executor may hand out views that the next recv overwrites
    seed_envs: bool = True  # False: envs are seeded by reset(seed=...) only, as in gymnasium.vector
    # Of backend="ray" alone; see docs/ray.md.
    envs_per_worker: int | None = None  # num_workers * envs_per_worker instead of num_envs
    inner_backend: str | None = None  # of one worker: None takes native where the env is, else serial
    ray_address: str | None = None  # of a running cluster; None: RAY_ADDRESS, else one on this machine
    ray_options: Mapping[str, Any] | None = None  # of each actor: num_cpus, resources, scheduling_strategy ...
    runtime_env: Mapping[str, Any] | None = None  # what each actor's machine is to have: Ray's runtime_env
    ray_direct: bool = True  # steps on connections of the pool's own; False: through Ray like everything else
    placement_timeout: float = 60.0  # seconds to wait for machines that have room for the actors

    @property
    def is_async(self) -> bool:
        """Whether batches hold fewer rows than there are envs."""
        return self.batch_size < self.num_envs


@dataclass
class EnvSpec(GymnasiumSpec):
    """A Gymnasium EnvSpec that also knows the spaces and the config, as EnvPool's does."""

    observation_space: gymnasium.Space[Any] = field(default_factory=lambda: spaces.Discrete(1))
    action_space: gymnasium.Space[Any] = field(default_factory=lambda: spaces.Discrete(1))
    observation_arrays: tuple[ArraySpec, ...] = ()
    info_arrays: tuple[ArraySpec, ...] = ()
    reset_options: tuple[str, ...] = ()
    backend: str = "native"
    native_id: str = ""  # the native env behind the id
    has_state: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)  # of the env's class
    render_mode: str | None = None  # as a Python env has it
    own_step_limit: int | None = None  # after which a Python env ends episodes by itself
    config: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Gymnasium's part of the spec, from which gymnasium.make_vec() makes the pool again.

        Read by gymnasium.envs.registration.EnvSpec.from_json(). Raises ConfigError when the env or a parameter
        has no JSON, such as a class.
        """
        values = {own.name: getattr(self, own.name) for own in fields(GymnasiumSpec) if own.init}
        values["additional_wrappers"] = [asdict(wrapper) for wrapper in self.additional_wrappers]
        try:
            return json.dumps(values)
        except TypeError as error:
            raise ConfigError(
                f"to_json() of {self.id} expected an env id and parameters that JSON can hold: {error}; "
                "register the env with gymnasium.register() and make it by its id"
            ) from error

    def observation_spec(self) -> Any:
        """The observation as dm_env specs."""
        from envfleet.apis.dm import spec_of_space

        return spec_of_space(self.observation_space, "obs")

    def action_spec(self) -> Any:
        """The action as a dm_env spec."""
        from envfleet.apis.dm import spec_of_space

        return spec_of_space(self.action_space, "action")


def space_from_native(array: Mapping[str, Any]) -> gymnasium.Space[Any]:
    """The Gymnasium space of an array as the native module describes it."""
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
    # Clipped as integers: 2**63-1 has no float, so a bound of infinity must not pass through one.
    bounds = [
        np.array([lowest if b <= lowest else highest if b >= highest else int(b) for b in side.ravel()], dtype=dtype)
        for side in (low, high)
    ]
    return spaces.Box(bounds[0].reshape(shape), bounds[1].reshape(shape), shape, dtype.type)


def config_as_dict(config: PoolConfig, params: Mapping[str, Any], seed: Any) -> dict[str, Any]:
    """The flat dict that EnvPool's `config` is: pool options and the env's own together."""
    flat = asdict(config)
    flat["autoreset_mode"] = config.autoreset_mode.value
    return {**flat, "seed": seed, "max_num_players": 1, "gym_reset_return_info": True, **params}
