"""The backend kind ``upstream``: users of another HTTP service."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from tornado_idv import CommandTools, Kinds, hookimpl


@hookimpl
def idv_kinds() -> Kinds:
    """Provide the kind ``upstream``."""
    return Kinds(backends={"upstream": "idv_upstream.backend:UpstreamBackend"})


@hookimpl
def idv_commands(tools: CommandTools) -> Sequence[click.Command]:
    """Add ``tornado-idv upstream``."""

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
