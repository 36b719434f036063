"""The backend kind ``upstream``: users of another HTTP service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from idv_upstream.cli.commands import commands
from tornado_idv import CommandTools, hookimpl

if TYPE_CHECKING:
    from idv_upstream.backend import UpstreamBackend


@hookimpl
def idv_backend_kinds() -> Mapping[str, type[UpstreamBackend]]:
    """Provide the kind ``upstream``."""
    from idv_upstream.backend import UpstreamBackend  # noqa: PLC0415 - not for `--help`

    return {"upstream": UpstreamBackend}


@hookimpl
def idv_commands(tools: CommandTools) -> Sequence[click.Command]:
    """Add ``tornado-idv upstream``."""
    return commands(tools)
