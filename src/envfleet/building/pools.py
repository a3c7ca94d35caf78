"""make_pool() and make_spec(): from an env id, class or factory to a pool, or to what is known of it before it is made.

make_pool(env, ...) -> Options -> EnvSpec -> Executor -> Pool

Every function that makes a pool takes the options of pool_options(), which is where they are declared.
with_pool_options() copies that signature and the documentation, for type checkers, editors and help().
"""

from __future__ import annotations

import inspect
import textwrap
import warnings
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar

import numpy as np

import envfleet.building.backends  # noqa: F401  # registers them
from envfleet.building.builders import EnvBuilders
from envfleet.building.native_envs import NativeEntry, find_entry, load_entry, native_executor, resolve, supports_params
from envfleet.building.pixels import wants_pixels
from envfleet.building.python_envs import auto_backend, check_known, opens_windows, python_executor, python_spec
from envfleet.core.backends import Backend, find_backend
from envfleet.core.errors import CompileError, ConfigError
from envfleet.core.executor import Executor
from envfleet.core.options import Options, pool_options
from envfleet.core.pool import Pool
from envfleet.core.rendering import check_screen
from envfleet.core.seeding import seeds_for
from envfleet.core.spec import EnvSpec
from envfleet.executors.python.building import EnvDescription

# The first argument of make(): an id, a class, a factory, or a list with one factory per env.
Env = str | Callable[..., Any] | Sequence[Callable[[], Any]]

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class MakeFunction(Protocol[P, R_co]):
    """A function of an env and the pool's options P."""

    def __call__(self, task_id: Env, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Make it."""


def with_pool_options(options: Callable[P, object]) -> Callable[[Callable[..., R]], MakeFunction[P, R]]:
    """Declare that the **options of a function are those of another one, such as pool_options()."""
    return lambda function: with_signature(function, options)


def with_signature(function: Any, options: Callable[..., Any]) -> Any:
    """Replace **options in the signature that help() and inspect.signature() show, and add them to the docstring."""
    signature = inspect.signature(function)
    own = [parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
    added = inspect.signature(options).parameters.values()
    function.__signature__ = signature.replace(parameters=[*own, *added])
    if function.__doc__ and options.__doc__:  # not with python -OO
        _, _, described = inspect.cleandoc(options.__doc__).split("\n\n", 2)
        function.__doc__ = f"{inspect.cleandoc(function.__doc__)}\n\nOptions:\n{textwrap.indent(described, '    ')}"
    return function


@with_pool_options(pool_options)
def make_spec(task_id: Env, **options: Any) -> EnvSpec:
    """Return the spec of the pool that make() would make.

    Of a Python env, one is built and closed again: only the env knows its spaces.
    """
    entry, backend, parsed = _choose_backend(task_id, options)
    _check_seed(parsed)
    if entry is not None:
        return resolve(str(task_id), entry, backend, parsed).spec
    return python_spec(task_id, backend, parsed)


@with_pool_options(pool_options)
def make_pool(task_id: Env, **options: Any) -> Pool:
    """Make the bare pool that make() wraps in an api. Options: see make()."""
    entry, backend, parsed = _choose_backend(task_id, options)
    _check_seed(parsed)  # before anything is built
    executor: Executor
    if entry is not None:
        executor, config = native_executor(str(task_id), entry, backend, parsed)
    else:
        executor, config = python_executor(task_id, backend, parsed)
    try:
        return Pool(executor, config, parsed.seed)
    except BaseException:  # after Ctrl-C at this moment, no pool would close the workers
        executor.close()
        raise


def make_pool_of(env_builders: EnvBuilders, backend: str, **options: Any) -> Pool:
    """Make a pool of Python envs from their builders. Options: see make()."""
    parsed = pool_options(num_envs=len(env_builders.builders), **options)

    def make_spec(description: EnvDescription) -> EnvSpec:
        return EnvSpec(
            id=env_builders.name,
            observation_space=description.observation_space,
            action_space=description.action_space,
            backend=backend,
            metadata=description.metadata,
            render_mode=description.render_mode,
        )

    executor, config = find_backend(backend).make_python(env_builders, make_spec, parsed.config, parsed.params)
    return Pool(executor, config, parsed.seed)


def _check_seed(options: Options) -> None:
    num_envs = options.config.num_envs
    # One seed for all envs is checked without making theirs: for a billion envs, that would take all memory.
    num_checked = num_envs if isinstance(options.seed, (Sequence, np.ndarray)) else 0
    seeds_for(options.seed, np.arange(num_checked, dtype=np.int32), num_envs)


def _choose_backend(env: Env, options: dict[str, Any]) -> tuple[NativeEntry | None, Backend, Options]:
    """Return the native env, or None if the env runs in Python; the backend; and the parsed options."""
    entry = find_entry(env)
    if entry is None:
        check_known(env)
    if isinstance(env, (list, tuple)) and env and options.get("num_envs") is None:
        options = {**options, "num_envs": len(env)}
    parsed = pool_options(**options)
    backend = inner = parsed.backend
    if backend is not None and not backend.is_local:  # the backend of each actor decides
        inner_name = parsed.config.ray.inner_backend
        inner = None if inner_name is None else find_backend(inner_name)
    is_native = inner is not None and not inner.runs_python_envs  # by name
    if wants_pixels(env, parsed.params):
        if is_native:
            raise ConfigError("from_pixels=True expected a Python backend, got backend='native'; leave backend out")
        entry = None
    if entry is not None and not supports_params(entry, parsed.params):
        if is_native:
            raise ConfigError(
                f"{env} expected parameters that its env in C++ supports, got others with backend='native'; "
                "leave backend out"
            )
        entry = None
    if entry is not None and (is_native or (inner is None and not parsed.wrappers)):
        if parsed.wrappers:
            raise ConfigError("wrappers expected a Python backend, got backend='native'; leave backend out")
        if parsed.config.render_mode == "human":
            check_screen()
        if _can_load(env, entry, is_optional=not is_native):
            return entry, backend or find_backend("native"), parsed
    if is_native:
        raise ConfigError(f"backend='native' expected an env in C++, got {env!r}, which has none; leave backend out")
    if entry is not None:
        check_known(env)  # a native id may have no Python env
    if parsed.config.render_mode == "human" and not opens_windows(env, parsed):
        check_screen()
    return None, backend or auto_backend(env, parsed.config), parsed


def _can_load(env: Env, entry: NativeEntry, *, is_optional: bool) -> bool:
    """Return whether the engine has the env. If it is optional and cannot be compiled here, warn of that."""
    try:
        load_entry(entry)
    except CompileError as error:
        if not is_optional:
            raise
        check_known(env)  # raises if there is no Python env, before a warning promises one
        warnings.warn(f"{env} runs as a Python env, several times slower: {error}", stacklevel=6)
        return False
    return True
