"""Ray sessions: join a running cluster, or start a local one quietly, and leave it as it was found.

session = ray_cluster.acquire_session(None)  # or an address
...                                          # ray.remote, ray.get: session.ray is the package
session.release()                            # the last release() ends a session that was started here, and no other
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import socket
import threading
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from envfleet.core.errors import ConfigError, EnvfleetError, MissingExtraError, PoolClosedError

_PURPOSE = "backend='ray'"
_CONNECT_TIMEOUT_S = 10.0
_HTTP2_HEAD_BYTES = 9  # of a frame: length, type, flags, stream
_HTTP2_SETTINGS = 4
_HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, _HTTP2_SETTINGS, 0, 0, 0, 0, 0])
_lock = threading.RLock()
_holders: weakref.WeakSet[Any] = weakref.WeakSet()


@dataclass
class _OwnSession:
    """The session that acquire_session() started. session_id: None if there is none."""

    session_id: str | None = None
    num_users: int = 0


_own_session = _OwnSession()


class RaySession:
    """One user's reference to a Ray session."""

    def __init__(self, ray: ModuleType, session_id: str, is_own: bool) -> None:
        self.ray = ray
        self.is_own = is_own  # acquire_session() started the session, and its last user ends it
        self._id = session_id
        self._is_held = True
        self._is_by_client = bool(ray.util.client.ray.is_connected())

    @property
    def is_alive(self) -> bool:
        """Whether the session that was joined still exists: the user may have called ray.shutdown()."""
        return bool(self.ray.is_initialized()) and _session_id(self.ray) == self._id

    def check(self) -> None:
        """Raise if the session is gone: otherwise Ray's next call would start another one, without our actors."""
        # With Ray Client, asking for the session's id is a message: there it is enough that a session exists.
        is_there = self.ray.is_initialized() if self._is_by_client else self.is_alive
        if not is_there:
            raise PoolClosedError(
                "expected the Ray session in which this was created, got none or another one: ray.shutdown() was "
                "called, which ended its actors; create it again"
            )

    def release(self) -> None:
        """Give up the reference. Idempotent. The last user of a session that acquire_session() started ends it."""
        with _lock:
            if not self._is_held:
                return
            self._is_held = False
            if not self.is_own or _own_session.session_id != self._id:
                return
            _own_session.num_users -= 1
            if _own_session.num_users == 0:
                _own_session.session_id = None
                if self.is_alive:
                    self.ray.shutdown()


def import_ray(purpose: str = _PURPOSE) -> ModuleType:
    """Return the ray package. Raises MissingExtraError, which says how to install it."""
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", "ray", purpose) from error
    package: ModuleType = ray
    return package


def acquire_session(address: str | None = None, purpose: str = _PURPOSE) -> RaySession:
    """Return a reference to the Ray session of this process, which is started if there is none.

    address: of a running cluster ("10.0.0.1:6379", "ray://...", "auto" for the one on this machine), or "local" for a
    new one on this machine. None: the cluster that RAY_ADDRESS names, else a local one. A session that the caller has
    started with ray.init() is used and left running.
    """
    ray = import_ray(purpose)
    with _lock:
        if ray.is_initialized():
            _check_same(ray, address)
            session_id = _session_id(ray)
            is_own = _own_session.session_id == session_id
            if is_own:
                _own_session.num_users += 1
            return RaySession(ray, session_id, is_own)
        _start(ray, address or os.environ.get("RAY_ADDRESS") or "local", purpose)
        session_id = _session_id(ray)
        _own_session.session_id, _own_session.num_users = session_id, 1
        return RaySession(ray, session_id, True)


def captured_placement_group(ray: ModuleType) -> Any | None:
    """Return the placement group of the current task or actor if it captures child tasks, else None, as Ray does."""
    group = ray.util.get_current_placement_group()
    if group is None or not ray.get_runtime_context().should_capture_child_tasks_in_placement_group:
        return None
    return group


def default_scheduling_strategy(ray: ModuleType) -> Any:
    """Return the scheduling_strategy of actors unless the user passes one.

    Inside a placement group (a Ray Tune trial), the resources of the cluster are reserved by the groups: an actor
    outside would never be placed.
    """
    group = captured_placement_group(ray)
    if group is None:
        return "SPREAD"
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    return PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)


def num_cpus(ray: ModuleType) -> int:
    """Return the number of cores for new actors: the cluster's, or what is left of the current placement group."""
    group = captured_placement_group(ray)
    if group is None:
        return max(1, int(ray.cluster_resources().get("CPU", 1)))
    own = ray.get_runtime_context().get_assigned_resources().get("CPU", 0)
    return max(1, int(sum(bundle.get("CPU", 0) for bundle in group.bundle_specs) - own))


def keep_in_forks(holder: Any) -> None:
    """Keep an object that holds actors or references alive in forked children.

    If a child dropped them, it would tell Ray so on its parent's connections, and Ray there would hang or abort.
    """
    _holders.add(holder)


def _keep_holders() -> None:
    for holder in list(_holders):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(holder))  # a module-level list would be emptied at the child's exit


os.register_at_fork(after_in_child=_keep_holders)


def _start(ray: ModuleType, address: str, purpose: str) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address == "local":
            ray.init(address="local", include_dashboard=False, **quiet)
        else:
            _check_reachable(address)
            ray.init(address=address, **quiet)
    except Exception as error:
        if address == "local":
            raise EnvfleetError(f"{purpose} could not start Ray on this machine: {error}") from error
        raise ConfigError(
            f"{purpose} expected a running Ray cluster at address={address!r}, got none: {error}; "
            "start one with `ray start --head`, or leave the address out to start one on this machine"
        ) from error


def _check_reachable(address: str) -> None:
    """Raise if nothing listens there, or something that is not Ray: Ray itself would keep trying for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S) as connection:
        if is_encrypted():
            return
        # Ray's ports speak HTTP/2: each side starts with a SETTINGS frame.
        connection.sendall(_HTTP2_GREETING)
        connection.settimeout(_CONNECT_TIMEOUT_S)
        try:
            response = connection.recv(_HTTP2_HEAD_BYTES, socket.MSG_WAITALL)
        except OSError:
            response = b""
        if len(response) < _HTTP2_HEAD_BYTES or response[3] != _HTTP2_SETTINGS:
            raise ConnectionError(f"the server at this address does not answer as Ray does ({response!r})")


def is_encrypted() -> bool:
    """Return whether Ray is configured to encrypt its messages."""
    return os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")


def _check_same(ray: ModuleType, address: str | None) -> None:
    """Raise if the present session is on another cluster than the requested one."""
    if address in (None, "auto", "local") or address.startswith("ray://"):
        return
    current = ray.get_runtime_context().gcs_address
    if address != current and not _is_same_server(address, current):
        raise ConfigError(
            f"address expected {current!r}, to which this process is already connected, got {address!r}; "
            "leave it out, or call ray.shutdown() first"
        )


def _is_same_server(address: str, other: str) -> bool:
    """Return whether two host:port are the same server: a machine has several names, and "localhost"."""
    (host, _, port), (other_host, _, other_port) = address.rpartition(":"), other.rpartition(":")
    if not host or not port.isdigit() or port != other_port:
        return False
    one, two = _addresses(host), _addresses(other_host)
    return not one.isdisjoint(two) or (any(map(_is_local, one)) and any(map(_is_local, two)))


def _addresses(host: str) -> set[str]:
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)}
    except OSError:  # an unknown name
        return {host}


def _is_local(ip: str) -> bool:
    """Return whether this machine has this address: only then can a socket be bound to it."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((ip, 0))
            return True
    except OSError:
        return False


def _session_id(ray: ModuleType) -> str:
    """Return an id of the session. The first jobs of two local clusters have the same id, but their nodes do not."""
    context = ray.get_runtime_context()
    return f"{context.get_node_id()}/{context.get_job_id()}"


@contextlib.contextmanager
def refused_by_ray(options: Mapping[str, Any]) -> Iterator[None]:
    """Raise ConfigError if Ray, which checks the options of its actors itself, rejects them."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"actor_options and runtime_env expected what a Ray actor's .options() takes, got {dict(options)}: {error}"
        ) from error
