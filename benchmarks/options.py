"""What the command line chooses for all suites."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The defaults are those of compare.py, but for num_threads, which is there the machine's cores."""

    num_envs: tuple[int, ...] = (1, 64, 1024, 8192)  # of cartpole
    num_threads: int = 2  # of every pool that has threads, but no more than it has envs
    peers: tuple[str, ...] | None = None  # how their names begin, in lower case; None: all
