"""pool_options(): the options of make(), declared once; and PoolConfig, what a pool makes of them."""

from __future__ import annotations

import difflib
import inspect
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, get_args

from gymnasium.vector import AutoresetMode

from envfleet import _native
from envfleet.core.autoreset import parse_mode
from envfleet.core.backends import AUTO, Backend, find_backend, local_backends
from envfleet.core.errors import ConfigError, short_repr
from envfleet.core.option_checks import (
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

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BackendName = Literal["auto", "native", "serial", "threads", "processes", "ray"]
InnerBackend = Literal["native", "serial", "threads", "processes"]
# The names of Gymnasium's modes; an env of your own may have others.
RenderMode = Literal["human", "rgb_array", "ansi", "rgb_array_list", "ansi_list", "depth_array", "rgbd_tuple"]
AutoresetModeName = Literal["next_step", "same_step", "disabled", "NextStep", "SameStep", "Disabled"]
OnError = Literal["raise", "restart"]
StartMethod = Literal["forkserver", "spawn", "fork"]

ON_ERROR: tuple[OnError, ...] = get_args(OnError)
START_METHODS: tuple[StartMethod, ...] = get_args(StartMethod)
_SLOW_WORKERS_PER_CORE = 4
_ENVS_PER_SLOW_WORKER = 4  # at least, beyond one worker per core: waking a worker costs about 10 us


def pool_options(
    *,
    num_envs: int | None = None,
    batch_size: int | None = None,
    num_workers: int | None = None,
    num_threads: int | None = None,
    backend: BackendName = "auto",
    seed: int | Sequence[int | None] | NDArray[np.integer[Any]] | None = None,
    env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    wrappers: Sequence[Callable[[Any], Any]] | None = None,
    autoreset_mode: AutoresetMode | AutoresetModeName = "next_step",
    max_episode_steps: int | None = None,
    reward_threshold: float | None = None,
    render_mode: RenderMode | None = None,
    on_error: OnError = "raise",
    max_restarts: int = 100,
    step_timeout: float | None = None,
    start_method: StartMethod = "forkserver",
    thread_affinity_offset: int = -1,
    check_actions: bool = True,
    check_finite: bool = False,
    copy: bool = True,
    seed_envs: bool = True,
    ray: RayConfig | None = None,
    **env_params: Any,
) -> Options:
    """The options of make(), make_gymnasium(), make_pool() and their siblings; all other keywords go to the env.

    The only list of them. building/pools.py gives those functions this signature; here are each option's name, type,
    default and meaning, and PoolConfig checks what it becomes. Called with what make() was given, it returns the
    checked options, and apart from them the env's parameters.

    num_envs: how many envs; the length of the list, if a list of factories is given, else 1.
    batch_size: rows per batch; below num_envs, the pool is asynchronous. None or 0 for num_envs.
    num_workers: how many workers run the envs: threads (native, threads), processes, or actors (ray). None or 0 for
        the usable cores (on some families, several per core: see docs/backends.md), at most one worker per env.
    num_threads: EnvPool's name for num_workers.
    backend: what runs the envs; "auto" chooses native, serial, threads or processes.
    seed: env i gets seed + i; or one seed per env; None for fresh entropy.
    env_kwargs: parameters of the env, as a dict, or a list with one dict per env. For parameters whose name is also
        an option of the pool.
    wrappers: callables that wrap each Python env, the first one innermost.
    autoreset_mode: "next_step", "same_step" or "disabled"; see docs/semantics.md.
    max_episode_steps: the time limit in steps; None for the env's own, -1 for none.
    reward_threshold: the return from which the task counts as solved; None for the env's own.
    render_mode: "rgb_array", "human", or what the env supports.
    on_error: "raise" EnvError if an env fails, or "restart" the env and report its row as truncated.
    max_restarts: per env, with on_error="restart".
    step_timeout: in seconds; a worker process that takes longer for a step is killed. None for no limit.
    start_method: how worker processes start, as in multiprocessing.
    thread_affinity_offset: pins worker i to core offset + i; -1 for no pinning.
    check_actions: False passes actions to Python envs unchecked, as long as they have the space's shape.
    check_finite: True makes a reward or a float observation that is NaN or infinite a fault of its env: on_error says
        what follows.
    copy: with False, whole batches are views that the next batch overwrites.
    seed_envs: False has Python envs seeded by reset(seed=...) only, as in gymnasium.vector.
    ray: the options of backend="ray"; see RayConfig.
    """
    return _checked(locals())


@dataclass(frozen=True, kw_only=True)
class PoolConfig:
    """How a pool runs its envs: the options of make() with these names, checked, and without any left to their default.

    Only num_workers may be 0, until the backend has resolved it. Every field is checked: raises ConfigError.
    """

    num_envs: int
    batch_size: int
    num_workers: int
    autoreset_mode: AutoresetMode
    max_episode_steps: int | None
    reward_threshold: float | None
    render_mode: str | None
    on_error: OnError
    max_restarts: int
    step_timeout: float | None
    start_method: StartMethod
    thread_affinity_offset: int
    check_actions: bool
    check_finite: bool
    copy: bool
    seed_envs: bool
    ray: RayConfig

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


@dataclass(frozen=True)
class RayConfig:
    """Options of backend="ray": make(..., backend="ray", ray=RayConfig(...)). See docs/ray.md.

    envs_per_worker: makes num_envs = num_workers * envs_per_worker.
    inner_backend: what runs the envs of one actor; None for native if the env is native, else serial.
    inner_num_workers: how many threads or processes run the envs of one actor; None for actor_options["num_cpus"] if
        that is set, else one thread for native envs, and the cores of the actor's machine for the others.
    address: of a running cluster; None for RAY_ADDRESS, else a cluster on this machine.
    actor_options: what each actor's .options() gets: num_cpus, resources, scheduling_strategy ...
    runtime_env: Ray's runtime_env for each actor.
    direct: send steps through the pool's own connections; False: through Ray, like everything else.
    placement_timeout_s: how long to wait, in seconds, for machines with room for the actors.
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
        """Check every field. Raises ConfigError."""
        checked: dict[str, Any] = {}
        if self.envs_per_worker is not None:
            checked["envs_per_worker"] = integer_option("envs_per_worker", self.envs_per_worker, 1, MAX_ENVS)
        if self.inner_num_workers is not None:
            checked["inner_num_workers"] = integer_option("inner_num_workers", self.inner_num_workers, 0, MAX_WORKERS)
        inner_backends = tuple(backend.name for backend in local_backends())
        if self.inner_backend not in (None, *inner_backends):
            raise ConfigError(f"inner_backend expected one of {inner_backends} or None, got {self.inner_backend!r}")
        if self.address is not None and (not isinstance(self.address, str) or not self.address):
            raise ConfigError(
                f"address expected an address such as '10.0.0.1:6379', 'auto', 'local' or None, got {self.address!r}"
            )
        for name in ("actor_options", "runtime_env"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Mapping):
                raise ConfigError(f"{name} expected a dict, got {short_repr(value)}")
            checked[name] = None if value is None else dict(value)
        _check_actor_options(checked["actor_options"] or {})
        checked["direct"] = flag_option("direct", self.direct)
        default_s = RayConfig.placement_timeout_s
        timeout_s = seconds_option("placement_timeout_s", self.placement_timeout_s, f"{default_s:g} s")
        checked["placement_timeout_s"] = default_s if timeout_s is None else timeout_s
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def all_actor_options(self) -> dict[str, Any]:
        """The actor_options with the runtime_env."""
        runtime_env = {"runtime_env": self.runtime_env} if self.runtime_env else {}
        return {**runtime_env, **(self.actor_options or {})}


def _check_actor_options(options: Mapping[str, Any]) -> None:
    for name in ("max_restarts", "max_task_retries", "max_concurrency", "lifetime", "concurrency_groups", "name"):
        if name in options:
            raise ConfigError(f"actor_options cannot contain {name!r}, which the pool sets; see on_error for faults")
    num_cpus = options.get("num_cpus")
    if num_cpus is not None and (not isinstance(num_cpus, numbers.Real) or not 0 <= float(num_cpus) < MAX_RAY_WORKERS):
        raise ConfigError(f"actor_options['num_cpus'] expected a number of cores of at least 0, got {num_cpus!r}")


@dataclass(frozen=True)
class Options:
    """The arguments of make(), checked.

    backend: None for "auto".
    params: the env's parameters, one dict for all envs or one per env.
    keywords: the names of the env's parameters that were passed as keywords of make(), not in env_kwargs.
    """

    config: PoolConfig
    seed: Any
    backend: Backend | None
    params: tuple[dict[str, Any], ...]
    wrappers: tuple[Callable[[Any], Any], ...]
    keywords: frozenset[str]


POOL_OPTIONS: Mapping[str, Any] = {  # with their defaults
    name: option.default
    for name, option in inspect.signature(pool_options).parameters.items()
    if option.kind is option.KEYWORD_ONLY
}
_NEAR = 0.84  # n_envs is this near to num_envs; num_agents and num_walkers, which envs do have, are not
_MIN_LETTERS = 5  # "speed" is as near to "seed" as a misspelling
# What a misspelt name may have meant. Fields of RayConfig such as `direct` may be parameters of an env.
_SPELLINGS = {
    **{name: name for name in POOL_OPTIONS if len(name) >= _MIN_LETTERS},
    **{own.name: f"ray=RayConfig({own.name}=...)" for own in fields(RayConfig) if "_" in own.name},
    **{f"ray_{own.name}": f"ray=RayConfig({own.name}=...)" for own in fields(RayConfig)},
}


def misspelt_option(name: str) -> str | None:
    """Return the option of make() that a name most likely misspells, or None."""
    nearest = difflib.get_close_matches(name.lower(), sorted(_SPELLINGS), n=1, cutoff=_NEAR)
    return _SPELLINGS[nearest[0]] if nearest else None


def _checked(given: dict[str, Any]) -> Options:
    """Check the arguments of pool_options(), by name."""
    params: dict[str, Any] = given["env_params"]
    backend = None if given["backend"] == AUTO else find_backend(given["backend"])
    is_local = backend is None or backend.is_local
    wrappers = given["wrappers"] or ()
    if not isinstance(wrappers, (list, tuple)):
        raise ConfigError(f"wrappers expected a list of callables, got {short_repr(wrappers)}")
    has_num_envs = given["num_envs"] is not None
    values = {own.name: given[own.name] for own in fields(PoolConfig)}
    values["ray"] = checked_ray_config(given["ray"], given["backend"], is_local=is_local)
    values["num_workers"] = _num_workers(given, MAX_WORKERS if is_local else MAX_RAY_WORKERS)
    if values["ray"].envs_per_worker is not None:
        values.update(_with_envs_per_worker(given["num_envs"], values["num_workers"], values["ray"].envs_per_worker))
    elif not has_num_envs:
        values["num_envs"] = 1
    if _is_default(given["batch_size"]):
        values["batch_size"] = values["num_envs"]
    if not given["start_method"]:  # None: the default, as in multiprocessing
        values["start_method"] = POOL_OPTIONS["start_method"]
    config = PoolConfig(**values)
    per_env = tuple({**params, **own} for own in _env_kwargs(given["env_kwargs"], config.num_envs, has_num_envs))
    return Options(config, given["seed"], backend, per_env, tuple(wrappers), frozenset(params))


def _is_default(value: Any) -> bool:
    """Return whether a count is left to its default: None, or 0 as in EnvPool."""
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value == 0)


def _num_workers(given: Mapping[str, Any], highest: int) -> int:
    """Return num_workers, or num_threads, EnvPool's name for it; 0 if neither is set."""
    num_workers, num_threads = (
        0 if _is_default(given[name]) else integer_option(name, given[name], 0, highest)
        for name in ("num_workers", "num_threads")
    )
    if num_workers and num_threads and num_workers != num_threads:
        raise ConfigError(
            "num_workers and num_threads expected the same number, since num_threads is EnvPool's name for "
            f"num_workers, got num_workers={num_workers} and num_threads={num_threads}; pass one of them"
        )
    return num_workers or num_threads


def checked_ray_config(ray: Any, backend: str, *, is_local: bool) -> RayConfig:
    """Return the RayConfig that was passed beside the backend of this name, or the default one."""
    if ray is None:
        return RayConfig()
    if not isinstance(ray, RayConfig):
        raise ConfigError(f"ray expected an envfleet.RayConfig, got {short_repr(ray)}")
    if is_local and ray != RayConfig():
        raise ConfigError(f"ray=RayConfig(...) expected backend='ray', got backend={backend!r}; leave it out")
    return ray


def _with_envs_per_worker(num_envs: Any, num_workers: int, per_worker: int) -> dict[str, int]:
    """Compute num_envs or num_workers, whichever is missing, from envs_per_worker."""
    if num_envs is None and not num_workers:
        raise ConfigError("envs_per_worker expected num_workers or num_envs beside it, got neither; pass one of them")
    if num_envs is not None:
        num_envs = integer_option("num_envs", num_envs, 1, MAX_ENVS)
    if num_workers:
        product = num_workers * per_worker
        if num_envs not in (None, product):
            raise ConfigError(
                f"num_envs expected num_workers * envs_per_worker = {num_workers} * {per_worker} = {product}, "
                f"got {num_envs}; leave one of the three out"
            )
        return {"num_envs": product, "num_workers": num_workers}
    if num_envs % per_worker:
        raise ConfigError(
            f"num_envs expected a multiple of envs_per_worker={per_worker}, got {num_envs}; "
            "pass num_workers instead, and workers may differ by one env"
        )
    return {"num_envs": num_envs, "num_workers": num_envs // per_worker}


def _env_kwargs(env_kwargs: Any, num_envs: int, has_num_envs: bool) -> list[Mapping[str, Any]]:
    if env_kwargs is None:
        return [{}]
    dicts = list(env_kwargs) if isinstance(env_kwargs, (list, tuple)) else [env_kwargs]
    for own in dicts:
        if not isinstance(own, Mapping):
            raise ConfigError(f"env_kwargs expected a dict of parameters, got {short_repr(own)}")
    if isinstance(env_kwargs, (list, tuple)) and len(dicts) != num_envs:
        if not has_num_envs:
            raise ConfigError(
                f"env_kwargs expected a dict, or a list with one dict per env, got a list of {len(dicts)} without "
                f"num_envs, which is 1 by default; pass num_envs={len(dicts)}"
            )
        raise ConfigError(
            f"env_kwargs expected a dict, or a list of {num_envs} dicts, one per env, got a list of {len(dicts)}"
        )
    return dicts


def resolve_num_workers(
    config: PoolConfig, backend: Backend, workers_per_core: int = 1, *, has_slow_steps: bool = False
) -> int:
    """Return how many workers run the envs on a backend, given the num_workers of Options.config."""
    if not backend.is_parallel:
        return 1
    if not backend.is_local:
        return min(config.num_envs, config.num_workers)  # 0 until the cluster is known
    if not backend.runs_python_envs:
        # More threads than rows per batch would only help an asynchronous pool, and not by default.
        return config.num_workers or min(config.batch_size, _native.usable_cores())
    cores = _native.usable_cores()
    is_pinned = config.thread_affinity_offset >= 0
    if has_slow_steps and backend.has_processes and not config.is_async and not is_pinned:
        # A synchronous batch waits for its slowest worker, for example one whose envs reset, or whose core is busy
        # otherwise. With several workers per core, the scheduler runs waiting ones on the cores that are done. As many
        # for each core: with five on four cores, three of them would wait for the one that has two.
        workers_per_core = min(_SLOW_WORKERS_PER_CORE, max(1, config.num_envs // (_ENVS_PER_SLOW_WORKER * cores)))
    default = min(cores * workers_per_core, MAX_WORKERS)
    return min(config.num_envs, config.num_workers or default)
