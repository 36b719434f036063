"""What the tests of faults share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.processes.loggers import debug_log

pytest.register_assert_rewrite("support.faults.client")


@pytest.fixture
def no_secret_is_logged() -> Iterator[None]:
    """Whatever fails, and at the level debug."""
    from support.faults.client import assert_no_secret  # noqa: PLC0415 - rewritten before

    with debug_log() as lines:
        yield
    assert_no_secret("".join(lines))
