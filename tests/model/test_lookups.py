"""No history of users, failures, purges and time leads to an answer that is a lie."""

import logging

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from support.model.lookup_machine import Lookups

pytestmark = pytest.mark.slow


def test_no_history_leads_to_a_lie(caplog: pytest.LogCaptureFixture) -> None:
    """Every answer of every history is one that the promises allow."""
    caplog.set_level(logging.CRITICAL, "tornado_idv")  # thousands of failures are logged
    run_state_machine_as_test(
        Lookups, settings=settings(max_examples=200, stateful_step_count=50, derandomize=True)
    )
