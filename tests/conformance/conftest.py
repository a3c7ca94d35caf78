"""make: pools of the executor under test, closed afterwards."""

from __future__ import annotations

import pytest
from subjects import SUBJECTS, why_not

# Of the ray executor these run always, and all the others with the long runs: an actor takes a second to start.
RAY_CORE = (
    "test_async_rollouts_equal_synchronous_ones[ray-9-4-5]",
    "test_first_finished_comes_first[ray]",
    "test_a_timeout_loses_nothing[ray]",
    "test_send_and_recv_of_a_synchronous_pool[ray]",
    "test_reset_drops_what_is_in_flight[ray]",
    "test_a_late_reset_is_received_before_anything_else[ray-2]",
    "test_the_exception_names_env_and_method_and_keeps_the_other_rows[ray]",
    "test_a_broken_env_is_refused_until_its_reset_rebuilds_it[ray]",
    "test_an_async_env_that_raises_completes_its_row[ray]",
    "test_restart_reports_a_truncated_row_and_goes_on[ray-next_step]",
    "test_a_fault_in_a_reset_is_restarted_into_a_first_row[ray-same_step]",
    "test_rollout_equals_the_reference[ray-SameStep-2]",
    "test_disabled_mode_refuses_ended_envs_and_moves_nobody[ray]",
    "test_seed_gives_env_i_seed_plus_i_at_any_time[ray]",
    "test_rows_of_a_partial_step_come_in_the_order_asked[ray]",
    "test_every_kind_of_array_and_what_an_env_skips_is_zero[ray]",
    "test_per_env_parameters[ray]",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        callspec = getattr(item, "callspec", None)
        if callspec is not None and callspec.params.get("make") == "ray" and item.name not in RAY_CORE:
            item.add_marker(pytest.mark.soak)


@pytest.fixture(params=SUBJECTS)
def make(request):
    reason = why_not(request.node.originalname, request.param)
    if reason is not None:
        pytest.skip(reason)
    pools = []

    def make(env_id, **options):
        pools.append(SUBJECTS[request.param](env_id, **options))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()
