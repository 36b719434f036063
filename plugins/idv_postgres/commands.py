"""The command ``tornado-idv postgres init``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tornado_idv import CommandTools


def commands(tools: CommandTools) -> list[click.Command]:
    """Return the command group of this plugin."""

    @click.group()
    def postgres() -> None:
        """Make the table of a PostgreSQL backend."""

    @postgres.command()
    @tools.config_option
    @click.option("--name", help="The backend, where several are of the kind postgres.")
    @click.option("--apply", is_flag=True, help="Run the SQL in the database of the backend.")
    def init(config_path: Path, name: str | None, *, apply: bool) -> None:
        """Print the SQL of the table, its unique indexes and its notifications.

        It can be run again, and changes nothing then. Options of the backend give the names.
        """
        from idv_postgres.init import init_database  # noqa: PLC0415 - not for `--help`

        init_database(tools, config_path, name, apply=apply)

    return [postgres]
