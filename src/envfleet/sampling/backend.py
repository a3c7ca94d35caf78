"""What runs the generators of a Runner: in this process, in worker processes, on a Ray cluster."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from envfleet.batch import Fault

Kind = Literal["trajectory", "ended", "raised", "died"]
# What makes a generator: its function with all of its arguments.
Maker = Callable[[], Any]


@dataclass(frozen=True)
class Event:
    """What a generator came back with.

    open: gives the trajectory. fault: what befell the generator, or the process that ran it.
    """

    generator: int
    kind: Kind
    open: Callable[[], Any] | None = None
    fault: Fault | None = None
    num_bytes: int = 0


class Backend(ABC):
    """Generators that are asked, and what they answered.

    One stream of requests at a time: begin() ends the one before, and nothing of that one is ever given again. Each
    generator is kept `prefetch` requests ahead. One that raised, returned or was lost is asked nothing more until
    renew() or the next begin(), where it is made anew.
    """

    @abstractmethod
    def begin(self, request: Any) -> list[Fault]:
        """Starts a stream. What befell generators since the last one was given up, and was told to nobody."""

    @abstractmethod
    def take(self, generator: int | None) -> Event | None:
        """Waits for the next event, of this generator alone if one is named.

        None: another thread has ended the stream by stop(), or closed the backend.
        """

    @abstractmethod
    def renew(self, generator: int) -> None:
        """Makes a generator anew and goes on asking it."""

    @abstractmethod
    def stop(self) -> None:
        """Ends the stream: what was asked and not begun is not done."""

    @abstractmethod
    def broadcast(self, weights: Any, version: int) -> None:
        """Gives weights to all generators, those made later too."""

    @abstractmethod
    def close(self) -> list[Fault]:
        """Has the finally blocks of the generators run and ends what ran them, in bounded time. What they raised."""

    def abandon(self) -> None:  # noqa: B027 (most have nothing to let go)
        """In a fork: lets go of what belongs to the parent, without a word to it."""

    @property
    def worker_pids(self) -> list[int]:
        """The process of each generator, where each has one of its own."""
        return []
