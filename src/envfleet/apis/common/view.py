"""PoolView: what all views of a pool share: statistics, and properties with EnvPool's names."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.core.pool import Pool
from envfleet.core.statistics import PoolStats


class HasStats:
    """A mixin for views of a pool, which they hold as `pool`."""

    pool: Pool

    def stats(self) -> PoolStats:
        """Return the steps, episodes, returns and times; see Pool.stats(). For any thread at any time."""
        return self.pool.stats()


class PoolView(HasStats):
    """A mixin for the apis with EnvPool's calls."""

    @property
    def config(self) -> dict[str, Any]:
        """The pool's options and the env's parameters, as EnvPool's flat dict."""
        return dict(self.pool.spec.config)

    def drop_pending(self, timeout: float | None = None) -> None:
        """Wait for the envs in flight and discard their rows; see Pool.drop_pending()."""
        self.pool.drop_pending(timeout)

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
