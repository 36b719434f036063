"""Tries what `serve` needs beside valid settings: TLS files, key store, backends, patterns."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import NamedTuple

from tornado_idv import yaml_loader
from tornado_idv.config.load import ConfigFile
from tornado_idv.config.problems import dotted
from tornado_idv.config.settings import AuthSettings, Settings
from tornado_idv.errors import (
    ConfigError,
    IdvError,
    KeyStoreError,
    Problem,
    SettingError,
    StartError,
)
from tornado_idv.interfaces.backend import AnyBackend, BackendOptions
from tornado_idv.keys.record import EMPTY
from tornado_idv.keys.store_file import Offered, locate_store
from tornado_idv.registry import build_backends, open_backends
from tornado_idv.service.keys import key_conflicts
from tornado_idv.service.service import api_key
from tornado_idv.service.sockets import tls_context
from tornado_idv.workers.cpus import worker_count


class DryRun(NamedTuple):
    """Problems, each at the position of its setting."""

    problems: list[Problem]
    warnings: list[Problem]


async def dry_run(
    path: Path, settings: Settings, kinds: Mapping[str, type[AnyBackend]], offered: Offered
) -> DryRun:
    """Load the TLS files and the key store, and open each backend, of the file at ``path``."""
    result = DryRun([], [])
    try:
        worker_count(settings.server.workers)
    except SettingError as error:
        result.problems.append(_problem(path, *error.steps, message=str(error)))
    if settings.server.tls is not None:
        try:
            tls_context(settings.server.tls)
        except StartError as error:
            result.problems.append(_problem(path, "server", "tls", message=str(error)))
    if settings.auth.store is not None:
        # In a thread, since a key store may have an event loop of its own.
        await asyncio.to_thread(_try_key_store, path, settings.auth, offered, result)
    for i, options in enumerate(settings.backends):
        with _logged_warnings() as warnings:
            messages = await _open(kinds, options)
        result.problems.extend(_problem(path, "backends", i, message=each) for each in messages)
        result.warnings.extend(
            _problem(path, "backends", i, message=each.getMessage()) for each in warnings
        )
    return result


def _try_key_store(path: Path, auth: AuthSettings, offered: Offered, result: DryRun) -> None:
    if auth.store is None:
        return
    try:
        with (
            closing(locate_store(auth.store, offered)) as location,
            location.opened(read_only=True) as store,
        ):
            stored = store.api_keys(EMPTY).keys.values()
            warnings = location.warnings()
    except KeyStoreError as error:
        result.problems.append(_problem(path, "auth", "store", message=str(error)))
        return
    for conflict in key_conflicts([api_key(each) for each in auth.keys], stored, location.name):
        result.problems.append(_problem(path, *conflict.steps, message=str(conflict)))
    result.warnings.extend(_problem(path, "auth", "store", message=each) for each in warnings)


def setting_warnings(path: Path, settings: Settings) -> Iterator[Problem]:
    """Yield a warning for plain HTTP."""
    if settings.server.warning is not None:
        yield _problem(path, "server", "host", message=settings.server.warning)


def _problem(path: Path, *steps: int | str, message: str) -> Problem:
    mark = yaml_loader.locate(ConfigFile.read(path).tree(), steps)
    return Problem(str(path), *mark, dotted(steps), message)


async def _open(kinds: Mapping[str, type[AnyBackend]], options: BackendOptions) -> list[str]:
    try:
        async with open_backends(build_backends(kinds, [options])):
            return []
    except ConfigError as error:
        return str(error).splitlines()
    except IdvError as error:
        return [str(error)]


@contextmanager
def _logged_warnings() -> Iterator[list[logging.LogRecord]]:
    """Collect what is logged as a warning or worse; nothing else is logged meanwhile."""
    collector = BufferingHandler(sys.maxsize)
    collector.setLevel(logging.WARNING)
    root = logging.getLogger()
    before, root.handlers = root.handlers, [collector]
    try:
        yield collector.buffer
    finally:
        root.handlers = before
