"""A `Directory` with one backend, built as the service builds it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tornado_idv.config.load import load
from tornado_idv.lookup.directory import Directory
from tornado_idv.lookup.guard import Guard
from tornado_idv.registry import backend_kinds, plugin_manager
from tornado_idv.service.directories import open_directory

_CONFIG = """\
profile_sites: ["https://profiles.example"]
backends:
  - {{name: measured, kind: {kind}, path: "{file}"}}
"""


@asynccontextmanager
async def directory_over(kind: str, file: Path) -> AsyncIterator[tuple[Directory, Guard]]:
    """Open a directory with default settings; yield it and the guard of its backend."""
    manager = plugin_manager()
    config = file.with_suffix(".config.yaml")
    config.write_text(_CONFIG.format(kind=kind, file=file.name), encoding="utf-8")
    settings = load(config, backend_kinds(manager), {})
    async with open_directory(settings, manager) as directory:
        (guard,) = directory.guards
        yield directory, guard
