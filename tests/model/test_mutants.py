"""The state machine finds the bugs that it is there for: a test of the test."""

import logging

import pytest

from support.model.mutants import Bug
from support.model.mutations import BUGS, hunt

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_the_state_machine_finds(bug: Bug, caplog: pytest.LogCaptureFixture) -> None:
    """A promise is seen broken, and no other error."""
    caplog.set_level(logging.CRITICAL, "tornado_idv")  # as in the hunt, and put back after it
    assert hunt(bug)
