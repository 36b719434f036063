"""Prepared statements of one connection to PostgreSQL."""

from __future__ import annotations

from collections.abc import Awaitable

import pytest
from asyncpg.exceptions import InFailedSQLTransactionError
from pydantic import SecretStr

from idv_postgres.connection import Connection
from idv_postgres.database import Connector
from support.databases.postgres_server import ALICE, Database

pytestmark = pytest.mark.slow


def connecting(database: Database) -> Awaitable[Connection]:
    return Connector(SecretStr(database.dsn), timeout=5).connect()


async def test_statement_is_prepared_again_after_a_change_of_its_table(database: Database) -> None:
    database.write(ALICE)
    with await connecting(database) as connection:
        before = await connection.fetch_prepared("SELECT * FROM users")
        database.run("ALTER TABLE users ADD COLUMN more text DEFAULT 'x'")
        after = await connection.fetch_prepared("SELECT * FROM users")
        assert after == [(*before[0], "x")]
        async with connection.transaction():
            await connection.fetch_prepared("SELECT")
            database.run("ALTER TABLE users ADD COLUMN again text")
            with pytest.raises(InFailedSQLTransactionError):
                await connection.fetch_prepared("SELECT * FROM users")
        assert await connection.fetch_prepared("SELECT * FROM users") == [(*after[0], None)]
    database.clear()


async def test_statements_that_are_no_longer_used_do_not_stay_prepared(database: Database) -> None:
    with await connecting(database) as connection:
        for number in range(100):
            assert await connection.fetch_prepared(f"SELECT {number}") == [(number,)]
        (count,) = await connection.fetchrow("SELECT count(*) FROM pg_prepared_statements")
        assert 0 < count <= 20
