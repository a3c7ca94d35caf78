"""Loops over the public step(), or recv() and send(), of a vector env, and the actions for them.

All contenders have these in common: the same pre-drawn batches of actions, cycled; the whole public call with its
checks; observations received and held until the next batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle, islice
from typing import Any

import numpy as np
from gymnasium import spaces
from harness import Loop
from numpy.typing import NDArray

NUM_ACTION_BATCHES = 64
Actions = Sequence[NDArray[Any]]


def actions_for(num_rows: int, num_actions: int = 2) -> Actions:
    """Return the same batches of actions for every peer, with the dtype that Gymnasium's spaces sample."""
    rng = np.random.default_rng(0)
    return list(rng.integers(0, num_actions, size=(NUM_ACTION_BATCHES, num_rows), dtype=np.int64))


def actions_of(space: spaces.Space[Any], num_rows: int) -> Sequence[NDArray[Any]]:
    """Return batches of actions for num_rows envs with this space."""
    if isinstance(space, spaces.Discrete):
        return actions_for(num_rows, int(space.n))
    assert isinstance(space, spaces.Box)
    shape = (NUM_ACTION_BATCHES, num_rows, *space.shape)
    return list(np.random.default_rng(0).uniform(space.low, space.high, shape).astype(space.dtype))


def sync_loop(
    step: Callable[[Any], Any],
    num_envs: int,
    close: Callable[[], None],
    in_us: bool = False,
    actions: Actions | None = None,
) -> Loop:
    """Return a Loop over step(actions). actions: batches for envs other than CartPole."""
    batches = cycle(actions_for(num_envs) if actions is None else actions)

    def run(num_batches: int) -> None:
        for batch in islice(batches, num_batches):
            held = step(batch)  # noqa: F841 (held until the next batch, as in a training loop)

    return Loop(run, num_envs, close, in_us)


def async_loop(
    pool: Any,
    batch_size: int,
    close: Callable[[], None],
    before_send: Callable[[], None] | None = None,
    actions: Actions | None = None,
) -> Loop:
    """Return a Loop over recv() and send() to the received envs. before_send: the work of the learner."""
    batches = cycle(actions_for(batch_size) if actions is None else actions)
    recv, send = pool.recv, pool.send

    def run(num_batches: int) -> None:
        for batch in islice(batches, num_batches):
            *_held, info = recv()  # held, as in sync_loop
            if before_send is not None:
                before_send()
            send(batch, info["env_id"])

    return Loop(run, batch_size, close)
