"""The executors under the conformance suite. A new one joins by adding its name.

A subject makes pools of seven envs that behave alike on every executor: "CartPole-v1",
"Faulty-v0", "Halfway-v0", "Sleepy-v0", "SlowReset-v0", "Sink-v0" and "Diverging-v0". tests/plugins/probe.cc says
what they do in C++, tests/support/python_probes.py in Python; "Refusing-v0" exists in Python only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.python_probes import (
    DivergingEnv,
    FaultyEnv,
    HalfwayEnv,
    RefusingEnv,
    SinkEnv,
    SleepyEnv,
    SlowResetEnv,
)
from support.ray_session import ray_session

import envfleet
from envfleet import Pool

Subject = Callable[..., Pool]

PYTHON_BACKENDS = ("serial", "threads", "processes")

_PYTHON_PROBES: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "Faulty-v0": (FaultyEnv, {}),
    "Halfway-v0": (HalfwayEnv, {}),
    "Diverging-v0": (DivergingEnv, {}),
    "Refusing-v0": (RefusingEnv, {}),
    "Sleepy-v0": (SleepyEnv, {}),
    "SlowReset-v0": (SlowResetEnv, {}),
    "Sink-v0": (SinkEnv, {"max_episode_steps": 7}),
}
# Parameters of the probes that may be a list of one value for each env.
_PARAMS = ("fail_construction", "length", "size", "scale", "loud", "label")


def native(env_id: str, **options: Any) -> Pool:
    return envfleet.make_pool(env_id, backend="native", **options)


def on_python(backend: str) -> Subject:
    """Pools of Python envs on this backend, made with the options of the native ones."""

    def make(env_id: str, **options: Any) -> Pool:
        num_workers = options.pop("num_threads", None)
        if num_workers is not None and backend != "serial":
            options["num_workers"] = num_workers
        env, defaults = _PYTHON_PROBES.get(env_id, (env_id, {}))
        per_env = {name: options.pop(name) for name in _PARAMS if isinstance(options.get(name), list)}
        if per_env:
            columns = zip(*per_env.values(), strict=True)
            options["env_kwargs"] = [dict(zip(per_env, values, strict=True)) for values in columns]
        return envfleet.make_pool(env, backend=backend, **{**defaults, **options})

    return make


def on_ray(env_id: str, **options: Any) -> Pool:
    """Pools of Python envs on actors; the cluster is one for all tests of a session."""
    ray_session()
    # As few as the test can do with: an actor is a process that has to be started.
    options.setdefault("num_threads", 2)
    return on_python("ray")(env_id, ray=envfleet.RayConfig(inner_backend="serial"), **options)


SUBJECTS: dict[str, Subject] = {
    "native": native,
    **{backend: on_python(backend) for backend in PYTHON_BACKENDS},
    "ray": on_ray,
}

_IN_TURN = "serial runs its envs one after the other in the caller's thread"
_TO_THE_END = "serial runs what it was asked in the caller's thread, to its end: nothing is ever late"
_OF_PYTHON = (*PYTHON_BACKENDS, "ray")
_SKIPS: dict[str, tuple[tuple[str, ...], str]] = {
    "test_first_finished_comes_first": (("serial",), _IN_TURN),
    "test_a_slow_env_holds_up_no_batch_of_others": (("serial",), _IN_TURN),
    "test_a_timeout_loses_nothing": (("serial",), _TO_THE_END),
    "test_a_timeout_holds_for_an_env_that_was_quick_before": (("serial",), _TO_THE_END),
    "test_an_async_timeout_loses_nothing": (("serial",), _TO_THE_END),
    "test_dropping_pending_rows_may_run_out_of_time": (("serial",), _TO_THE_END),
    "test_a_late_reset_is_received_before_anything_else": (("serial",), _TO_THE_END),
    "test_a_fault_in_a_batch_that_was_lost": (
        ("serial",),
        "Ctrl-C strikes the env itself, and the reset that must follow rebuilds all that failed",
    ),
    "test_an_env_that_breaks_when_it_is_looked_at": (_OF_PYTHON, "a Python env has no hook to be looked at"),
    "test_an_env_that_refuses_an_attribute_keeps_its_own": (("native",), "a native env has no setters of its own"),
    "test_state_goes_back_bit_for_bit": (_OF_PYTHON, "a Python env can be saved only where it says how"),
}


def why_not(test: str, subject: str) -> str | None:
    """Why a test of the suite does not apply to a subject, or None when it does."""
    subjects, reason = _SKIPS.get(test, ((), ""))
    return reason if subject in subjects else None
