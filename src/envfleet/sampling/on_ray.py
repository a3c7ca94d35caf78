"""RayBackend: each generator in a Ray actor, trajectories through the object store.

Every actor has a line of requests, the first of which it works on; the caller waits for whichever first request is
answered first. A request of an earlier stream is answered at once, with nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envfleet import ray_cluster
from envfleet.batch import Fault
from envfleet.errors import ConfigError, PlacementError
from envfleet.executors.ray.actors import how_it_died
from envfleet.executors.ray.faults import KILLED
from envfleet.executors.ray.plans import Luggage
from envfleet.executors.rows.faults import message_of, trouble_of
from envfleet.ray_options import refused_by_ray
from envfleet.sampling.backend import Backend, Event, Maker
from envfleet.sampling.errors import START, TRAJS, GeneratorDied, GeneratorError
from envfleet.sampling.ray_actor import CONTROL, GeneratorActor, Offer
from envfleet.sampling.travel import pickled_maker

_GRACE_S = 1.0
_CLOSE_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class _Asked:
    """A reference to an answer, how long it may take, and whether it is to be a trajectory."""

    ref: Any
    patience_s: float | None
    is_request: bool = False


@dataclass
class _Host:
    """An actor and what it was asked, oldest first.

    stream: as this actor counts them; one that raised or returned begins another when it is renewed.
    """

    generator: int
    maker: bytes
    handle: Any = None
    pid: int = -1
    line: deque[_Asked] = field(default_factory=deque)
    since: float = 0.0  # when the first of the line became that
    stream: int = 0
    is_halted: bool = False

    def put(self, asked: _Asked) -> None:
        if not self.line:
            self.since = time.monotonic()
        self.line.append(asked)

    def advance(self) -> None:
        self.line.popleft()
        self.since = time.monotonic()

    @property
    def num_ahead(self) -> int:
        return sum(asked.is_request for asked in self.line)

    def drop_requests(self) -> None:
        """What makes the actor ready stays in the line."""
        self.line = deque(asked for asked in self.line if not asked.is_request)
        self.stream += 1


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
        self._lease = ray_cluster.join(address, "Runner(backend='ray')")
        self._ray = self._lease.ray
        ray_cluster.keep_in_forks(self)
        try:
            actor = ray.remote(concurrency_groups={CONTROL: 1})(GeneratorActor)
            with refused_by_ray(options):
                self._actor = actor.options(**{"scheduling_strategy": "SPREAD", **options, "max_restarts": 0})
                for host in self._hosts:
                    self._create(host)
            while any(host.line for host in self._hosts):
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
        self._turn()
        for host in self._hosts:
            host.is_halted = False
            if host.handle is None:
                self._create(host)
        self._ask_for_more()
        return []

    def take(self, generator: int | None) -> Event | None:
        """Waits for the next event."""
        hosts = self._hosts if generator is None else [self._hosts[generator]]
        while not self._is_closed:
            self._lease.check()
            self._ask_for_more()
            try:
                event = self._answer(hosts)
            except self._ray.exceptions.RayError:
                if self._is_closed:  # by another thread
                    return None
                raise
            if event is not None:
                self._ask_for_more()
                return event
        return None

    def renew(self, generator: int) -> None:
        """Has it made anew, in a new actor if the old one is gone."""
        host = self._hosts[generator]
        host.is_halted = False
        host.drop_requests()
        if host.handle is None:
            self._create(host)

    def stop(self) -> None:
        """Drops what is ready and what was asked."""
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
        host.line.clear()
        host.handle = self._actor.remote()
        host.put(_Asked(host.handle.ping.remote(), self._placement_timeout))
        host.put(_Asked(host.handle.start.remote(Luggage.here(), host.maker), None))

    def _ask_for_more(self) -> None:
        for host in self._hosts:
            if host.is_halted or host.handle is None:
                continue
            for _ in range(self._prefetch - host.num_ahead):
                ref = host.handle.ask.remote(host.stream, self._request, self._offer)
                host.put(_Asked(ref, self._traj_timeout, is_request=True))

    def _answer(self, hosts: Sequence[_Host]) -> Event | None:
        """Waits for the first answer of any of them. None: it is nothing that the caller wants to know."""
        # The one after the last first: where several are there, each gets its turn.
        start = self._first if len(hosts) == len(self._hosts) else 0
        turns = [*hosts[start:], *hosts[:start]]
        heads = {host.line[0].ref: host for host in turns if host.line}
        ready, _ = self._ray.wait(list(heads), num_returns=1, timeout=self._patience(heads.values()))
        if not ready:
            return self._overdue(heads.values())
        host = heads[ready[0]]
        try:
            kind, content = self._ray.get(ready[0])
        except self._ray.exceptions.RayActorError as error:
            return self._lose(host, how_it_died(error))
        except Exception as error:
            # It could not be pickled there, or not be read here.
            host.advance()
            fault = trouble_of(error, TRAJS, is_leaving=False).fault(host.generator, error)
            return self._halted(host, Event(host.generator, "raised", fault=fault))
        host.advance()
        self._first = (host.generator + 1) % len(self._hosts)
        if kind == "placed":
            host.pid = content
        elif kind == "trajectory":
            return Event(host.generator, "trajectory", open=lambda: content)
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

    def _patience(self, hosts: Iterable[_Host]) -> float | None:
        now = time.monotonic()
        left = [host.since + own - now for host in hosts if (own := host.line[0].patience_s) is not None]
        return max(0.0, min(left)) if left else None

    def _overdue(self, hosts: Iterable[_Host]) -> Event | None:
        now = time.monotonic()
        for host in hosts:
            first = host.line[0]
            if first.patience_s is None or now < host.since + first.patience_s:
                continue
            if first.is_request:
                return self._lose(host, f"gave no trajectory within traj_timeout={first.patience_s:g} s and was killed")
            error = PlacementError(
                f"the actor of generator {host.generator} found no machine within placement_timeout="
                f"{first.patience_s:g} s; the cluster has {self._ray.available_resources()} free: ask for less in "
                "ray_options, use fewer generators, or add machines"
            )
            self._end(host)
            fault = Fault(host.generator, START, str(error), cause=error)
            return self._halted(host, Event(host.generator, "raised", fault=fault))
        return None

    def _lose(self, host: _Host, how: str) -> Event:
        method = TRAJS if host.line[0].is_request else START
        self._end(host)
        fault = Fault(host.generator, method, f"its Ray actor {how}", exit_code=KILLED)
        return self._halted(host, Event(host.generator, "died", fault=fault))

    def _end(self, host: _Host) -> None:
        handle, host.handle = host.handle, None
        host.line.clear()
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
        self._is_closed = True
        faults: list[Fault] = []
        try:
            if self._lease.is_alive:
                faults = self._farewells()
        finally:
            for host in self._hosts:
                self._end(host)
            self._lease.leave()
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
