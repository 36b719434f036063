"""Tries what `serve` needs beside valid settings: TLS files, key store, backends, patterns."""

from __future__ import annotations

import logging
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import NamedTuple

from tornado_idv.backend import AnyBackend, BackendOptions
from tornado_idv.config.load import locate
from tornado_idv.config.locations import dotted
from tornado_idv.config.patterns import slow_patterns
from tornado_idv.config.settings import KeySettings, Settings
from tornado_idv.errors import ConfigError, IdvError, KeyStoreError, Problem, StartError
from tornado_idv.keys.store import KeyStore
from tornado_idv.registry import build_backends, open_backends
from tornado_idv.server.keys import key_conflicts
from tornado_idv.server.service import api_key
from tornado_idv.server.tls import tls_context

_SLOW = (
    "some nicknames take this regular expression very long to refuse, and every other request "
    "waits meanwhile; avoid repetitions within repetitions, such as (a+)+"
)
_OPEN_TO_OTHERS = "other users have access to the key store; chmod 600 takes it away"


class DryRun(NamedTuple):
    """What went wrong, each at the position of its setting."""

    problems: list[Problem]
    warnings: list[Problem]


async def dry_run(path: Path, settings: Settings, kinds: Mapping[str, type[AnyBackend]]) -> DryRun:
    """Load the TLS files and the key store, and open each backend, of the file at ``path``."""
    result = DryRun([], [])
    if settings.server.tls is not None:
        try:
            tls_context(settings.server.tls)
        except StartError as error:
            result.problems.append(_problem(path, "server", "tls", message=str(error)))
    if settings.auth.store is not None:
        _try_key_store(path, settings.auth.store, settings.auth.keys, result)
    for i, options in enumerate(settings.backends):
        with _logged_warnings() as warnings:
            messages = await _open(kinds, options)
        result.problems.extend(_problem(path, "backends", i, message=each) for each in messages)
        result.warnings.extend(
            _problem(path, "backends", i, message=each.getMessage()) for each in warnings
        )
    return result


def _try_key_store(
    path: Path, store_path: Path, entries: Iterable[KeySettings], result: DryRun
) -> None:
    try:
        with KeyStore.opened(store_path, read_only=True) as store:
            store.check_pages()
            stored = [key for record in store.records() for key in record.api_keys()]
    except KeyStoreError as error:
        result.problems.append(_problem(path, "auth", "store", message=str(error)))
        return
    for conflict in key_conflicts([api_key(each) for each in entries], stored, store_path):
        result.problems.append(_problem(path, *conflict.steps, message=str(conflict)))
    if store_path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        result.warnings.append(_problem(path, "auth", "store", message=_OPEN_TO_OTHERS))


def pattern_warnings(path: Path, settings: Settings) -> list[Problem]:
    """Return a warning for each regular expression that some nickname makes slow."""
    return [_problem(path, *steps, message=_SLOW) for steps in slow_patterns(settings)]


def _problem(path: Path, *steps: int | str, message: str) -> Problem:
    return Problem(str(path), *locate(path, *steps), dotted(steps), message)


async def _open(kinds: Mapping[str, type[AnyBackend]], options: BackendOptions) -> list[str]:
    try:
        async with open_backends(build_backends(kinds, [options])):
            return []
    except ConfigError as error:
        return error.lines(error.problems)
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
