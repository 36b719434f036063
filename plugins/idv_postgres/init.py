"""Print or apply the schema of a backend, for ``tornado-idv postgres init``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from idv_postgres.options import NOT_INSTALLED, PostgresOptions
from idv_postgres.schema import VERSION, script, version_query
from tornado_idv import CommandTools, Exit, StartError

_TIMEOUT = 10.0
"""Seconds for connecting."""


def init_database(tools: CommandTools, config: Path, name: str | None, *, apply: bool) -> None:
    """Print the SQL, or run it; exits with a message if that is not possible."""
    with tools.exit_on_error(Exit.NO):
        loaded = tools.read(config)
        found = [each for each in loaded.backends if isinstance(each, PostgresOptions)]
        if name is not None:
            found = [each for each in found if each.name == name]
        if len(found) != 1:
            which = "no backend" if not found else "more than one backend"
            named = (
                f" with the name {name}" if name else "; choose one with --name" if found else ""
            )
            raise StartError(f"the configuration has {which} of the kind postgres{named}")
        if found[0].has_queries:
            raise StartError(
                f"backend {found[0].name}: by_nickname and by_card read tables of your own; "
                "only the option table names one that can be made"
            )
        options = found[0]
        if not apply:
            click.echo(script(options), nl=False)
            return
        was = asyncio.run(_apply(options))
    change = "unchanged" if was == VERSION else f"was {was}" if was else "new"
    click.echo(f"backend {options.name}: the schema has version {VERSION} ({change})")


async def _apply(options: PostgresOptions) -> int:
    """Run the SQL, and return the version that there was, 0 for none."""
    try:
        from idv_postgres.database import Connector  # noqa: PLC0415 - asyncpg may be missing
        from idv_postgres.errors import to_lookup_failed  # noqa: PLC0415
    except ModuleNotFoundError:
        raise StartError(NOT_INSTALLED) from None
    notify = options.notify
    dsn = options.dsn if notify is None or notify.dsn is None else notify.dsn
    connector = Connector(dsn, timeout=_TIMEOUT, roles=("primary",))
    try:
        connection = await connector.connect(statement_cache_size=0)
        try:
            was = int(await connection.fetchval(version_query(options)) or 0)
            if was > VERSION:
                raise StartError(f"the schema has version {was}, made by a later tornado-idv")
            await connection.execute(script(options))
        finally:
            await connection.close(timeout=_TIMEOUT)
    except StartError:
        raise
    except Exception as error:  # noqa: BLE001 - each is mapped
        reason = to_lookup_failed(error, with_message=True).reason
        raise StartError(f"backend {options.name}: {reason}") from None
    return was
