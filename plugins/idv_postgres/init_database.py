"""``tornado-idv postgres init``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from idv_postgres.options import NOT_INSTALLED, PostgresOptions
from idv_postgres.schema import script
from tornado_idv import CommandTools, Exit, StartError

_TIMEOUT = 10.0
"""Seconds for connecting."""


def init_database(tools: CommandTools, config: Path, name: str | None, *, apply: bool) -> None:
    """Print the SQL, or run it; exits with a message on errors."""
    with tools.exit_on_error(Exit.NO):
        backends = [each for each in tools.read_backends(config) if name in {None, each.name}]
        found = [each for each in backends if isinstance(each, PostgresOptions)]
        if not found:
            named = f" with the name {name}" if name else ""
            raise StartError(f"the configuration has no backend of the kind postgres{named}")
        options, *others = found
        if others:
            raise StartError(
                "the configuration has more than one backend of the kind postgres; choose one with "
                "--name"
            )
        if options.queries:
            raise StartError(
                f"backend {options.name}: by_nickname and by_card read tables of your own; "
                "only the option table names one that can be made"
            )
        if not apply:
            click.echo(script(options), nl=False)
            return
        asyncio.run(_apply(options))
    click.echo(f"backend {options.name}: the table and its notifications are up to date")


async def _apply(options: PostgresOptions) -> None:
    try:
        from idv_postgres.database import Connector  # noqa: PLC0415 - asyncpg may be missing
        from idv_postgres.errors import to_lookup_failed  # noqa: PLC0415
    except ModuleNotFoundError:
        raise StartError(NOT_INSTALLED) from None
    connector = Connector(options.primary_dsn, timeout=_TIMEOUT, roles=("primary",))
    try:
        with await connector.connect() as connection:
            await connection.execute(script(options))
            await connection.close(timeout=_TIMEOUT)
    except Exception as error:  # noqa: BLE001 - each is mapped
        reason = to_lookup_failed(error, with_message=True).reason
        raise StartError(f"backend {options.name}: {reason}") from None
