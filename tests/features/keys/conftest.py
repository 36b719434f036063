"""Key stores of the commands: a file, and a schema in PostgreSQL."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from idv_postgres.key_store import PostgresKeyStore
from support.databases.key_stores import postgres_place
from support.databases.postgres_server import Database


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.db"


@pytest.fixture
def in_postgres(database: Database) -> Iterator[PostgresKeyStore]:
    """A place for a key store, where there is none."""
    with closing(postgres_place(database)) as location:
        yield location
