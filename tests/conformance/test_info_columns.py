"""Infos whose keys appear over time, from many workers at once: every row keeps its own."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

import envfleet
from envfleet.core.infos import split_rows


class Talkative(gymnasium.Env):
    """Gives a new numeric key every few steps."""

    observation_space = gymnasium.spaces.Discrete(1000)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return 0, {}

    def step(self, action):
        self.count += 1
        keys = range(self.count % 5, self.count // 2, 3)
        return self.count, 0.0, False, False, {f"key_{k}": (self.count, k, 0.5)[k % 3] for k in keys}


@pytest.mark.parametrize("backend", ["serial", "threads", "processes"])
def test_keys_that_appear_while_others_run(backend):
    """More keys than there are columns; a worker may read one schema while the next is written."""
    with envfleet.make_pool(Talkative, num_envs=10, batch_size=2, num_workers=5, backend=backend) as pool:
        pool.async_reset(seed=0)
        for _ in range(1500):
            batch = pool.recv()
            for row, count in enumerate(batch.obs.tolist()):
                keys = range(count % 5, count // 2, 3) if count else ()
                expected = {f"key_{k}": (count, k, 0.5)[k % 3] for k in keys}
                assert split_rows(batch.info, row) == expected
            pool.send(np.zeros(2, dtype=np.int64), batch.env_id)
