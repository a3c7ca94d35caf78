"""Building the envs of a share: here, or pickled to be built elsewhere; and memory for a board in one process."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from envfleet.errors import ConfigError, EnvError
from envfleet.executors.python.env_description import Portrait, one_portrait, portrait_of
from envfleet.executors.python.faults import message_of, trouble_of
from envfleet.making.builders import EnvBuilder


def build_all(builders: Sequence[EnvBuilder], env_ids: Iterable[int]) -> dict[int, Any]:
    """The envs by id. Raises EnvError when a constructor raises, or its ConfigError; those built before are closed."""
    envs: dict[int, Any] = {}
    owners: dict[int, int] = {}
    try:
        for env_id, builder in zip(env_ids, builders, strict=True):
            try:
                env = builder.build(env_id)
            except (KeyboardInterrupt, EnvError, ConfigError):
                raise
            except BaseException as error:
                fault = trouble_of(error, "__init__", is_leaving=False).fault(env_id, error)
                raise EnvError((fault,), None, "its constructor must not raise") from error
            other_id = owners.setdefault(id(env), env_id)
            if other_id != env_id:
                raise ConfigError(
                    f"make() expected a factory that makes a new env each time, got the same object for envs "
                    f"{other_id} and {env_id}; build the env inside the factory"
                )
            envs[env_id] = env
    except BaseException:
        close_all(envs.values())
        raise
    return envs


@contextlib.contextmanager
def closed_on_error(envs: Mapping[int, Any]) -> Iterator[None]:
    """Closes envs that nobody will use because the block raised."""
    try:
        yield
    except BaseException:
        close_all(envs.values())
        raise


def common_portrait(envs: Mapping[int, Any]) -> Portrait:
    """The portrait that all these envs share."""
    return one_portrait([portrait_of(env) for env in envs.values()])


def close_all(envs: Iterable[Any]) -> None:
    """Closes envs that nobody will use; what they raise is of no use to anybody."""
    for env in envs:
        try:
            env.close()
        except BaseException:
            continue


def anonymous_memory(num_bytes: int) -> NDArray[np.uint8]:
    """Zeroed memory that begins on a page."""
    return np.frombuffer(mmap.mmap(-1, num_bytes), dtype=np.uint8)


def pickled_factories(factories: Any, backend: str) -> bytes:
    """What builds envs elsewhere, by value. Raises ConfigError when it cannot travel."""
    try:
        data: bytes = cloudpickle.dumps(factories)
    except Exception as error:
        raise ConfigError(
            f"backend={backend!r} expected a factory that cloudpickle can pickle, got one that it cannot: "
            f"{message_of(error)}; build what cannot travel (locks, sockets, open files) inside the factory, "
            "or use backend='serial' or 'threads'"
        ) from error
    return data
