"""Backends over the databases of a PostgreSQL server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from idv_postgres.backend import PostgresBackend
from support.databases.postgres_server import Database
from support.fakes.outcomes import outcome
from tornado_idv import Query
from tornado_idv.registry import opened_backend


def backend_of(database: Database, case: str = "preserve", **options: Any) -> PostgresBackend:
    """Return a backend over the table of a database, with time for a busy machine."""
    given = {"name": "tested", "kind": "postgres", "dsn": database.dsn, "timeout": "5s", **options}
    context = {"nickname_case": case}
    parsed: Any = PostgresBackend.options_type.model_validate(given, context=context)
    return PostgresBackend(parsed)


@asynccontextmanager
async def serving(
    database: Database, case: str = "preserve", **options: Any
) -> AsyncIterator[PostgresBackend]:
    backend = backend_of(database, case, **options)
    async with opened_backend(backend):
        yield backend


async def eventually(backend: PostgresBackend, expected: str, query: Query | None = None) -> None:
    """Wait until a lookup ends so; before it may not end by "not found"."""
    async with asyncio.timeout(10):
        while not (ended := await outcome(backend, query)).startswith(expected):
            assert ended != "not found"
            await asyncio.sleep(0.01)
