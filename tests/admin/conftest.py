"""A service with an admin listener on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes.admin import WITH_ADMIN
from support.processes.service import FIXTURE, serving
from tornado_idv.service.service import Service


@pytest.fixture(autouse=True)
def users(tmp_path: Path) -> None:
    """Writes the users of `WITH_ADMIN`."""
    (tmp_path / "users.yaml").write_text(FIXTURE, encoding="utf-8")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with serving(WITH_ADMIN, tmp_path) as running:
        yield running
