"""Users in a PostgreSQL database, which the service only reads, and the key store in one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from idv_postgres.commands import commands
from tornado_idv import CommandTools, hookimpl


@hookimpl
def idv_backend_kinds() -> Mapping[str, str]:
    """Provide the kind ``postgres``."""
    return {"postgres": "idv_postgres.backend:PostgresBackend"}


@hookimpl
def idv_key_stores() -> Mapping[str, str]:
    """Provide key stores at connection URIs."""
    key_store = "idv_postgres.key_store:PostgresKeyStore"
    return {"postgresql": key_store, "postgres": key_store}


@hookimpl
def idv_commands(tools: CommandTools) -> Sequence[click.Command]:
    """Add ``tornado-idv postgres``."""
    return commands(tools)
