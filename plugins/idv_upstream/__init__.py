"""The backend kind ``upstream``: users of another HTTP service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from idv_upstream.cli.commands import commands
from tornado_idv import CommandTools, hookimpl


@hookimpl
def idv_backend_kinds() -> Mapping[str, str]:
    """Provide the kind ``upstream``."""
    return {"upstream": "idv_upstream.backend:UpstreamBackend"}


@hookimpl
def idv_commands(tools: CommandTools) -> Sequence[click.Command]:
    """Add ``tornado-idv upstream``."""
    return commands(tools)
