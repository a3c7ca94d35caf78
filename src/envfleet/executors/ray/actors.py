"""Actors from the caller's side: placing, building, losing and ending one."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from gymnasium.vector import AutoresetMode

from envfleet.batch import Fault
from envfleet.errors import EnvError, PlacementError
from envfleet.executors.python.building import EnvDescription
from envfleet.executors.ray.faults import KILLED, AnswerError, unpacked
from envfleet.executors.ray.host import Host
from envfleet.executors.ray.line import LEAVE, TURN, CallerLine
from envfleet.executors.ray.messages import PART_BYTES, cut, num_parts_for
from envfleet.executors.ray.plans import Luggage
from envfleet.making.ray_options import refused_by_ray

# While an actor is made nothing of the user's has run yet: somebody kills actors, and may stop doing so.
_MAX_BIRTHS = 5
# How long to wait on a line before Ray is asked whether a silent worker lives: a machine that lost its power ends no
# connection.
HEARTBEAT_S = 1.0
BUILD_REMEDY = "its constructor must not raise"


@dataclass(frozen=True)
class Making:
    """How actors are made. options: what .options() of an actor takes."""

    ray: ModuleType
    options: Mapping[str, Any]
    placement_timeout: float
    mode: AutoresetMode
    step_timeout: float | None = None


@dataclass(eq=False)
class Worker:
    """One actor and its share of the envs.

    orders: what it is to be told with its next message, numbered. death: how its actor ended, "" while one lives.
    line: on which its messages travel; None: through Ray. num_losses, redial_at: how many lines were lost, and when
    another is to be made before a reset asks for it. turn: counts the calls that have the actor listen there,
    left: the last of them that was asked to end; serving: what Ray will say when the present one has.
    """

    making: Making
    share: range
    plan: bytes
    handle: Any = None
    run: Any = None
    line: CallerLine | None = None
    turn: int = 0
    left: int = 0
    serving: Any = None
    num_losses: int = 0
    redial_at: float = 0.0
    pid: int = -1
    death: str = ""
    last_death: str = ""
    orders: list[tuple[Any, ...]] = field(default_factory=list)
    num_orders: int = 0
    next_number: int = 0
    outstanding: deque[Any] = field(default_factory=deque)  # its flights, oldest first

    @property
    def is_dead(self) -> bool:
        """Whether it has no actor."""
        return bool(self.death)

    @property
    def head(self) -> Any:
        """The flight that it has in hand; None: none."""
        while self.outstanding and self.outstanding[0].arrival is not None:  # an interruption left it
            self.outstanding.popleft()
        return self.outstanding[0] if self.outstanding else None

    def silent_since(self) -> float:
        """Since when it could have answered, and has not."""
        head = self.head
        if head is None:
            return time.monotonic()
        return max(head.turn_at, self.line.moved_at) if self.line is not None else float(head.turn_at)

    @property
    def is_overdue(self) -> bool:
        """Whether it has been silent for longer than step_timeout, with something in hand."""
        limit_s = self.making.step_timeout
        return limit_s is not None and self.head is not None and time.monotonic() - self.silent_since() >= limit_s

    def order(self, *what: Any) -> None:
        """Has something told to it with its next message."""
        self.num_orders += 1
        self.orders.append((self.num_orders, *what))

    def take_turn(self) -> None:
        """Has the actor listen on its line, if it does not."""
        if self.serving is not None:
            return
        self.turn += 1
        try:
            self.serving = self.handle.serve.remote(self.turn)
        except BaseException:
            if self.line is not None:
                self.line.close()  # whether it listens, nobody knows: now it will not
            raise

    def send_on_line(self, number: int, request: bytes) -> CallerLine:
        """Sends a request on the line; which that was."""
        assert self.line is not None
        self.take_turn()
        self.line.put(number, request)
        return self.line

    def ask(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the actor through Ray, after what is on the line; the reference to its answer."""
        if self.line is not None:
            self._leave(self.line)
        return getattr(self.handle, method).remote(*arguments)

    def _leave(self, line: CallerLine) -> None:
        if line.is_lost:
            line.close()  # once more: the last time may have been interrupted
            return
        if self.left == self.turn:
            return
        try:
            line.put(LEAVE, TURN.pack(self.turn))
            while not line.flush(HEARTBEAT_S):
                has_ended = self.serving is None or bool(self.making.ray.wait([self.serving], timeout=0)[0])
                if has_ended or self.is_overdue:
                    line.close()  # it died without a word, or is stuck: who waits for the answer finds out
            self.left, self.serving = self.turn, None
        except BaseException:
            line.close()  # whether it was told to leave, nobody knows: now it will
            raise

    def call_in_parts(self, request: bytes, num_parts: int) -> list[Any]:
        """Sends a request through Ray; the references to the parts of its reply."""
        parts = request if len(request) <= PART_BYTES else cut([request], num_parts_for(len(request)))
        run = self.run if num_parts == 1 else self.handle.run.options(num_returns=num_parts)
        refs = run.remote(*parts) if isinstance(parts, list) else run.remote(parts)
        return refs if isinstance(refs, list) else [refs]

    def fault(self, env_id: int, method: str, death: str = "") -> Fault:
        """The fault of an env that died with its actor."""
        return Fault(env_id, method, f"its Ray actor {death or self.death or self.last_death}", exit_code=KILLED)

    def bury(self, how: str) -> None:
        """Gives the actor up. What is still under way on it is lost."""
        if not self.is_dead:
            self.death = self.last_death = how
        self.orders.clear()
        self.end()

    def hang_up(self) -> None:
        """Ends the line. Who waits on its other end comes back to Ray."""
        if self.line is not None:
            self.line.close()
        self.serving = None

    def end(self) -> None:
        """Kills the actor."""
        self.hang_up()
        handle, self.handle, self.run = self.handle, None, None
        if handle is not None:
            with contextlib.suppress(Exception):  # it is gone, or Ray is
                self.making.ray.kill(handle)


def start(workers: list[Worker]) -> list[EnvDescription]:
    """Makes the actors of these workers, all at once, and their envs; the portrait of each."""
    try:
        for worker in workers:
            _create(worker)
        _await_placement(workers)
        return _build(workers)
    except BaseException:
        for worker in workers:
            worker.bury("was given up while it was made")
        raise


def revive(worker: Worker) -> None:
    """A new actor, wherever there is room, with all envs of the share built anew."""
    for attempt in range(_MAX_BIRTHS):
        try:
            start([worker])
            return
        except EnvError as error:
            # Not a constructor that raised: that will do so again.
            if error.faults[0].exit_code is None or attempt == _MAX_BIRTHS - 1:
                raise


def end_all(workers: list[Worker], timeout_s: float) -> list[str]:
    """Has the workers close their envs, and ends them, whether they did in time or not; what envs said."""
    ray = workers[0].making.ray
    texts: list[str] = []
    try:
        refs = [worker.handle.close.remote() for worker in workers if worker.handle is not None]
        ready = ray.wait(refs, num_returns=len(refs), timeout=timeout_s)[0] if refs else []
        for ref in ready:
            with contextlib.suppress(ray.exceptions.RayError):  # it died before it was asked
                texts += unpacked(ray.get(ref), "")
    finally:
        for worker in workers:
            worker.end()
    return texts


def _create(worker: Worker) -> None:
    making = worker.making
    actor = making.ray.remote(Host)
    with refused_by_ray(making.options):
        worker.handle = actor.options(**making.options).remote(worker.share.start)
    worker.run = worker.handle.run
    worker.turn = worker.left = worker.num_losses = 0
    worker.death = ""
    worker.next_number = 0
    worker.outstanding.clear()


def _await_placement(workers: list[Worker]) -> None:
    """Until every actor runs. Ray itself would wait for ever for a machine that has room."""
    making = workers[0].making
    ray = making.ray
    waiting = {worker.handle.ping.remote(): worker for worker in workers}
    deadline = time.monotonic() + making.placement_timeout
    while waiting:
        ready, _ = ray.wait(list(waiting), num_returns=1, timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            raise PlacementError(_why_unplaced(making, len(waiting), len(workers)))
        worker = waiting.pop(ready[0])
        try:
            ray.get(ready[0])
        except ray.exceptions.RuntimeEnvSetupError as error:
            raise PlacementError(f"runtime_env cannot be set up on a machine of the cluster: {error}") from error
        except ray.exceptions.RayActorError as error:
            if getattr(error, "actor_init_failed", False):
                raise PlacementError(
                    f"an actor could not start: {_text(error)}; every machine of the cluster needs envfleet"
                ) from error
            raise _lost_while_made(worker, error) from error
        except ray.exceptions.RayError as error:
            raise PlacementError(f"an actor could not start: {_text(error)}") from error


def _build(workers: list[Worker]) -> list[EnvDescription]:
    ray = workers[0].making.ray
    luggage = ray.put(Luggage.here()) if len(workers) > 1 else Luggage.here()
    refs = [worker.handle.build.remote(luggage, worker.plan, worker.making.mode) for worker in workers]
    portraits = []
    for worker, ref in zip(workers, refs, strict=True):
        try:
            portrait, worker.pid = unpacked(ray.get(ref), BUILD_REMEDY)
        except AnswerError as error:
            fault = Fault(worker.share.start, "__init__", str(error), error.traceback)
            raise EnvError((fault,), None, BUILD_REMEDY) from error
        except ray.exceptions.RayError as error:
            raise _lost_while_made(worker, error) from error
        portraits.append(portrait)
    return portraits


def _lost_while_made(worker: Worker, error: BaseException) -> EnvError:
    fault = worker.fault(worker.share.start, "__init__", how_it_died(error))
    return EnvError.of((fault,), None, "an env of this worker ended its actor while it was made, or somebody did")


def how_it_died(error: BaseException) -> str:
    """What Ray knows of an actor's end, in a line."""
    text = _text(error)
    for mark, said in (
        ("node died", "died with its node"),
        ("node is dead", "died with its node"),
        ("node has", "died with its node"),
        ("ray.kill", "was killed by ray.kill()"),
        # Ray's list of guesses for an end that nobody announced: kill -9, a crash, the kernel's OOM killer.
        ("Some common causes", "was killed or crashed; Ray tells no more, its node's logs may"),
        ("potential root causes", "was killed or crashed; Ray tells no more, its node's logs may"),
        ("memory pressure", "was killed: its node ran out of memory"),
        ("unavailable", "cannot be reached"),
    ):
        if mark in text:
            return said
    return f"died ({text})" if text else "died"


def _text(error: BaseException) -> str:
    """The telling lines of Ray's long message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    skipped = ("class_name:", "actor_id:", "pid:", "namespace:", "ip:", "name:", "The actor died unexpectedly")
    telling = [line for line in lines if not line.startswith(skipped)]
    return " ".join(telling or lines)[:500]


def _why_unplaced(making: Making, num_waiting: int, num_workers: int) -> str:
    wanted = {
        name: making.options[name]
        for name in ("num_cpus", "num_gpus", "memory", "resources", "label_selector", "scheduling_strategy")
        if making.options.get(name) is not None
    }
    free = {
        name: amount
        for name, amount in making.ray.available_resources().items()
        if ":" not in name and "_group_" not in name  # a node's own mark, and what belongs to a placement group
    }
    where = f"the cluster has {free or 'nothing'} free"
    group = getattr(wanted.get("scheduling_strategy"), "placement_group", None)
    if group is not None:
        where = f"its placement group has bundles of {group.bundle_specs}, which this task and others share"
        wanted["scheduling_strategy"] = "this placement group"
    elif making.ray.util.get_current_placement_group() is not None:
        where += (
            " outside the placement group that this runs in, which does not capture child tasks (to use it, set "
            "placement_group_capture_child_tasks, or pass ray_options={'scheduling_strategy': "
            "PlacementGroupSchedulingStrategy(group)})"
        )
    return (
        f"{num_waiting} of {num_workers} Ray actors found no machine within placement_timeout="
        f"{making.placement_timeout:g} s; each asks for {wanted}, {where}: "
        "ask for less in ray_options, use fewer workers, add machines, or wait longer with placement_timeout"
    )
