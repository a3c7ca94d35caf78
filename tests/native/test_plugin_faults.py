"""The fault matrix of the C++ SDK: every hook of an env, what it throws, threads, autoreset modes.

Always the documented exception, the rows of the other envs as in an check_others run, and a pool that goes on.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hooks_plugin import THROWN, HooksPlugin

from envfleet import Batch, ConfigError, EnvError, Pool, StateError

NUM_ENVS = 10  # three groups of lanes and one env over
# Of envs whose cost is not known yet, each of three threads is given blocks of a 48th: whole groups of lanes.
NUM_ENVS_OF_BLOCKS = 144
BAD = 4  # in the middle of the second group
GROUP = (3, 4, 5)
NUM_STEPS = 12  # four episodes
MODES = ["next_step", "same_step", "disabled"]
# Inline: what is known to be quick is run in the caller's thread. Thread pool: the first batch, of unknown cost,
# is left to the threads, and later ones of envs that take their time.
THREADS = {"inline": 1, "thread_pool": 3}

matrix = pytest.mark.parametrize(
    ("thrown", "threads", "mode"),
    [(thrown, threads, mode) for thrown in THROWN for threads in THREADS for mode in MODES],
)
by_thrown = pytest.mark.parametrize("thrown", THROWN)


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> HooksPlugin:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENVFLEET_CACHE", str(tmp_path_factory.mktemp("cache")))
        return HooksPlugin()


def phases_of(pool: Pool) -> list[int]:
    """By env, as ef_phase of abi.h: 2 has ended, 3 is broken."""
    return pool._executor.phases().tolist()


def attributes_of(pool: Pool) -> dict[str, Any]:
    return {name: np.asarray(value).tolist() for name, value in pool.get_attrs(BAD).items()}


class Run:
    """A rollout with fixed actions, whose rows are kept env by env: those of a disturbed one can be compared."""

    def __init__(self, plugin: HooksPlugin, env_id: str, threads: str, mode: str, episode: int = 3) -> None:
        is_inline = threads == "inline"
        has_lanes = env_id == "HooksLanes-v0"
        self.key = (env_id, NUM_ENVS_OF_BLOCKS if has_lanes and not is_inline else NUM_ENVS, mode, episode)
        self.num_envs = self.key[1]
        self.pool: Pool = plugin.make_pool(
            env_id,
            self.num_envs,
            autoreset_mode=mode,
            seed=3,
            num_threads=THREADS[threads],
            episode=episode,
            burn_us=0 if is_inline or has_lanes else 8,
        )
        # With a time limit the batch is left to the threads; without one the caller may run it by himself.
        self.timeout = None if is_inline else 60
        self.num_warm_up_steps = 1 if is_inline else 0
        self.is_disabled = mode == "disabled"
        self.rows: list[list[tuple[Any, ...]]] = [[] for _ in range(self.num_envs)]
        self.broken: set[int] = set()
        self._actions = np.random.default_rng(5)
        self._take(self.pool.reset())

    def _take(self, batch: Batch) -> None:
        for row, env_id in enumerate(batch.env_id.tolist()):
            if env_id in self.broken:
                continue
            own = (batch.obs, batch.reward, batch.terminated, batch.truncated, batch.elapsed_step)
            self.rows[env_id].append(tuple(column[row].tolist() for column in own))
            if batch.final is not None and batch.terminated[row]:
                self.rows[env_id].append((batch.final.obs[row].tolist(), batch.final.elapsed_step[row].tolist()))

    def _attempt(self, call: Callable[[], Batch], expected: str) -> EnvError | None:
        try:
            self._take(call())
        except EnvError as error:
            raised = error
        else:
            return None
        assert expected in str(raised)
        self.broken |= {fault.env_id for fault in raised.faults}
        batch = raised.batch
        for row, env_id in enumerate(batch.env_id.tolist()):
            if env_id in self.broken:
                assert not batch.obs[row].any()
                assert (batch.reward[row], batch.terminated[row], batch.truncated[row]) == (0, False, False)
        self._take(batch)
        return raised

    def step(self, expected: str = "no fault") -> list[EnvError]:
        """One step of all envs, with the resets that the mode leaves to the caller. Gives what was raised."""
        actions = self._actions.integers(0, 2, self.num_envs)
        errors = [self._attempt(lambda: self.pool.step(actions, timeout=self.timeout), expected)]
        ended = [i for i, phase in enumerate(phases_of(self.pool)) if phase == 2] if self.is_disabled else []
        if ended:
            errors.append(self._attempt(lambda: self.pool.reset(ended, timeout=self.timeout), expected))
        return [error for error in errors if error is not None]

    def warm_up(self) -> None:
        for _ in range(self.num_warm_up_steps):
            assert not self.step()

    def mend(self) -> None:
        """Resets what is broken, which rebuilds it; it may be stepped from then on."""
        batch = self.pool.reset(sorted(self.broken))
        assert batch.env_id.tolist() == sorted(self.broken)
        assert batch.obs[:, 0].tolist() == sorted(self.broken)

    def finish(self) -> Run:
        for _ in range(NUM_STEPS):
            assert not self.step()
        self.pool.reset()
        self.pool.close()
        return self


@pytest.fixture(scope="module")
def check_others(plugin: HooksPlugin) -> Callable[[Run, set[int]], None]:
    """Holds the rows of the envs that are not broken against those of a run in which nothing throws."""
    known: dict[tuple[Any, ...], list[list[tuple[Any, ...]]]] = {}

    def check(run: Run, broken: set[int]) -> None:
        assert run.broken == broken
        if run.key not in known:
            env_id, num_envs, mode, episode = run.key
            known[run.key] = (
                Run(plugin, env_id, "inline" if num_envs == NUM_ENVS else "thread_pool", mode, episode).finish().rows
            )
        for env_id in set(range(run.num_envs)) - broken:
            expected = known[run.key][env_id]
            assert len(run.rows[env_id]) >= len(expected) >= NUM_STEPS
            assert run.rows[env_id][: len(expected)] == expected, env_id

    return check


@pytest.mark.parametrize(
    ("env_id", "hook", "broken"),
    [
        ("Hooks-v0", "step", [{BAD}]),
        # Alone when the engine, finding the envs slow, ran its row alone.
        ("HooksLanes-v0", "step_lanes", [set(GROUP), {BAD}]),
    ],
)
@matrix
def test_a_step_that_throws(plugin, check_others, env_id, hook, broken, thrown, threads, mode):
    run = Run(plugin, env_id, threads, mode)
    run.warm_up()
    with plugin.throwing(hook, thrown, BAD):
        (error,) = run.step(THROWN[thrown])
    assert {fault.env_id for fault in error.faults} in broken
    assert {fault.method for fault in error.faults} == {"step"}
    assert pickle.loads(pickle.dumps(error)).faults == error.faults
    run.mend()
    check_others(run.finish(), {fault.env_id for fault in error.faults})


@pytest.mark.parametrize("env_id", ["Hooks-v0", "HooksLanes-v0"])
@matrix
def test_a_reset_of_the_autoreset_that_throws(plugin, check_others, env_id, thrown, threads, mode):
    """In "disabled" it is the reset that the caller asks for."""
    run = Run(plugin, env_id, threads, mode, episode=1)
    run.warm_up()
    errors = []
    with plugin.throwing("reset", thrown, BAD):
        while not errors:
            errors = run.step(THROWN[thrown])
    assert [(fault.env_id, fault.method) for fault in errors[0].faults] == [(BAD, "reset")]
    assert not errors[0].batch.elapsed_step[errors[0].batch.env_id == BAD].any()
    run.mend()
    check_others(run.finish(), {BAD})


@matrix
def test_a_reset_that_throws(plugin, thrown, threads, mode):
    run = Run(plugin, "HooksLanes-v0", threads, mode)
    before = run.pool.reset(seed=3).obs
    with plugin.throwing("reset", thrown, BAD), pytest.raises(EnvError) as caught:
        run.pool.reset(seed=3, timeout=run.timeout)
    error = caught.value
    assert [(fault.env_id, fault.method) for fault in error.faults] == [(BAD, "reset")]
    assert THROWN[thrown] in str(error)
    others = np.arange(run.num_envs) != BAD
    assert (error.batch.obs[others] == before[others]).all()
    assert not error.batch.obs[BAD].any()
    run.broken = {BAD}
    run.mend()
    run.finish()


@matrix
def test_an_observe_that_throws(plugin, check_others, thrown, threads, mode):
    run = Run(plugin, "Hooks-v0", threads, mode)
    seen = run.pool.observe()
    with plugin.throwing("observe", thrown, BAD), pytest.raises(EnvError) as caught:
        run.pool.observe()
    assert [(fault.env_id, fault.method) for fault in caught.value.faults] == [(BAD, "observe")]
    assert THROWN[thrown] in str(caught.value)
    run.broken = {BAD}
    run.mend()
    others = np.arange(NUM_ENVS) != BAD
    assert (run.pool.observe()[others] == seen[others]).all()
    check_others(run.finish(), {BAD})


@matrix
def test_a_constructor_that_throws(plugin, thrown, threads, mode):
    with plugin.throwing("constructor", thrown, BAD), pytest.raises(ConfigError) as refused:
        Run(plugin, "Hooks-v0", threads, mode)
    assert THROWN[thrown] in str(refused.value)
    run = Run(plugin, "Hooks-v0", threads, mode)
    with plugin.throwing("step", "exception", BAD), pytest.raises(EnvError):
        run.pool.step(np.zeros(run.num_envs, np.int64))
    with plugin.throwing("constructor", thrown, BAD):
        for _ in range(2):
            with pytest.raises(EnvError) as caught:
                run.pool.reset([BAD])
            assert (caught.value.env_id, caught.value.method) == (BAD, "__init__")
            assert THROWN[thrown] in str(caught.value)
        # What there is of the env is asked for nothing that it has not.
        for ask in (
            run.pool.observe,
            run.pool.get_state,
            lambda: run.pool.get_attr("count"),
            lambda: run.pool.render(BAD),
        ):
            with pytest.raises((EnvError, StateError), match="could not be rebuilt"):
                ask()
    run.broken = {BAD}
    run.mend()
    run.finish()


@by_thrown
def test_a_spec_that_throws(plugin, thrown):
    with plugin.throwing("spec", thrown, 0), pytest.raises(ConfigError) as caught:
        plugin.make_pool("Hooks-v0", 2)
    assert THROWN[thrown] in str(caught.value)
    plugin.make_pool("Hooks-v0", 2).close()


@matrix
def test_hooks_between_batches_that_throw(plugin, check_others, thrown, threads, mode):
    """render, fields and fields_changed: nothing has changed, not even of the env that threw."""
    run = Run(plugin, "Hooks-v0", threads, mode)
    run.step()
    pool, text = run.pool, THROWN[thrown]
    with plugin.throwing("render", thrown, BAD), pytest.raises(EnvError, match=r"raised in render\(\)") as caught:
        pool.render(BAD)
    assert text in str(caught.value)
    attributes = attributes_of(pool)
    with plugin.throwing("fields", thrown, BAD):
        with pytest.raises(EnvError, match=rf"env {BAD} raised in get_attr\(\)") as caught:
            pool.get_attr("count")
        assert text in str(caught.value)
        with pytest.raises(EnvError):
            pool.set_attr("count", 5)
        with pytest.raises(StateError, match=f"env {BAD} of Hooks-v0 cannot be saved") as refused:
            pool.get_state()
        assert text in str(refused.value)
    # Once: the second call, which is for the old value, succeeds.
    with plugin.throwing("fields_changed", thrown, BAD, times=1):
        with pytest.raises(EnvError, match=rf"env {BAD} raised in set_attr\(\): fields_changed\(\) threw") as caught:
            pool.set_attr("count", 40)
        assert text in str(caught.value)
    saved = pool.get_state()
    with plugin.throwing("fields_changed", thrown, BAD, times=1):
        with pytest.raises(StateError, match=f"env {BAD} of Hooks-v0 cannot take this state") as refused:
            pool.set_state(saved)
        assert text in str(refused.value)
    assert attributes_of(pool) == attributes
    check_others(run.finish(), set())


@matrix
def test_an_env_that_refuses_its_old_fields_is_broken_alone(plugin, check_others, thrown, threads, mode):
    for change in (lambda pool, _: pool.set_attr("count", 40), lambda pool, saved: pool.set_state(saved)):
        run = Run(plugin, "Hooks-v0", threads, mode)
        run.step()
        saved = run.pool.get_state()
        with plugin.throwing("fields_changed", thrown, BAD):
            with pytest.raises((EnvError, StateError)) as caught:
                change(run.pool, saved)
            assert run.pool.get_attr("count", [BAD]) is not None
        assert THROWN[thrown] in str(caught.value)
        assert [i for i, phase in enumerate(phases_of(run.pool)) if phase == 3] == [BAD]
        run.broken = {BAD}
        run.mend()
        check_others(run.finish(), {BAD})


@by_thrown
def test_opaque_state_that_throws(plugin, thrown):
    pool = plugin.make_pool("HooksOpaque-v0", NUM_ENVS, seed=1)
    pool.reset()
    saved = pool.get_state()
    with plugin.throwing("save", thrown, BAD):
        with pytest.raises(StateError, match="cannot be saved") as caught:
            pool.get_state()
        assert THROWN[thrown] in str(caught.value)
    ones = np.ones(NUM_ENVS, np.int64)
    seen = pool.step(ones).obs
    with plugin.throwing("load", thrown, BAD, times=1):
        with pytest.raises(StateError, match="cannot take this state") as caught:
            pool.set_state(saved)
        assert THROWN[thrown] in str(caught.value)
    assert (pool.observe() == seen).all()
    assert (pool.step(ones).obs[:, 0] == seen[:, 0] + 2).all()


@pytest.mark.parametrize("env_id", ["Hooks-v0", "HooksLanes-v0"])
@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.parametrize("hook", ["step", "step_lanes", "reset"])
def test_faults_in_an_asynchronous_pool(plugin, env_id, hook, mode):
    """Every row comes back, and those of broken envs are told."""
    pool = plugin.make_pool(env_id, NUM_ENVS, batch_size=NUM_ENVS // 2, num_threads=2, autoreset_mode=mode, burn_us=5)
    pool.async_reset(seed=0)
    for _ in range(60):
        with plugin.throwing(hook, "number", BAD):
            try:
                batch = pool.recv(60)
            except EnvError as error:
                batch = error.batch
        broken = [i for i in batch.env_id.tolist() if phases_of(pool)[i] == 3]
        if broken:
            assert pool.reset(broken).obs[:, 0].tolist() == broken
        pool.send(np.zeros(len(batch.env_id), np.int64), batch.env_id)
    assert pool.reset().obs[:, 0].tolist() == list(range(NUM_ENVS))
    pool.close()


def test_rows_of_lanes_are_zero_before_they_are_written(plugin):
    """Even envs leave an element of their row out; the recycled buffer has another batch's value there."""
    pool = plugin.make_pool("HooksLanes-v0", NUM_ENVS)
    pool.reset(seed=0)
    for _ in range(8):
        batch = pool.step(np.ones(NUM_ENVS, np.int64))
        stepped = batch.elapsed_step > 0
        assert not batch.obs[stepped & (np.arange(NUM_ENVS) % 2 == 0), 3].any()
        batch.obs[:] = -7  # the caller may write into it, and what he leaves there is nobody's next row
        del batch


@pytest.mark.parametrize(
    ("height", "width", "num_bytes"),
    [(2, 3, 17), (2, 3, 0), (2, 3, 19), (0, 0, 0), (-1, -6, 18), (2**31 - 1, 2**31 - 1, 3)],
)
def test_a_frame_of_the_wrong_size(plugin, height, width, num_bytes):
    pool = plugin.make_pool("Hooks-v0", 2)
    pool.reset(seed=0)
    expected = rf"expected a frame .* got {height} x {width} with {num_bytes} bytes"
    with plugin.frame(height, width, num_bytes), pytest.raises(EnvError, match=expected):
        pool.render(0)
    assert pool.render(0).shape == (2, 3, 3)


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        *((f"i{n}", [-(2 ** (n - 1)), 2 ** (n - 1) - 1], [-(2 ** (n - 1)) - 1, 2 ** (n - 1)]) for n in (8, 16, 32, 64)),
        *((f"u{n}", [0, 2**n - 1], [-1, 2**n]) for n in (8, 16, 32, 64)),
        ("i8", [True, np.uint64(3)], [1.0, 1.5, float("nan"), "1", None, np.array([1, 2]), 2**70]),
        ("u64", [np.int8(3)], [np.int8(-3), -(2**63)]),
        ("flag", [True, np.False_], [1, 2, 0.0]),
        ("f32", [1, 0.5, 3e38, float("inf"), float("nan"), 2**60], [1e39, -1e300, 2**200, 1j, "1"]),
        ("f64", [1e308, float("nan"), 2**63], [1j, 10**400]),
        ("pair", [np.array([1.0, 2.0])], [np.array([1.0, 1e300]), 1.0, np.zeros(3)]),
    ],
)
def test_attributes_take_what_fits_their_type(plugin, field, good, bad):
    pool = plugin.make_pool("Hooks-v0", 2)
    pool.reset(seed=0)
    for value in good:
        pool.set_attr(field, value)
        got = pool.get_attr(field, [1])[0]
        assert np.array_equal(np.float32(value) if field == "f32" else value, got, equal_nan=field[0] == "f")
    before = pool.get_attr(field)
    for value in bad:
        with pytest.raises(ConfigError, match=rf"expected a value that fits {field} of env 0|expected 2 values"):
            pool.set_attr(field, value)
        assert np.array_equal(pool.get_attr(field), before, equal_nan=field[0] in "fp")
