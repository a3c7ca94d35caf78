"""The native executor: C++ envs on the engine's thread pool.

Thin on purpose: native/bindings/native_pool.cc checks, runs and fills in batches, and this module finishes those that
have more than plain columns.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet import _native
from envfleet.core.autoreset import NATIVE_CODES
from envfleet.core.batch import Batch, Fault, FinalRows
from envfleet.core.errors import ConfigError, EnvError, EnvfleetError, StateError, short_repr
from envfleet.core.executor import CLOSE_TIMEOUT_S, PoolBackedExecutor, Refused, all_env_ids
from envfleet.core.family import Renderer
from envfleet.core.options import PoolConfig
from envfleet.core.seeding import Words
from envfleet.core.spaces import assembler_of
from envfleet.core.spec import EnvSpec
from envfleet.core.statistics import EnvStats, PoolStats
from envfleet.executors.env_reports import EnvStateError


class NativeExecutor(PoolBackedExecutor[_native.NativePool]):
    """Runs the envs of a native type."""

    def __init__(
        self,
        native_id: str,
        spec: EnvSpec,
        config: PoolConfig,
        params: Sequence[Mapping[str, Any]],
        make_renderer: Callable[[str, Mapping[str, Any]], Renderer] | None = None,
    ) -> None:
        """Build the envs. params holds their parameters: one mapping for all envs, or one per env.

        make_renderer: returns a renderer of an env with these parameters, for envs without a render() of their own.
        """
        self.spec = spec
        self.num_envs = config.num_envs
        names = [array.name for array in spec.observation_arrays]
        texts = {position: array.texts for position, array in enumerate(spec.observation_arrays) if array.texts}
        self._obs_of = assembler_of(spec.observation_space, names, texts)
        self._info_names = tuple(array.name for array in spec.info_arrays)
        self._has_finals = config.autoreset_mode is AutoresetMode.SAME_STEP
        self._has_single_obs = not texts and not isinstance(spec.observation_space, (spaces.Dict, spaces.Tuple))
        try:
            self._native = _native.NativePool(
                env_id=native_id,
                num_envs=config.num_envs,
                batch_size=config.batch_size,
                num_threads=config.num_workers,
                thread_affinity_offset=config.thread_affinity_offset,
                max_episode_steps=config.max_episode_steps or 0,
                autoreset=NATIVE_CODES[config.autoreset_mode],
                keeps_last_obs=config.restarts_envs,
                check_finite=config.check_finite,
                configs=[dict(own) for own in params],
                all_ids=all_env_ids(config.num_envs),
                batch_type=Batch,
                fault_type=Fault,
                has_single_obs=self._has_single_obs,
            )
        except _native.FleetError as error:
            raise ConfigError(f"{native_id} cannot be built with these parameters: {error}") from error
        except MemoryError as error:
            raise MemoryError(
                f"expected as many envs as fit in memory, got num_envs={config.num_envs}; pass a smaller num_envs"
            ) from error
        self.call_guard = self._native.call_guard
        if self._has_single_obs and not self._info_names and not self._has_finals:
            # The most common case: nothing is left to do here.
            self.step, self.recv = self._native.step, self._native.recv  # type: ignore[method-assign]
        self._params = params
        self._render_mode = config.render_mode
        self._make_renderer = make_renderer
        self._renderers: dict[str, Renderer] = {}  # by parameters: those of FrozenLake hold its map
        # Info keys that only resets or only steps have: name -> whether steps have it.
        self._partial = {a.name: a.on_step for a in spec.info_arrays if not (a.on_step and a.on_reset)}

    # --- stepping ------------------------------------------------------------------------

    def step(self, actions: Any, env_ids: Any, timeout_s: float) -> Batch | Refused | None:
        return self._finished(self._native.step(actions, env_ids, timeout_s))

    def step_checked(self, actions: Any, env_ids: Any, timeout_s: float) -> Batch | Refused | None:
        return self._finished(self._native.step_checked(actions, env_ids, timeout_s))

    def send(self, actions: Any, env_ids: Any) -> bool:
        return self._native.send(actions, env_ids)

    def send_checked(self, actions: Any, env_ids: Any) -> bool:
        return self._native.send_checked(actions, env_ids)

    def sender(self) -> Callable[[Any, Any], bool]:
        return self._native.send

    def recv(self, timeout_s: float) -> Batch | Refused | None:
        return self._finished(self._native.recv(timeout_s))

    def native_pool(self) -> _native.NativePool | None:
        return self._native

    def reset(self, env_ids: NDArray[np.int32] | None, options: Mapping[str, Any], timeout_s: float) -> Batch | None:
        self._native.set_reset_options([(name, float(value)) for name, value in options.items()])
        batch = self._native.reset(env_ids, timeout_s)
        return None if batch is None else self._finish(batch)

    def send_reset(self, env_ids: NDArray[np.int32] | None, options: Mapping[str, Any]) -> None:
        self._native.set_reset_options([(name, float(value)) for name, value in options.items()])
        self._native.send_reset(env_ids)

    def drop_pending(self, timeout_s: float) -> bool:
        return self._native.drop_pending(timeout_s)

    def unreported_faults(self) -> tuple[Fault, ...]:
        return self._native.unreported_faults()

    def clear_faults(self) -> None:
        self._native.clear_faults()

    def check_reset_options(self, options: Mapping[str, Any]) -> None:
        check_native_options(self.spec, options)

    def _finished(self, result: Batch | Literal[False] | None) -> Batch | Refused | None:
        """Return what a call of the native pool returned in the form of the Executor."""
        return self._finish(result) if isinstance(result, Batch) else result

    def _finish(self, batch: Batch) -> Batch:
        """Finish a raw batch in place; see NativePool.__init__()."""
        if not self._has_single_obs:
            batch.obs = self._obs_of(batch.obs)
        if self._info_names:
            batch.info = self._info(cast("tuple[Any, ...]", batch.info), batch.elapsed_step)
        if self._has_finals:
            batch.final = self._final(batch)
        return batch

    def _final(self, batch: Batch) -> FinalRows:
        obs, elapsed_step, columns = cast("tuple[Any, ...]", batch.final)
        infos = zip(self._info_names, columns, strict=True)
        # Final rows are always written by a step.
        info = {name: column for name, column in infos if self._partial.get(name, True)}
        if batch.faults:
            # An env that failed has no final infos, and the buffer may hold those of an earlier batch.
            failed = np.isin(batch.env_id, [fault.env_id for fault in batch.faults])
            for column in info.values():
                column[failed] = 0
        return FinalRows(self._obs_of(obs), elapsed_step, info)

    def _info(self, columns: tuple[Any, ...], elapsed_step: NDArray[np.int32]) -> dict[str, Any]:
        info: dict[str, Any] = dict(zip(self._info_names, columns, strict=True))
        if self._partial:
            stepped = elapsed_step > 0
            masks = {True: stepped, False: ~stepped}
            is_absent = {on_step: not mask.any() for on_step, mask in masks.items()}
            for name, on_step in self._partial.items():
                if is_absent[on_step]:  # as with Python envs, a key that no row has is left out
                    del info[name]
                else:
                    info[f"_{name}"] = masks[on_step].copy()
        return info

    # --- between batches -----------------------------------------------------------------

    def seed(self, env_ids: NDArray[np.int32], words: Words) -> None:
        self._native.seed(env_ids, words)

    def rebuild(self, env_id: int, phase: int, words: Words | None = None) -> None:
        if words is not None:
            self.seed(np.array([env_id], dtype=np.int32), words)  # kept by the rebuild
        try:
            self._native.rebuild(env_id, phase)
        except _native.FleetError as error:
            fault = Fault(env_id, "__init__", str(error))
            raise EnvError((fault,), None, "its constructor must not throw") from error

    def observe(self) -> tuple[Any, NDArray[np.int32]]:
        batch = self._native.observe()
        if batch.faults:
            self.clear_faults()
            raise EnvError(batch.faults, None, "reset the env, which rebuilds it")
        return batch.obs if self._has_single_obs else self._obs_of(batch.obs), batch.elapsed_step

    def get_state(self, env_id: int) -> bytes:
        try:
            return self._native.get_state(env_id)
        except _native.FleetError as error:
            raise EnvStateError(env_id, self.spec.id, f"cannot be saved: {error}") from error

    def set_state(self, env_id: int, state: bytes) -> None:
        try:
            self._native.set_state(env_id, state)
        except _native.FleetError as error:
            raise EnvStateError(env_id, self.spec.id, f"cannot take this state: {error}") from error

    def render(self, env_ids: Sequence[int]) -> list[Any]:
        return [self._render(int(env_id)) for env_id in env_ids]

    def _render(self, env_id: int) -> NDArray[np.uint8] | None:
        if not self._native.has_render:
            renderer = self._renderer_of(env_id)
            return None if renderer is None else self._render_with(renderer, env_id)
        try:
            height, width, rgb = self._native.render(env_id)
        except _native.FleetError as error:
            raise EnvError((Fault(env_id, "render", str(error)),), None, "fix its render()") from error
        frame: NDArray[np.uint8] = np.frombuffer(rgb, dtype=np.uint8).reshape(height, width, 3).copy()
        return frame

    def _render_with(self, renderer: Renderer, env_id: int) -> NDArray[np.uint8]:
        attributes = self.get_attrs(env_id)
        try:
            return renderer(attributes)
        except EnvfleetError:  # a missing package, or a graphics stack that does not work
            raise
        except Exception as error:  # the renderer, Gymnasium's code, does not expect every value of an attribute
            fault = Fault.of(error, "render", env_id)
            remedy = "set attributes that can be drawn, or reset the env"
            raise EnvError((fault,), None, remedy) from error

    def _renderer_of(self, env_id: int) -> Renderer | None:
        if self._make_renderer is None:
            if self._render_mode is None:
                return None
            raise ConfigError(
                f"render() expected an env with a renderer, {self.spec.id} has none; give it a render() hook"
            )
        params = self.params_of(env_id)
        key = repr(sorted(params.items()))
        if key not in self._renderers:
            self._renderers[key] = self._make_renderer(self.spec.native_id, params)
        return self._renderers[key]

    def get_attrs(self, env_id: int) -> dict[str, Any]:
        try:
            return self._native.get_fields(env_id)
        except _native.FleetError as error:
            raise EnvError((Fault(env_id, "get_attr", str(error)),), None, "fix its fields()") from error

    def get_attr(self, env_ids: Sequence[int], name: str) -> list[Any]:
        return [self._get_attr(int(env_id), name) for env_id in env_ids]

    def _get_attr(self, env_id: int, name: str) -> Any:
        if name == "render_mode":
            return self._render_mode
        if name == "spec":
            return self.spec
        if name in ("metadata", "observation_space", "action_space"):
            return getattr(self.spec, name)
        if name == "np_random":
            return _generator_of(self.get_state(env_id))
        attributes = self.get_attrs(env_id)
        if name not in attributes:
            raise AttributeError(f"{self.spec.id} has no attribute {name!r}; it has {sorted(attributes) or 'none'}")
        return attributes[name]

    def set_attrs(self, env_ids: Sequence[int], name: str, values: Sequence[Any]) -> None:
        before = {int(env_id): self.get_attrs(int(env_id)).get(name) for env_id in env_ids}
        written: list[int] = []
        try:
            for env_id, value in zip(env_ids, values, strict=True):
                self._set_attr(int(env_id), name, value)
                written.append(int(env_id))
        except BaseException:
            for env_id in written:
                # An env that refuses its old value is broken, and is rebuilt at its next reset.
                with contextlib.suppress(EnvError):
                    self._set_attr(env_id, name, before[env_id])
            raise

    def _set_attr(self, env_id: int, name: str, value: Any) -> None:
        if value is None and name in self.get_attrs(env_id):
            raise ConfigError(
                f"set_attr() expected a value that fits {name} of env {env_id}, got None; pass a number or an array"
            )
        try:
            # What nanobind would refuse, in terms of C++ signatures, is no attribute either.
            is_set = isinstance(name, str) and value is not None and self._native.set_field(env_id, name, value)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"set_attr() expected a value that fits {name} of env {env_id}, got {short_repr(value)}: {error}"
            ) from error
        except _native.FleetError as error:
            raise EnvError((Fault(env_id, "set_attr", str(error)),), None, f"{name} keeps its old value") from error
        if not is_set:
            known = sorted(self.get_attrs(env_id)) or "none"
            raise AttributeError(f"{self.spec.id} has no attribute {name!r} that can be set; it has {known}")

    def call(self, env_ids: Sequence[int], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        if args or kwargs:
            raise ConfigError(
                f"call() expected the name of an attribute, got the method {name!r} with arguments; "
                "native envs have no methods except render()"
            )
        if name == "render":
            if self._render_mode is None:
                raise ConfigError("render() expected render_mode='rgb_array' at make(), got None; pass it there")
            return self.render(env_ids)
        return self.get_attr(env_ids, name)

    # --- status ----------------------------------------------------------------------------

    def stats(self) -> PoolStats:
        return PoolStats(tuple(EnvStats(**own) for own in self._native.env_statistics()))

    @property
    def ns_per_step(self) -> float:
        """The time of one env's step as the engine measures it; 0 before the first step."""
        return self._native.ns_per_step

    # --- life cycle ------------------------------------------------------------------------

    def _end(self) -> list[Warning]:
        self._renderers.clear()  # they may hold windows or memory of a graphics driver
        if self._native.end():
            return []
        late = f"did not return within {CLOSE_TIMEOUT_S:g} s of close()"
        return [ResourceWarning(f"an env of {self.spec.id} {late}; its thread was left behind")]


def _generator_of(state: bytes) -> np.random.Generator:
    """Return numpy's generator with the state in the first bytes of a native env's state (Rng::State in rng.h)."""
    if len(state) < 40:
        raise StateError(f"expected a native env's state of at least 40 bytes, got {len(state)}")
    words = np.frombuffer(state[:32], dtype="<u8")
    has_spare, spare = np.frombuffer(state[32:40], dtype="<u4")
    generator = np.random.Generator(np.random.PCG64())
    generator.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": int(words[0]) << 64 | int(words[1]), "inc": int(words[2]) << 64 | int(words[3])},
        "has_uint32": int(has_spare),
        "uinteger": int(spare),
    }
    return generator


def check_native_options(spec: EnvSpec, options: Mapping[str, Any]) -> None:
    """Raise ConfigError unless a native env accepts these reset options."""
    for name, value in options.items():
        if name not in spec.reset_options:
            valid = list(spec.reset_options) or "none"
            raise ConfigError(f"reset() expected options among {valid}, got {name!r}; leave it out")
        try:
            is_finite = math.isfinite(float(value))
        except (TypeError, ValueError, OverflowError):
            is_finite = False
        if not is_finite:
            raise ConfigError(f"reset() expected a finite number for option {name!r}, got {value!r}")
    if {"low", "high"} <= options.keys() and options["low"] > options["high"]:
        raise ConfigError(f"reset() expected option low <= high, got {options['low']} and {options['high']}")
