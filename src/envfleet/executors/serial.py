"""The serial executor: all envs in the caller's thread, one after the other.

The reference that the others are tested against, and the fastest for few cheap envs. What is sent
runs when it is received, in the order in which it was sent. A time limit is looked at between
envs: an env that is running is not interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from envfleet.batch import Fault
from envfleet.executors.python.building import anonymous_memory, build_all, closed_on_error, common_portrait
from envfleet.executors.python.executor import RowsExecutor
from envfleet.executors.python.layout import Layout
from envfleet.executors.python.mailbox import LocalMailbox
from envfleet.executors.python.runner import EnvRunner
from envfleet.executors.python.spec_of import SpecMaker
from envfleet.making.builders import EnvBuilders
from envfleet.spec import PoolConfig


class SerialExecutor(RowsExecutor):
    """Runs envs in the caller's thread."""

    def __init__(
        self, recipe: EnvBuilders, make_spec: SpecMaker, config: PoolConfig, params: Sequence[Mapping[str, Any]]
    ) -> None:
        envs = build_all(recipe.builders, range(config.num_envs))
        with closed_on_error(envs):
            portrait = common_portrait(envs)
            layout = Layout(
                portrait.observation_space, portrait.action_space, config.num_envs, 1, config.autoreset_mode
            )
            buffer = anonymous_memory(layout.num_bytes)
            mailbox = LocalMailbox(config.num_envs)
            self._runner = EnvRunner(
                layout, buffer, 0, mailbox, recipe.builders, envs, recipe.max_episode_steps, max_spinners=0
            )
            super().__init__(
                make_spec(portrait),
                config,
                params,
                layout,
                buffer,
                mailbox,
                may_spin=False,
                run_inline=self._runner.loop.run_pending,
            )

    def death_of(self, env_id: int, method: str) -> Fault:
        raise AssertionError("the caller's thread is gone and yet it asks")

    def _revive(self, env_id: int) -> None:
        pass

    def _end_workers(self) -> list[tuple[int, str]]:
        return self._runner.close(in_callers_thread=True)
