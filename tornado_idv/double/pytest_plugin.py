"""The pytest fixture ``identity_service``: a test double, reset before each test.

If tornado-idv is installed, every run of pytest imports this module. So it imports other modules
only when the fixture is used.
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
    """Return a test double without users. Tests share one process per worker of pytest-xdist."""
    _identity_service_process.reset()
    return _identity_service_process
