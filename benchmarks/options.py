"""Options of the command line that apply to all suites."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The defaults are those of compare.py, except that its num_threads defaults to the number of cores."""

    num_envs: tuple[int, ...] = (1, 64, 1024, 8192)  # sizes of the suite cartpole
    num_threads: int = 2  # of every pool that has threads; limited by its number of envs
    peers: tuple[str, ...] | None = None  # prefixes of their names, in lower case; None: all
