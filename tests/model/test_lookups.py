"""Every answer is right, whatever the history of users, failures, purges and time."""

import logging

import pytest
from hypothesis import seed, settings
from hypothesis.stateful import run_state_machine_as_test

from support.model.lookup_machine import Lookups

pytestmark = pytest.mark.slow


def test_every_answer_satisfies_the_invariants(caplog: pytest.LogCaptureFixture) -> None:
    """Every answer of every generated history is checked."""
    caplog.set_level(logging.CRITICAL, "tornado_idv")  # thousands of failures are logged
    run_state_machine_as_test(
        seed(56)(Lookups),
        settings=settings(max_examples=100, stateful_step_count=50, derandomize=True),
    )
