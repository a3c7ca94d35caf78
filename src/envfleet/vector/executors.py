"""The serial and the processes executor, with what Gymnasium's vector environments allow and pools do not.

A pool steps no env that was not reset, that has ended, or that raised; Gymnasium does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from envfleet.autoreset import Phase
from envfleet.executors.processes.executor import ProcessesExecutor
from envfleet.executors.python.executor import RowsExecutor
from envfleet.executors.serial import SerialExecutor
from envfleet.vector.seats import Seat


class Lenient(RowsExecutor):
    """Lets envs be stepped wherever they stand."""

    def let_run(self, env_ids: Iterable[int]) -> None:
        """Has these idle envs stepped at the next step, whatever happened to them."""
        for env_id in env_ids:
            self._board.set_phase(env_id, int(Phase.RUNNING))


class LenientSerial(Lenient, SerialExecutor):
    """Runs envs in the caller's thread."""

    @property
    def envs(self) -> list[Any]:
        """The envs themselves, in their order."""
        seats: dict[int, Seat] = self._runner._envs
        return [seats[env_id].env for env_id in range(self.num_envs) if env_id in seats]


class LenientProcesses(Lenient, ProcessesExecutor):
    """Runs envs in worker processes."""

    is_impatient = False  # True: close() kills the workers and waits for nothing

    def _end_workers(self) -> list[tuple[int, str]]:
        if self.is_impatient:
            self._kill_all()
            return []
        return super()._end_workers()
