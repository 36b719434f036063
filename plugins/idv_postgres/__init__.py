"""Users in a PostgreSQL database, which the service only reads: the kind ``postgres``."""

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
def idv_commands(tools: CommandTools) -> Sequence[click.Command]:
    """Add ``tornado-idv postgres``."""
    return commands(tools)
