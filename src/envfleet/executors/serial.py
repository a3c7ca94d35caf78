"""SerialExecutor: all envs in the caller's thread, one after the other.

The reference that the other executors are tested against, and the fastest for a few cheap envs. Requests run when they
are received, in the order in which they were sent. A time limit is checked between envs: a running env is not
interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from envfleet.core.batch import Fault
from envfleet.core.options import PoolConfig
from envfleet.executors.python.building import (
    EnvBuilders,
    SpecMaker,
    accept_any_process,
    build_envs,
    close_on_error,
    describe_envs,
)
from envfleet.executors.python.executor import PythonExecutor
from envfleet.executors.python.layout import Layout, anonymous_memory
from envfleet.executors.python.runner import EnvRunner
from envfleet.executors.python.side_channel import LocalSideChannel


class SerialExecutor(PythonExecutor):
    """Runs envs in the caller's thread."""

    def __init__(
        self, env_builders: EnvBuilders, make_spec: SpecMaker, config: PoolConfig, params: Sequence[Mapping[str, Any]]
    ) -> None:
        envs = build_envs(env_builders.builders, range(config.num_envs))
        with close_on_error(envs):
            description = describe_envs(envs)
            layout = Layout.of(description, 1, config)
            buffer = anonymous_memory(layout.num_bytes)
            side_channel = LocalSideChannel(config.num_envs)
            self._runner = EnvRunner(
                layout,
                buffer,
                0,
                side_channel,
                env_builders.builders,
                envs,
                accept_any_process,
            )
            self._loop = self._runner.make_loop(env_builders.max_episode_steps, num_cores=0)
            super().__init__(
                make_spec(description),
                config,
                params,
                layout,
                buffer,
                side_channel,
                may_spin=False,
                run_inline=self._loop.run_pending,
            )

    def local_envs(self) -> list[Any]:
        return self._runner.envs

    def worker_death(self, env_id: int, method: str) -> Fault:
        raise AssertionError("the serial executor has no worker that could die")

    def _restart_worker(self, env_id: int) -> None:
        pass

    def _end_workers(self) -> list[tuple[int, str]]:
        self._loop.detach()
        return self._runner.close(in_callers_thread=True)
