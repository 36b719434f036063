"""A PostgreSQL server for all tests of a worker, and a database for each module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.postgres_server import (
    Database,
    PostgresServer,
    binaries,
    create_database,
    running_server,
)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    if binaries() is None:
        pytest.skip("PostgreSQL is not installed; see `make test-tools`")
    with running_server() as server:
        yield server


@pytest.fixture(scope="module")
def database(postgres_server: PostgresServer, request: pytest.FixtureRequest) -> Database:
    return create_database(postgres_server, request.module.__name__.rpartition(".")[2])
