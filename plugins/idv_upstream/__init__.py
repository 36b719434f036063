"""The backend kind ``upstream``: users of another HTTP service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from idv_upstream.backend import UpstreamBackend
from idv_upstream.cli.commands import commands
from idv_upstream.options import UpstreamOptions
from tornado_idv import CommandTools, hookimpl

__all__ = ["UpstreamBackend", "UpstreamOptions", "idv_backend_kinds", "idv_commands"]


@hookimpl
def idv_backend_kinds() -> Mapping[str, type[UpstreamBackend]]:
    """Provide the kind ``upstream``."""
    return {"upstream": UpstreamBackend}


@hookimpl
def idv_commands(tools: CommandTools) -> Sequence[click.Command]:
    """Add ``tornado-idv upstream``."""
    return commands(tools)
