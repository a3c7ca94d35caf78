"""Building Python envs where they run, and the description of a built env that travels back to the caller."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import cloudpickle
import gymnasium

from envfleet.core.batch import Fault
from envfleet.core.errors import ConfigError, DifferentSpacesError, EnvError
from envfleet.core.spec import EnvSpec
from envfleet.core.tracebacks import message_of
from envfleet.executors.env_reports import build_remedy


class EnvBuilder(Protocol):
    """Builds one env, where it will run."""

    def build(self, env_id: int) -> Any:
        """Return the env of this id."""


class EnvBuilders(Protocol):
    """What the executors of Python envs are made from."""

    @property
    def builders(self) -> Sequence[EnvBuilder]:
        """One per env."""

    @property
    def max_episode_steps(self) -> int | None:
        """The time limit that the pool enforces."""


@dataclass(frozen=True)
class EnvDescription:
    """The spaces and public attributes of a built env."""

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    metadata: dict[str, Any] = field(default_factory=dict)
    render_mode: str | None = None
    class_name: str = ""
    info_space: gymnasium.Space[Any] | str | None = None
    max_steps: int | None = None


# An executor knows its spec once an env is built and its spaces are known.
SpecMaker = Callable[[EnvDescription], EnvSpec]


def describe_env(env: Any) -> EnvDescription:
    """Return the description of an env, without metadata that cannot be pickled."""
    metadata = getattr(env, "metadata", None)
    try:
        metadata = pickle.loads(pickle.dumps(dict(metadata or {})))
    except Exception:
        metadata = {}
    return EnvDescription(
        env.observation_space,
        env.action_space,
        metadata,
        getattr(env, "render_mode", None),
        type(getattr(env, "unwrapped", env)).__name__,
        _info_space_of(env),
        _max_steps_of(env),
    )


def _info_space_of(env: Any) -> gymnasium.Space[Any] | str | None:
    """Return the declared space of an env's infos, or the repr of a declaration that the caller will refuse."""
    declared = getattr(env, "info_space", None) or getattr(getattr(env, "unwrapped", env), "info_space", None)
    if callable(declared):  # of an env whose __getattr__ returns a method for every name
        return None
    return declared if declared is None or isinstance(declared, gymnasium.Space) else repr(declared)


def _max_steps_of(env: Any) -> int | None:
    """Return the number of steps after which the env itself ends an episode, under MiniGrid's name for it."""
    limit = getattr(getattr(env, "unwrapped", env), "max_steps", None)
    return limit if type(limit) is int and limit > 0 else None


def common_description(descriptions: list[EnvDescription]) -> EnvDescription:
    """Return the first description. Raises DifferentSpacesError if the spaces of the envs differ."""
    first = descriptions[0]
    for env_id, other in enumerate(descriptions):
        for name in ("observation_space", "action_space"):
            # Comparing large spaces is slow, and most envs share theirs.
            if getattr(other, name) is not getattr(first, name) and getattr(other, name) != getattr(first, name):
                raise DifferentSpacesError(
                    f"make() expected the same spaces for all envs, the {name} of env 0 is {getattr(first, name)} "
                    f"and that of env {env_id} is {getattr(other, name)}; pad or wrap them to one space, "
                    "or make one pool for each"
                )
    return first


def describe_envs(envs: Mapping[int, Any]) -> EnvDescription:
    """Return the description that all these envs share."""
    return common_description([describe_env(env) for env in envs.values()])


def accept_any_process() -> None:
    """Do nothing: a child forked in the caller's process is a copy of the user's program and may continue."""


def build_envs(
    builders: Sequence[EnvBuilder],
    env_ids: Iterable[int],
    check_process: Callable[[], None] = accept_any_process,
    *,
    is_interruptible: bool = True,
) -> dict[int, Any]:
    """Build these envs and return them by env id.

    check_process: called after each env. In a worker, it ends a child that the env has forked; the child would build
    the other envs as well, and each of them might fork again.
    is_interruptible: whether Ctrl-C reaches this process. Otherwise a KeyboardInterrupt is the env's own exception.

    Raises EnvError if a constructor raises, or its ConfigError; envs that were already built are closed.
    """
    envs: dict[int, Any] = {}
    env_id_of: dict[int, int] = {}  # id() of the object -> env id
    try:
        for env_id, builder in zip(env_ids, builders, strict=True):
            try:
                try:
                    envs[env_id] = env = builder.build(env_id)
                    _ = env.step, env.reset  # either may be a property that raises
                finally:
                    check_process()
            except (EnvError, ConfigError):
                raise
            except BaseException as error:
                if is_interruptible and isinstance(error, KeyboardInterrupt):
                    raise
                fault = Fault.of(error, "__init__", env_id)
                raise EnvError((fault,), None, build_remedy(fault)) from error
            other_id = env_id_of.setdefault(id(env), env_id)
            if other_id != env_id:
                raise ConfigError(
                    f"make() expected a factory that makes a new env each time, got the same object for envs "
                    f"{other_id} and {env_id}; build the env inside the factory"
                )
    except BaseException:
        close_envs(envs.values(), check_process)
        raise
    return envs


def close_envs(envs: Iterable[Any], check_process: Callable[[], None] = accept_any_process) -> None:
    """Close envs that will not be used. What they raise is ignored: an earlier exception is already on its way.

    check_process: as for build_envs().
    """
    for env in envs:
        with contextlib.suppress(BaseException):
            env.close()
        check_process()


@contextlib.contextmanager
def close_on_error(envs: Mapping[int, Any]) -> Iterator[None]:
    """Close these envs if the block raises."""
    try:
        yield
    except BaseException:
        close_envs(envs.values())
        raise


def pickle_builders(builders: Any, backend: str) -> bytes:
    """Pickle what builds envs in another process. Raises ConfigError if it cannot be pickled."""
    try:
        data: bytes = cloudpickle.dumps(builders)
    except Exception as error:
        raise ConfigError(
            f"backend={backend!r} expected a factory that cloudpickle can pickle, got one that it cannot: "
            f"{message_of(error)}; create locks, sockets and open files inside the factory, "
            "or use backend='serial' or 'threads'"
        ) from error
    return data
