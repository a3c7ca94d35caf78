"""RayBackend: each generator in a Ray actor, trajectories through the object store.

Every actor has a queue of calls, the first of which it works on; the caller waits for whichever first call is
answered first. A request of an earlier stream that was not begun is answered at once, with nothing.

Thread safety: one caller at a time, but stop() and close() may come from any thread. They set their flag before they
take the lock, so that take(), which holds it while it waits, returns.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from envfleet.batch import Fault
from envfleet.errors import ConfigError, PlacementError
from envfleet.executors.python.exception_report import message_of, report_exception
from envfleet.executors.ray import cluster as ray_cluster
from envfleet.executors.ray.actors import how_it_died
from envfleet.executors.ray.faults import KILLED
from envfleet.executors.ray.plans import Luggage
from envfleet.making.ray_options import refused_by_ray
from envfleet.sampling.backend import Backend, Event, Maker
from envfleet.sampling.errors import START, TRAJS, GeneratorDied, GeneratorError
from envfleet.sampling.ray_actor import CONTROL, GeneratorActor, Offer, unpickled
from envfleet.sampling.travel import pickled_maker

_GRACE_S = 1.0
_CLOSE_TIMEOUT_S = 5.0
# Nothing wakes up a thread that waits for Ray: it looks that often whether another one has ended its stream.
_WAKE_UP_S = 0.25

PLACEMENT, TRAJECTORY = "placement", "trajectory"
_TOO_LATE = {START: "reached no first yield", TRAJECTORY: "gave no trajectory"}


@dataclass(frozen=True)
class _Call:
    """A call of an actor: what it is to give, the reference to its answer, and how long that may take.

    stream: which one it belongs to; None: what makes the actor ready, whatever stream there is. is_dropped: nobody
    wants the answer any more, but the actor may still be at it.
    """

    what: str
    ref: Any
    timeout_s: float | None
    stream: int | None = None
    is_dropped: bool = False


@dataclass
class _Host:
    """An actor and its calls, oldest first.

    waited_s: how long the caller has waited for the first of them. Time in which the caller did something else does
    not count: the answer may lie on another node, or the object store be full of what the caller has not taken.
    stream: as this actor counts them; one that raised or returned begins another when it is renewed.
    """

    generator: int
    maker: bytes
    handle: Any = None
    pid: int = -1
    calls: deque[_Call] = field(default_factory=deque)
    waited_s: float = 0.0
    stream: int = 0
    is_halted: bool = False

    def put(self, call: _Call) -> None:
        if not self.calls:
            self.waited_s = 0.0
        self.calls.append(call)

    def advance(self) -> None:
        self.calls.popleft()
        self.waited_s = 0.0

    @property
    def num_ahead(self) -> int:
        return sum(call.what == TRAJECTORY and not call.is_dropped for call in self.calls)

    def drop_requests(self) -> None:
        """What was asked stays among the calls: the next stream's timeout begins when the actor is done with it."""
        # Of what was dropped before, the last is enough: calls are answered in their order.
        older = [call for call in self.calls if call.is_dropped][:-1]
        self.calls = deque(
            call if call.stream is None else replace(call, is_dropped=True) for call in self.calls if call not in older
        )
        self.stream += 1
        self.waited_s = 0.0


class RayBackend(Backend):
    """Runs each generator in an actor of a cluster. Arrays of a trajectory are the object store's: read-only."""

    def __init__(
        self,
        makers: Sequence[Maker],
        prefetch: int,
        traj_timeout: float | None,
        address: str | None,
        options: Mapping[str, Any],
        placement_timeout: float,
    ) -> None:
        ray = ray_cluster.import_ray("Runner(backend='ray')")
        self._prefetch = prefetch
        self._traj_timeout = traj_timeout
        self._placement_timeout = placement_timeout
        # Ray's own cloudpickle, which brings the trajectories back: so the main module's classes stay the same.
        self._hosts = [
            _Host(generator, pickled_maker(ray.cloudpickle.dumps, make, generator, "ray"))
            for generator, make in enumerate(makers)
        ]
        self._request: Any = None
        self._offer: Offer | None = None
        self._first = 0
        self._is_closed = False
        self._is_streaming = False
        self._lock = threading.RLock()  # reentrant: garbage collection and signal handlers end streams too
        self._lease = ray_cluster.join(address, "Runner(backend='ray')")
        self._ray = self._lease.ray
        ray_cluster.keep_in_forks(self)
        try:
            actor = ray.remote(concurrency_groups={CONTROL: 1})(GeneratorActor)
            with refused_by_ray(options):
                strategy = ray_cluster.default_scheduling_strategy(ray)
                self._actor = actor.options(**{"scheduling_strategy": strategy, **options, "max_restarts": 0})
                for host in self._hosts:
                    self._create(host)
            while any(host.calls for host in self._hosts):
                if (event := self._answer(self._hosts)) is not None:
                    assert event.fault is not None
                    if isinstance(event.fault.cause, PlacementError):
                        raise event.fault.cause
                    kind = GeneratorError if event.kind == "raised" else GeneratorDied
                    raise kind(event.fault, "it must reach its first yield") from event.fault.cause
        except BaseException:
            self.close()
            raise

    # --- streams -------------------------------------------------------------------------------------

    def begin(self, request: Any) -> list[Fault]:
        """Starts a stream; the old one's trajectories are dropped where they are."""
        self._lease.check()
        try:
            self._request = None if request is None else self._ray.put(request)
        except self._ray.exceptions.RayError:  # no memory left: not what is in it
            raise
        except Exception as error:
            raise ConfigError(
                f"trajs() expected what Ray can pickle, got what it cannot: {message_of(error)}"
            ) from error
        with self._lock:
            if self._is_closed:
                return []
            self._is_streaming = True
            self._turn()
            for host in self._hosts:
                self._renew(host)
            self._ask_for_more()
        return []

    def take(self, generator: int | None) -> Event | None:
        """Waits for the next event."""
        hosts = self._hosts if generator is None else [self._hosts[generator]]
        with self._lock:
            while self._is_streaming and not self._is_closed:
                self._lease.check()
                self._ask_for_more()
                try:
                    event = self._answer(hosts)
                except self._ray.exceptions.RayError:
                    if self._is_closed:  # by another thread
                        return None
                    raise
                if event is not None and not self._is_closed:
                    self._ask_for_more()
                    return event
        return None

    def renew(self, generator: int) -> None:
        """Has it made anew, in a new actor if the old one is gone."""
        with self._lock:
            host = self._hosts[generator]
            host.drop_requests()
            self._renew(host)

    def stop(self) -> None:
        """Drops what is ready and what was asked."""
        self._is_streaming = False  # first: whoever holds the lock waits for it
        with self._lock:
            if not self._is_closed and self._lease.is_alive:
                self._turn()
                for host in self._hosts:
                    host.is_halted = True

    def broadcast(self, weights: Any, version: int) -> None:
        """Puts them into the object store, once."""
        self._lease.check()
        try:
            self._offer = version, [self._ray.put(weights)]
        except self._ray.exceptions.RayError:
            raise
        except Exception as error:
            what = message_of(error)
            raise ConfigError(f"broadcast() expected what Ray can pickle, got what it cannot: {what}") from error
        for host in self._hosts:
            self._tell(host, "offer", self._offer)

    def _turn(self) -> None:
        for host in self._hosts:
            host.drop_requests()
            self._tell(host, "turn", host.stream)

    def _tell(self, host: _Host, method: str, *arguments: Any) -> None:
        """A word to an actor that may be busy."""
        if host.handle is not None:
            call = getattr(host.handle, method).options(concurrency_group=CONTROL)
            with contextlib.suppress(self._ray.exceptions.RayError):  # it died, and its answers will tell
                call.remote(*arguments)

    # --- actors --------------------------------------------------------------------------------------

    def _create(self, host: _Host) -> None:
        host.calls.clear()
        host.handle = self._actor.remote()
        host.put(_Call(PLACEMENT, host.handle.ping.remote(), self._placement_timeout))
        host.put(_Call(START, host.handle.start.remote(Luggage.here(), host.maker), self._traj_timeout))

    def _renew(self, host: _Host) -> None:
        """Has the actor, or a new one, make its generator again if that raised or returned."""
        host.is_halted = False
        if host.handle is None:
            self._create(host)
        else:
            host.put(_Call(START, host.handle.restart.remote(host.stream), self._traj_timeout, host.stream))

    def _ask_for_more(self) -> None:
        for host in self._hosts:
            handle = host.handle
            if host.is_halted or handle is None:
                continue
            for _ in range(self._prefetch - host.num_ahead):
                ref = handle.ask.remote(host.stream, self._request, self._offer)
                host.put(_Call(TRAJECTORY, ref, self._traj_timeout, host.stream))

    def _answer(self, hosts: Sequence[_Host]) -> Event | None:
        """Waits a while for the first answer of any of them. None: nothing that the caller wants to know."""
        # The one after the last first: where several are there, each gets its turn.
        start = self._first if len(hosts) == len(self._hosts) else 0
        turns = [*hosts[start:], *hosts[:start]]
        heads = {host.calls[0].ref: host for host in turns if host.calls}
        ref = self._wait(heads)
        if ref is None:
            return self._overdue(heads.values())
        host = heads[ref]
        if host.calls[0].is_dropped:
            host.advance()  # not fetched: it may be large
            return None
        try:
            kind, content = self._ray.get(ref)
        except self._ray.exceptions.RayActorError as error:
            return self._lose(host, how_it_died(error))
        except self._ray.exceptions.ObjectLostError:
            return self._lose(host, "was lost with its node, before its trajectory was fetched")
        except Exception as error:
            host.advance()
            fault = report_exception(error, TRAJS, pickled=False).fault(host.generator, error)
            return self._halted(host, Event(host.generator, "raised", fault=fault))
        host.advance()
        self._first = (host.generator + 1) % len(self._hosts)
        if kind == "placed":
            host.pid = content
        elif kind == "trajectory":
            return Event(host.generator, "trajectory", open=partial(unpickled, content))
        elif kind == "ended":
            return self._halted(host, Event(host.generator, "ended"))
        elif kind == "raised":
            return self._halted(host, Event(host.generator, "raised", fault=content.fault(host.generator)))
        elif kind == "failed":
            self._end(host)
            return self._halted(host, Event(host.generator, "raised", fault=content.fault(host.generator)))
        return None

    def _halted(self, host: _Host, event: Event) -> Event:
        """It is asked nothing more."""
        host.is_halted = True
        host.drop_requests()
        return event

    def _wait(self, heads: Mapping[Any, _Host]) -> Any:
        """An answer that is there, on whatever node; None: there is none yet."""
        refs = list(heads)
        limits = [
            call.timeout_s - host.waited_s for host in heads.values() if (call := host.calls[0]).timeout_s is not None
        ]
        limit_s = max(0.0, min([_WAKE_UP_S, *limits]))
        begun = time.monotonic()
        # Not fetch_local: then an answer on another node would not count until it is here, and its actor be blamed.
        ready, _ = self._ray.wait(refs, num_returns=1, timeout=limit_s, fetch_local=False)
        waited_s = min(time.monotonic() - begun, limit_s)  # no more, if this process was stopped meanwhile
        for host in heads.values():
            host.waited_s += waited_s
        if not ready:
            return None
        if heads[ready[0]].calls[0].is_dropped:  # before the others: its actor's newer answers are behind it
            return ready[0]
        wanted = [ref for ref, host in heads.items() if not host.calls[0].is_dropped]
        # Begins to fetch all that are there, so that they travel at the same time, and takes one that is here.
        here, _ = self._ray.wait(wanted, num_returns=len(wanted), timeout=0)
        return here[0] if here else ready[0]

    def _overdue(self, hosts: Iterable[_Host]) -> Event | None:
        for host in hosts:
            call = host.calls[0]
            if call.timeout_s is None or host.waited_s < call.timeout_s:
                continue
            if call.what != PLACEMENT:
                what = _TOO_LATE[call.what]
                return self._lose(host, f"{what} within traj_timeout={call.timeout_s:g} s and was killed")
            error = PlacementError(
                f"the actor of generator {host.generator} found no machine within placement_timeout="
                f"{call.timeout_s:g} s; the cluster has {self._ray.available_resources()} free: ask for less in "
                "ray_options, use fewer generators, or add machines"
            )
            self._end(host)
            fault = Fault(host.generator, START, str(error), cause=error)
            return self._halted(host, Event(host.generator, "raised", fault=fault))
        return None

    def _lose(self, host: _Host, how: str) -> Event:
        method = TRAJS if host.calls[0].what == TRAJECTORY else START
        self._end(host)
        fault = Fault(host.generator, method, f"its Ray actor {how}", exit_code=KILLED)
        return self._halted(host, Event(host.generator, "died", fault=fault))

    def _end(self, host: _Host) -> None:
        self._kill(host)
        host.calls.clear()

    def _kill(self, host: _Host) -> None:
        handle, host.handle = host.handle, None
        if handle is not None:
            with contextlib.suppress(Exception):  # it is gone, or Ray is
                self._ray.kill(handle)

    # --- life ----------------------------------------------------------------------------------------

    @property
    def worker_pids(self) -> list[int]:
        """The process of each actor, on its machine."""
        return [host.pid for host in self._hosts]

    def close(self) -> list[Fault]:
        """Lets the actors close their generators, then kills them."""
        if self._is_closed:
            return []
        self._is_closed = True  # first: whoever holds the lock waits for it
        faults: list[Fault] = []
        # A take() that is under way must have left before the session may end: with none, ray.wait() begins one.
        is_alone = self._lock.acquire(timeout=_CLOSE_TIMEOUT_S)
        try:
            if self._lease.is_alive:
                faults = self._farewells()
        finally:
            for host in self._hosts:
                self._kill(host)  # its calls stay: a signal handler may have interrupted take()
            self._lease.leave()
            if is_alone:
                self._lock.release()
        return faults

    def _farewells(self) -> list[Fault]:
        deadline = time.monotonic() + _CLOSE_TIMEOUT_S
        for host in self._hosts:
            self._tell(host, "leave")
        refs = {host.handle.close.remote(): host for host in self._hosts if host.handle is not None}
        done, late = self._ray.wait(list(refs), num_returns=len(refs), timeout=_GRACE_S) if refs else ([], [])
        if late:
            for host in self._hosts:
                self._tell(host, "interrupt")
            done, _ = self._ray.wait(list(refs), num_returns=len(refs), timeout=max(0.0, deadline - time.monotonic()))
        faults = []
        for ref in done:
            with contextlib.suppress(self._ray.exceptions.RayError):
                if (trouble := self._ray.get(ref)) is not None:
                    faults.append(trouble.fault(refs[ref].generator))
        return faults
