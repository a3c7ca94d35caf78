"""EnvSpec, PoolConfig and RayConfig: what is known before any env runs."""

from __future__ import annotations

import json
import numbers
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec
from gymnasium.vector import AutoresetMode

from envfleet.autoreset import parse_mode
from envfleet.errors import ConfigError, short_repr
from envfleet.option_checks import (
    MAX_ENVS,
    MAX_RAY_WORKERS,
    MAX_WORKERS,
    choice_option,
    flag_option,
    integer_option,
    number_option,
    render_mode_option,
    seconds_option,
    step_limit_option,
)

OnError = Literal["raise", "restart"]
StartMethod = Literal["forkserver", "spawn", "fork"]
InnerBackend = Literal["native", "serial", "threads", "processes"]

ON_ERROR: tuple[OnError, ...] = get_args(OnError)
START_METHODS: tuple[StartMethod, ...] = get_args(StartMethod)
INNER_BACKENDS: tuple[str, ...] = get_args(InnerBackend)


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


@dataclass(frozen=True)
class RayConfig:
    """Options of backend="ray"; see docs/ray.md. Pass make(..., ray=RayConfig(...)), or each by its flat name.

    envs_per_worker: makes num_envs = num_workers * envs_per_worker.
    inner_backend: what runs the envs of one actor; None for native if the env is native, else serial.
    inner_num_workers: how many threads or processes run the envs of one actor; None for actor_options["num_cpus"] if
        that is set, else one thread for native envs, and the cores of the actor's machine for the others.
    address: of a running cluster (flat name: ray_address); None for RAY_ADDRESS, else a cluster on this machine.
    actor_options: what each actor's .options() gets: num_cpus, resources, scheduling_strategy ... (ray_options).
    runtime_env: Ray's runtime_env for each actor.
    direct: send steps through the pool's own connections; False: through Ray, like everything else (ray_direct).
    placement_timeout_s: how long to wait, in seconds, for machines with room for the actors (placement_timeout).
    """

    envs_per_worker: int | None = None
    inner_backend: InnerBackend | None = None
    inner_num_workers: int | None = None
    address: str | None = None
    actor_options: Mapping[str, Any] | None = None
    runtime_env: Mapping[str, Any] | None = None
    direct: bool = True
    placement_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        """Check every field. Raises ConfigError with the flat name of the option."""
        checked: dict[str, Any] = {}
        if self.envs_per_worker is not None:
            checked["envs_per_worker"] = integer_option("envs_per_worker", self.envs_per_worker, 1, MAX_ENVS)
        if self.inner_num_workers is not None:
            checked["inner_num_workers"] = integer_option("inner_num_workers", self.inner_num_workers, 0, MAX_WORKERS)
        if self.inner_backend is not None and self.inner_backend not in INNER_BACKENDS:
            raise ConfigError(f"inner_backend expected one of {INNER_BACKENDS} or None, got {self.inner_backend!r}")
        if self.address is not None and (not isinstance(self.address, str) or not self.address):
            raise ConfigError(
                "ray_address expected an address such as '10.0.0.1:6379', 'auto', 'local' or None, "
                f"got {self.address!r}"
            )
        for flat_name, name in (("ray_options", "actor_options"), ("runtime_env", "runtime_env")):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Mapping):
                raise ConfigError(f"{flat_name} expected a dict, got {short_repr(value)}")
            checked[name] = None if value is None else dict(value)
        _check_actor_options(checked["actor_options"] or {})
        checked["direct"] = flag_option("ray_direct", self.direct)
        default_s = RayConfig.placement_timeout_s
        timeout_s = seconds_option("placement_timeout", self.placement_timeout_s, f"{default_s:g} s")
        checked["placement_timeout_s"] = default_s if timeout_s is None else timeout_s
        for name, value in checked.items():
            object.__setattr__(self, name, value)


def _check_actor_options(options: Mapping[str, Any]) -> None:
    for name in ("max_restarts", "max_task_retries", "max_concurrency", "lifetime", "concurrency_groups", "name"):
        if name in options:
            raise ConfigError(f"ray_options cannot contain {name!r}, which the pool sets; see on_error for faults")
    num_cpus = options.get("num_cpus")
    if num_cpus is not None and (not isinstance(num_cpus, numbers.Real) or not 0 <= float(num_cpus) < MAX_RAY_WORKERS):
        raise ConfigError(f"ray_options['num_cpus'] expected a number of cores of at least 0, got {num_cpus!r}")


# The option of make() for each field of RayConfig.
RAY_OPTIONS = {
    "envs_per_worker": "envs_per_worker",
    "inner_backend": "inner_backend",
    "inner_num_workers": "inner_num_workers",
    "ray_address": "address",
    "ray_options": "actor_options",
    "runtime_env": "runtime_env",
    "ray_direct": "direct",
    "placement_timeout": "placement_timeout_s",
}


@dataclass(frozen=True)
class PoolConfig:
    """How a pool runs its envs. The defaults are those of make(). Every field is checked: raises ConfigError."""

    num_envs: int = 1
    batch_size: int = 1  # below num_envs: asynchronous
    num_workers: int = 1  # how many threads (native, threads), processes or actors (ray) run the envs; 0: unresolved
    thread_affinity_offset: int = -1  # worker i is pinned to core offset + i; negative: no worker is pinned
    autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP
    max_episode_steps: int | None = None
    reward_threshold: float | None = None
    render_mode: str | None = None
    on_error: OnError = "raise"
    max_restarts: int = 100  # per env, with on_error="restart"
    step_timeout: float | None = None  # in seconds: a worker process that takes longer for a step is killed
    start_method: StartMethod = "forkserver"  # of worker processes
    check_actions: bool = True  # False: Python envs get actions unchecked, as long as they have the space's shape
    check_finite: bool = False  # True: a reward or observation that is NaN or infinite is a fault of its env
    copy: bool = True  # False: whole batches are views that the next batch overwrites
    seed_envs: bool = True  # False: envs are seeded by reset(seed=...) only, as in gymnasium.vector
    ray: RayConfig = RayConfig()  # for backend="ray" only

    def __post_init__(self) -> None:
        """Check every field. The one place where the options of make() with these names are checked."""
        num_envs = integer_option("num_envs", self.num_envs, 1, MAX_ENVS)
        limit = self.max_episode_steps
        checked: dict[str, Any] = {
            "num_envs": num_envs,
            "batch_size": integer_option("batch_size", self.batch_size, 1, num_envs),
            "num_workers": integer_option("num_workers", self.num_workers, 0, MAX_RAY_WORKERS),
            "thread_affinity_offset": integer_option(
                "thread_affinity_offset", self.thread_affinity_offset, -1, MAX_ENVS
            ),
            "autoreset_mode": parse_mode(self.autoreset_mode),
            "max_episode_steps": None if limit is None else step_limit_option(limit),
            "reward_threshold": number_option("reward_threshold", self.reward_threshold),
            "render_mode": render_mode_option(self.render_mode),
            "on_error": choice_option("on_error", self.on_error, ON_ERROR),
            "max_restarts": integer_option("max_restarts", self.max_restarts, 0, MAX_ENVS),
            "step_timeout": seconds_option("step_timeout", self.step_timeout),
            "start_method": choice_option("start_method", self.start_method, START_METHODS),
        }
        for own in fields(self):
            if own.type == "bool":
                checked[own.name] = flag_option(own.name, getattr(self, own.name))
        if not isinstance(self.ray, RayConfig):
            raise ConfigError(f"ray expected an envfleet.RayConfig, got {short_repr(self.ray)}")
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def is_async(self) -> bool:
        """Whether batches hold fewer rows than there are envs."""
        return self.batch_size < self.num_envs

    @property
    def restarts_envs(self) -> bool:
        """Whether an env that fails is restarted, and its row shows its last observation."""
        return self.on_error == "restart"


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

    def observation_spec(self) -> Any:
        """Return the observation as dm_env specs."""
        from envfleet.apis.dm import spec_of_space

        return spec_of_space(self.observation_space, "obs")

    def action_spec(self) -> Any:
        """Return the action as a dm_env spec."""
        from envfleet.apis.dm import spec_of_space

        return spec_of_space(self.action_space, "action")


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
    flat = asdict(config)
    ray = flat.pop("ray")
    flat.update({option: ray[field_name] for option, field_name in RAY_OPTIONS.items()})
    flat["autoreset_mode"] = config.autoreset_mode.value
    flat["num_threads"] = config.num_workers  # EnvPool's name
    return {**flat, "seed": seed, "max_num_players": 1, "gym_reset_return_info": True, **params}
