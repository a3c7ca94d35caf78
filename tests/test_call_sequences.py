"""Random sequences of valid and invalid calls against a simple model.

The model knows, for every env, how many steps it took and whether it is in flight. After
any sequence the pool agrees with it: nothing crashed, nothing hung, nothing moved by a call
that raised.
"""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import envfleet
from envfleet import CallOrderError, EnvfleetError, EnvIdError, InputError

LENGTH = 4  # steps until an episode ends by itself
STEP, THROW, END = 0, 1, 4
UNSTARTED, RUNNING, ENDED, BROKEN = range(4)
# Short enough for a test, long enough that only a hang reaches it.
NEVER = 60.0

ids_strategy = st.one_of(st.none(), st.lists(st.integers(-1, 5), min_size=0, max_size=6))
good_action = st.sampled_from([STEP, STEP, STEP, STEP, END, THROW])
any_action = st.one_of(good_action, st.sampled_from([-1, 7, 99]))


class PoolMachine(RuleBasedStateMachine):
    """One env is a triple (phase, count, result waiting to be received)."""

    is_async = False

    @initialize(
        num_envs=st.integers(2, 5), num_threads=st.integers(1, 3), mode=st.sampled_from(["next_step", "disabled"])
    )
    def make(self, num_envs, num_threads, mode):
        self.num_envs, self.mode = num_envs, mode
        self.batch_size = max(1, num_envs - 1) if self.is_async else num_envs
        self.pool = envfleet.make_pool(
            "Faulty-v0",
            num_envs=num_envs,
            batch_size=self.batch_size,
            num_threads=num_threads,
            autoreset_mode=mode,
            length=LENGTH,
        )
        self.phase = [UNSTARTED] * num_envs
        self.count = [0] * num_envs
        self.expected: dict[int, tuple] = {}  # rows in flight: env -> (count, done, raised)
        self.sent_order: list[int] | None = None

    # --- what the model says -----------------------------------------------------------------

    def ids_are_right(self, ids) -> bool:
        return len(set(ids)) == len(ids) and all(0 <= i < self.num_envs for i in ids)

    def may_step(self, env) -> bool:
        return self.phase[env] == RUNNING or (self.phase[env] == ENDED and self.mode == "next_step")

    def model_step(self, env, action) -> tuple:
        if self.phase[env] == ENDED:
            return self.model_reset(env)
        if action == THROW:
            self.phase[env] = BROKEN
            return (0, False, True)
        self.count[env] += 1
        done = action == END or self.count[env] >= LENGTH
        self.phase[env] = ENDED if done else RUNNING
        return (self.count[env], done, False)

    def model_reset(self, env) -> tuple:
        self.count[env], self.phase[env] = 0, RUNNING
        return (0, False, False)

    def call(self, function):
        """The batch, whether or not an env raised."""
        try:
            return function()
        except envfleet.EnvError as error:
            return error.batch

    def check_rows(self, batch, rows):
        raised = {fault.env_id for fault in batch.faults}
        assert sorted(batch.env_id.tolist()) == sorted(rows)
        for row, env in enumerate(batch.env_id.tolist()):
            count, done, did_raise = rows[env]
            assert (env in raised) == did_raise
            assert batch.terminated[row] == done
            assert batch.obs[row, 1] == count
            assert did_raise or batch.elapsed_step[row] == count

    def actions_for(self, data, ids, strategy):
        return data.draw(st.lists(strategy, min_size=len(ids), max_size=len(ids)))

    # --- calls ---------------------------------------------------------------------------------

    @rule(data=st.data(), ids=ids_strategy, wrong_length=st.booleans())
    def step_or_send(self, data, ids, wrong_length):
        whole = ids is None
        chosen = list(range(self.num_envs)) if whole else ids
        actions = self.actions_for(data, chosen, any_action)
        if wrong_length and data.draw(st.booleans()):
            actions = [*actions, STEP]
        # A synchronous send() of no envs has tests of its own: it puts nothing in flight.
        use_send = self.is_async or (bool(chosen) and data.draw(st.booleans()))
        is_right = (
            self.ids_are_right(chosen)
            and len(actions) == len(chosen)
            and all(0 <= action < 7 for action in actions)
            and all(self.may_step(env) for env in chosen)
            and not any(env in self.expected for env in chosen)
            and not (not self.is_async and self.expected)
            and not (self.is_async and whole and self.expected)
            and not (self.is_async and whole and len(actions) == self.batch_size)
        )
        function = self.pool.send if use_send else self.pool.step
        if not is_right:
            try:
                function(actions, None if whole else chosen)
            except (InputError, CallOrderError):
                return
            raise AssertionError(f"{actions} for {chosen} was accepted")
        rows = {}
        if use_send:
            function(actions, None if whole else chosen)
            self.sent_order = chosen
        else:
            batch = self.call(lambda: function(actions, None if whole else chosen))
        rows = {env: self.model_step(env, action) for env, action in zip(chosen, actions, strict=True)}
        if use_send:
            self.expected.update(rows)
        else:
            assert batch.env_id.tolist() == chosen
            self.check_rows(batch, rows)

    @rule()
    def recv(self):
        enough = len(self.expected) >= (self.batch_size if self.is_async else 1)
        if not enough:
            try:
                self.pool.recv(timeout=NEVER)
            except CallOrderError:
                return
            raise AssertionError("recv() without enough in flight was accepted")
        batch = self.call(lambda: self.pool.recv(timeout=NEVER))
        if not self.is_async:
            assert batch.env_id.tolist() == self.sent_order
        assert len(batch) == (self.batch_size if self.is_async else len(self.expected))
        self.check_rows(batch, {env: self.expected.pop(env) for env in batch.env_id.tolist()})

    @rule()
    def reset_all(self):
        batch = self.pool.reset()
        self.expected.clear()
        self.check_rows(batch, {env: self.model_reset(env) for env in range(self.num_envs)})

    @rule(ids=st.lists(st.integers(-1, 5), min_size=0, max_size=4))
    def reset_some(self, ids):
        busy = bool(self.expected) if not self.is_async else any(env in self.expected for env in ids)
        if not self.ids_are_right(ids) or busy:
            try:
                self.pool.reset(ids)
            except (EnvIdError, CallOrderError):
                return
            raise AssertionError(f"reset({ids}) was accepted")
        batch = self.pool.reset(ids)
        assert batch.env_id.tolist() == ids
        self.check_rows(batch, {env: self.model_reset(env) for env in ids})

    @rule()
    def async_reset(self):
        if self.expected:
            try:
                self.pool.async_reset()
            except CallOrderError:
                return
            raise AssertionError("async_reset() with work in flight was accepted")
        self.pool.async_reset()
        self.expected = {env: self.model_reset(env) for env in range(self.num_envs)}
        self.sent_order = list(range(self.num_envs))

    @precondition(lambda self: not self.expected)
    @rule()
    def save_and_restore(self):
        saved = self.pool.get_state()
        steppable = [env for env in range(self.num_envs) if self.may_step(env)]
        if steppable and not self.is_async:
            self.pool.step([END] * len(steppable), steppable)
        else:
            self.pool.reset()
        self.pool.set_state(saved)

    @rule(seed=st.one_of(st.just(-1), st.just("x"), st.just([1])))
    def reset_with_a_bad_seed(self, seed):
        try:
            self.pool.reset(seed=seed)
        except EnvfleetError:
            return
        raise AssertionError(f"the seed {seed!r} was accepted")

    @invariant()
    def counts_agree(self):
        if not hasattr(self, "pool") or self.expected:
            return
        np.testing.assert_array_equal(self.pool.executor.phases(), self.phase)
        observed = self.pool.observe()[:, 1]
        for env in range(self.num_envs):
            if self.phase[env] in (RUNNING, ENDED):
                assert observed[env] == self.count[env]

    def teardown(self):
        if hasattr(self, "pool"):
            self.pool.close()


class AsyncPoolMachine(PoolMachine):
    is_async = True


_settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestSyncCalls = PoolMachine.TestCase
TestAsyncCalls = AsyncPoolMachine.TestCase
TestSyncCalls.settings = _settings
TestAsyncCalls.settings = _settings
