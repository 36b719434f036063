"""The command ``tornado-idv upstream try``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tornado_idv import CommandTools


def commands(tools: CommandTools) -> list[click.Command]:
    """Return the command group of this plugin."""

    @click.group()
    def upstream() -> None:
        """Try the mapping of an upstream."""

    @upstream.command("try")
    @click.argument("name")
    @click.argument("who", metavar="@NICK|URL|DIGITS")
    @tools.config_option
    @click.option(
        "--response",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="Read this saved response (a body, or the output of curl -i), and send no request.",
    )
    @tools.json_option
    def try_(name: str, who: str, config_path: Path, response: Path | None, as_json: bool) -> None:  # noqa: FBT001 click's way
        """Look one user up in the upstream NAME, and show every step.

        The request as it is sent, the response, the result of each expression, the user or
        why there is none, and how long that would be cached. Secrets are masked; the rest
        of the response is shown as it is.
        """
        from idv_upstream.cli.try_upstream import try_upstream  # noqa: PLC0415 - not for `--help`

        try_upstream(tools, config_path, name, who, response, as_json=as_json)

    return [upstream]
