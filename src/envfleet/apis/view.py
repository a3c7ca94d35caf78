"""PoolView: properties that all views of a pool share, with EnvPool's names."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.pool import Pool


class PoolView:
    """A mixin for the apis; `pool` is the pool that they are a view of."""

    pool: Pool

    @property
    def config(self) -> dict[str, Any]:
        """The pool's options and the env's parameters, as EnvPool's flat dict."""
        return dict(self.pool.spec.config)

    @property
    def all_env_ids(self) -> NDArray[np.int32]:
        """0 to num_envs-1."""
        return np.arange(self.pool.num_envs, dtype=np.int32)

    @property
    def is_async(self) -> bool:
        """Whether batches hold fewer rows than there are envs."""
        return self.pool.config.is_async

    def __len__(self) -> int:
        return self.pool.num_envs
