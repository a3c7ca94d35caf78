"""The options of make(): their names and types, how they are told apart from the env's parameters, and their checks."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, get_args

from envfleet import _native
from envfleet.errors import ConfigError, short_repr
from envfleet.option_checks import MAX_ENVS, MAX_RAY_WORKERS, MAX_WORKERS, integer_option
from envfleet.spec import RAY_OPTIONS, InnerBackend, OnError, PoolConfig, RayConfig, StartMethod

if TYPE_CHECKING:
    import numpy as np
    from gymnasium.vector import AutoresetMode
    from numpy.typing import NDArray

Backend = Literal["auto", "native", "serial", "threads", "processes", "ray"]
# The names of Gymnasium's modes; an env of your own may have others.
RenderMode = Literal["human", "rgb_array", "ansi", "rgb_array_list", "ansi_list", "depth_array", "rgbd_tuple"]
AutoresetModeName = Literal["next_step", "same_step", "disabled", "NextStep", "SameStep", "Disabled"]

BACKENDS: tuple[str, ...] = get_args(Backend)
PYTHON_BACKENDS = ("serial", "threads", "processes")
_SLOW_WORKERS_PER_CORE = 4
_ENVS_PER_SLOW_WORKER = 4  # at least, beyond one worker per core: waking a worker costs about 10 us


def pool_options(
    *,
    num_envs: int | None = None,
    batch_size: int | None = None,
    num_workers: int | None = None,
    num_threads: int | None = None,
    backend: Backend = "auto",
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
    envs_per_worker: int | None = None,
    inner_backend: InnerBackend | None = None,
    inner_num_workers: int | None = None,
    ray_address: str | None = None,
    ray_options: Mapping[str, Any] | None = None,
    runtime_env: Mapping[str, Any] | None = None,
    ray_direct: bool | None = None,
    placement_timeout: float | None = None,
    **env_params: Any,
) -> None:
    """The options of make(), make_gymnasium(), make_pool() and their siblings; all other keywords go to the env.

    The only list of them: making/make.py gives those functions this signature, and parse_options() reads its names.

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
    ray: the options of backend="ray". Each also has a flat name: envs_per_worker, inner_backend, inner_num_workers,
        ray_address, ray_options, runtime_env, ray_direct, placement_timeout (in seconds). See RayConfig.
    """


POOL_OPTIONS = frozenset(inspect.signature(pool_options).parameters) - {"env_params"}
_NEAR = 0.84  # n_envs is this near to num_envs; num_agents and num_walkers, which envs do have, are not
_MIN_LETTERS = 5  # "speed" is as near to "seed" as a misspelling


def misspelt_option(name: str) -> str | None:
    """Return the option of make() that a name most likely misspells, or None."""
    candidates = sorted(own for own in POOL_OPTIONS if len(own) >= _MIN_LETTERS)
    nearest = difflib.get_close_matches(name.lower(), candidates, n=1, cutoff=_NEAR)
    return nearest[0] if nearest else None


@dataclass(frozen=True)
class Options:
    """The arguments of make(), parsed.

    config: num_workers is 0 if it was not specified: its default depends on the backend.
    params: the env's parameters, one dict for all envs or one per env.
    explicit: the names of the pool's options that were passed; num_workers also when it was passed as num_threads.
    keywords: the names of the env's parameters that were passed as keywords of make(), not in env_kwargs.
    """

    config: PoolConfig
    seed: Any
    backend: str
    params: tuple[dict[str, Any], ...]
    wrappers: tuple[Callable[[Any], Any], ...] = ()
    explicit: frozenset[str] = frozenset()
    keywords: frozenset[str] = frozenset()


def parse_options(options: Mapping[str, Any], default_num_envs: int = 1) -> Options:
    """Check the options of make() and separate them from the env's parameters."""
    params = dict(options)
    env_kwargs = params.pop("env_kwargs", None)
    seed = params.pop("seed", None)
    backend = params.pop("backend", "auto")
    if backend not in BACKENDS:
        raise ConfigError(f"backend expected one of {BACKENDS}, got {backend!r}")
    wrappers = params.pop("wrappers", None) or ()
    if not isinstance(wrappers, (list, tuple)):
        raise ConfigError(f"wrappers expected a list of callables, got {short_repr(wrappers)}")
    pool = {name: params.pop(name) for name in list(params) if name in POOL_OPTIONS}
    max_workers = MAX_RAY_WORKERS if backend == "ray" else MAX_WORKERS
    if pool.get("num_envs", 1) is None:
        del pool["num_envs"]
    pool = _with_one_worker_count(pool, max_workers)
    ray = parse_ray_options(backend, pool)
    if ray.envs_per_worker is not None:
        pool = _with_envs_per_worker(pool, ray.envs_per_worker, default_num_envs)
    config = _pool_config(pool, ray, default_num_envs, max_workers)
    has_num_envs = "num_envs" in pool or default_num_envs > 1
    per_env = tuple({**params, **own} for own in _env_kwargs(env_kwargs, config.num_envs, has_num_envs))
    return Options(config, seed, backend, per_env, tuple(wrappers), frozenset(pool), frozenset(params))


def _with_one_worker_count(pool: dict[str, Any], max_workers: int) -> dict[str, Any]:
    """Replace num_threads, EnvPool's name, by num_workers."""
    num_workers, num_threads = pool.pop("num_workers", None), pool.pop("num_threads", None)
    if _is_default(num_threads):
        return pool if _is_default(num_workers) else {**pool, "num_workers": num_workers}
    num_threads = integer_option("num_threads", num_threads, 0, max_workers)
    if not _is_default(num_workers) and num_workers != num_threads:
        raise ConfigError(
            "num_workers and num_threads expected the same number, since num_threads is EnvPool's name for "
            f"num_workers, got num_workers={num_workers!r} and num_threads={num_threads}; pass one of them"
        )
    return {**pool, "num_workers": num_threads}


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


def _pool_config(pool: Mapping[str, Any], ray: RayConfig, default_num_envs: int, max_workers: int) -> PoolConfig:
    values = {own.name: pool[own.name] for own in fields(PoolConfig) if own.name in pool}
    values.setdefault("num_envs", default_num_envs)
    # 0 means the default, as in EnvPool.
    if _is_default(values.get("batch_size")):
        values["batch_size"] = values["num_envs"]
    num_workers = 0 if _is_default(values.get("num_workers")) else values["num_workers"]
    values["num_workers"] = integer_option("num_workers", num_workers, 0, max_workers)
    if not values.get("start_method", True):
        del values["start_method"]  # None: the default, as in multiprocessing
    return PoolConfig(**{**values, "ray": ray})


def resolve_num_workers(
    config: PoolConfig, backend: str, workers_per_core: int = 1, *, has_slow_steps: bool = False
) -> int:
    """Return how many workers run the envs on a backend, given the num_workers of Options.config."""
    if backend == "native":
        # More threads than rows per batch would only help an asynchronous pool, and not by default.
        return config.num_workers or min(config.batch_size, _native.usable_cores())
    if backend == "serial":
        return 1
    cores = _native.usable_cores()
    is_pinned = config.thread_affinity_offset >= 0
    if has_slow_steps and backend == "processes" and config.batch_size == config.num_envs and not is_pinned:
        # A synchronous batch waits for its slowest worker, for example one whose envs reset, or whose core is busy
        # otherwise. With several workers per core, the scheduler runs waiting ones on the cores that are done. As many
        # for each core: with five on four cores, three of them would wait for the one that has two.
        workers_per_core = min(_SLOW_WORKERS_PER_CORE, max(1, config.num_envs // (_ENVS_PER_SLOW_WORKER * cores)))
    default = min(cores * workers_per_core, MAX_WORKERS)
    return min(config.num_envs, config.num_workers or default)


# --- backend="ray" -----------------------------------------------------------------------------


def parse_ray_options(backend: str, pool: Mapping[str, Any]) -> RayConfig:
    """Return the RayConfig that `ray` and the flat options describe, checked.

    Raises ConfigError if one of them is passed with another backend, or a field both ways.
    """
    grouped = pool.get("ray")
    if grouped is not None and not isinstance(grouped, RayConfig):
        raise ConfigError(f"ray expected an envfleet.RayConfig, got {short_repr(grouped)}")
    defaults = {field.name: field.default for field in fields(RayConfig)}
    values = {name: getattr(grouped or RayConfig(), name) for name in defaults}
    for flat_name, name in RAY_OPTIONS.items():
        if pool.get(flat_name) is None or (backend != "ray" and pool[flat_name] == defaults[name]):
            continue
        if backend != "ray":
            raise ConfigError(f"{flat_name} expected backend='ray', got backend={backend!r}; leave it out")
        if grouped is not None and values[name] != defaults[name]:
            raise ConfigError(
                f"expected {flat_name} or ray=RayConfig({name}=...), got both: {pool[flat_name]!r} and "
                f"{values[name]!r}; pass one of them"
            )
        values[name] = pool[flat_name]
    if backend == "ray":
        return RayConfig(**values)
    if grouped is not None and values != defaults:
        raise ConfigError(f"ray=RayConfig(...) expected backend='ray', got backend={backend!r}; leave it out")
    return RayConfig()


def _with_envs_per_worker(pool: Mapping[str, Any], per_worker: int, default_num_envs: int) -> dict[str, Any]:
    """Compute num_envs or num_workers, whichever is missing, from envs_per_worker."""
    num_envs, num_workers = pool.get("num_envs"), pool.get("num_workers")
    if num_envs is None and default_num_envs > 1:
        num_envs = default_num_envs
    if num_envs is None and not num_workers:
        raise ConfigError("envs_per_worker expected num_workers or num_envs beside it, got neither; pass one of them")
    if num_workers:
        num_workers = integer_option("num_workers", num_workers, 1, MAX_RAY_WORKERS)
        product = num_workers * per_worker
        if num_envs is not None and integer_option("num_envs", num_envs, 1, MAX_ENVS) != product:
            raise ConfigError(
                f"num_envs expected num_workers * envs_per_worker = {num_workers} * {per_worker} = {product}, "
                f"got {num_envs}; leave one of the three out"
            )
        return {**pool, "num_envs": product, "num_workers": num_workers}
    num_envs = integer_option("num_envs", num_envs, 1, MAX_ENVS)
    if num_envs % per_worker:
        raise ConfigError(
            f"num_envs expected a multiple of envs_per_worker={per_worker}, got {num_envs}; "
            "pass num_workers instead, and workers may differ by one env"
        )
    return {**pool, "num_envs": num_envs, "num_workers": num_envs // per_worker}


@contextmanager
def refused_by_ray(options: Mapping[str, Any]) -> Iterator[None]:
    """Raise ConfigError if Ray, which checks the options of its actors itself, rejects them."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"ray_options and runtime_env expected what a Ray actor's .options() takes, got {dict(options)}: {error}"
        ) from error


def _is_default(value: Any) -> bool:
    """Return whether a count is left to its default: None, or 0 as in EnvPool."""
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value == 0)
