"""Fixture ``identity_service`` for pytest: a test double, reset before each test.

With tornado-idv installed, pytest imports this module in every run. So the module imports the rest
only for a use of the fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tornado_idv.double import IdentityService


@pytest.fixture(scope="session")
def _identity_service_process() -> Iterator[IdentityService]:
    from tornado_idv.double import IdentityService  # noqa: PLC0415

    with IdentityService.start() as service:
        yield service


@pytest.fixture
def identity_service(_identity_service_process: IdentityService) -> IdentityService:
    """A test double without users, one process per run or per worker of pytest-xdist."""
    _identity_service_process.reset()
    return _identity_service_process
