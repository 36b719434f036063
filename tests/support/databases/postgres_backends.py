"""Backends over the databases of a PostgreSQL server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from idv_postgres.backend import PostgresBackend
from support.databases.postgres_server import Database
from tornado_idv.registry import open_backends


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
    """Open a backend over the table of a database."""
    backend = backend_of(database, case, **options)
    async with open_backends([backend]):
        yield backend
