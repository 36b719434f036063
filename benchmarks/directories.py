"""A `Directory` with one backend, built as in the service."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks import dataset
from tornado_idv.config.load import ConfigFile
from tornado_idv.lookup.directory import Directory
from tornado_idv.lookup.guard import Guard
from tornado_idv.registry import installed_kinds, plugin_manager
from tornado_idv.service.directories import open_directory


def directory_over(kind: str, file: Path) -> AbstractAsyncContextManager[tuple[Directory, Guard]]:
    """Open a directory over a file with default settings."""
    return directory_of({"kind": kind, "path": file.name}, file.with_suffix(".config.yaml"))


@asynccontextmanager
async def directory_of(
    options: Mapping[str, Any], config: Path, **settings: Any
) -> AsyncIterator[tuple[Directory, Guard]]:
    """Open a directory with these backend options. Yield it and the guard of the backend.

    ``settings`` are sections of the configuration, by name.
    """
    manager = plugin_manager()
    backends = [{"name": "measured", **options}]
    document = {"profile_sites": [dataset.SITE], "backends": backends, **settings}
    await asyncio.to_thread(config.write_text, json.dumps(document), encoding="utf-8")
    loaded = ConfigFile.read(config).load(installed_kinds(manager), {})
    async with open_directory(loaded, manager) as directory:
        (guard,) = directory.guards
        yield directory, guard
