"""The backend kind ``postgres``, and key stores in a PostgreSQL database."""

from collections.abc import Sequence
from pathlib import Path

import click

from tornado_idv import CommandTools, Kinds, hookimpl


@hookimpl
def idv_kinds() -> Kinds:
    """Provide the kind ``postgres``, and key stores at connection URIs of PostgreSQL."""
    key_store = "idv_postgres.key_store:PostgresKeyStore"
    return Kinds(
        backends={"postgres": "idv_postgres.backend:PostgresBackend"},
        key_stores={"postgresql": key_store, "postgres": key_store},
    )


@hookimpl
def idv_commands(tools: CommandTools) -> Sequence[click.Command]:
    """Add the command ``tornado-idv postgres``."""

    @click.group()
    def postgres() -> None:
        """Create the table of a PostgreSQL backend."""

    command = "tornado-idv postgres init"

    @postgres.command(epilog=f"\b\nExamples:\n  {command} | psql\n  {command} --apply")
    @tools.config_option
    @click.option("--name", help="The backend. Required if several have the kind postgres.")
    @click.option("--apply", is_flag=True, help="Run the SQL in the database of the backend.")
    def init(config_path: Path, name: str | None, *, apply: bool) -> None:
        """Print the SQL of the table, its unique indexes and its notifications.

        Names come from the options of the backend. A second run changes nothing.
        """
        from idv_postgres.schema import init_database  # noqa: PLC0415 - not for `--help`

        init_database(tools, config_path, name, apply=apply)

    return [postgres]
