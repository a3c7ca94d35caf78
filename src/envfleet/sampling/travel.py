"""What the caller sends to where the generators run, or an error that says why it cannot travel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from envfleet.errors import ConfigError
from envfleet.executors.python.exception_report import message_of
from envfleet.sampling.backend import Maker
from envfleet.sampling.parcels import Label, Packer


def pickled_maker(dumps: Callable[[Any], bytes], make: Maker, generator: int, backend: str) -> bytes:
    """What makes a generator, pickled."""
    try:
        return dumps(make)
    except Exception as error:
        raise ConfigError(
            f"backend={backend!r} expected a gen_fn and arguments that cloudpickle can pickle, got some at position "
            f"{generator} that it cannot: {message_of(error)}; make what cannot travel (locks, sockets, open files) "
            "inside the generator, or use backend='serial'"
        ) from error


def message_of_content(content: Any, call: str) -> tuple[Label, int | None]:
    """A request or weights as a parcel's message."""
    try:
        return Packer(by_cloudpickle=True).pack(content).to_message()
    except OSError:  # no memory left: not what is in it
        raise
    except Exception as error:
        raise ConfigError(
            f"{call} expected what cloudpickle can pickle, got what it cannot: {message_of(error)}"
        ) from error
