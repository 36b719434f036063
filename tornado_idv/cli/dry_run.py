"""Tries what `serve` needs beside valid settings: TLS files, backends, regular expressions."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import NamedTuple

from tornado_idv.backend import AnyBackend, BackendOptions
from tornado_idv.config.load import locate
from tornado_idv.config.locations import dotted
from tornado_idv.config.patterns import slow_patterns
from tornado_idv.config.settings import Settings
from tornado_idv.errors import ConfigError, IdvError, Problem, StartError
from tornado_idv.registry import build_backends, open_backends
from tornado_idv.server.service import tls_context

_SLOW = (
    "some nicknames take this regular expression very long to refuse, and every other request "
    "waits meanwhile; avoid repetitions within repetitions, such as (a+)+"
)


class DryRun(NamedTuple):
    """What went wrong, each at the position of its setting."""

    problems: list[Problem]
    warnings: list[Problem]


async def dry_run(path: Path, settings: Settings, kinds: Mapping[str, type[AnyBackend]]) -> DryRun:
    """Load the TLS files, and open and close each backend, of the configuration at ``path``."""
    result = DryRun([], [])
    if settings.server.tls is not None:
        try:
            tls_context(settings.server.tls)
        except StartError as error:
            result.problems.append(_problem(path, "server", "tls", message=str(error)))
    for i, options in enumerate(settings.backends):
        with _logged_warnings() as warnings:
            messages = await _open(kinds, options)
        result.problems.extend(_problem(path, "backends", i, message=each) for each in messages)
        result.warnings.extend(
            _problem(path, "backends", i, message=each.getMessage()) for each in warnings
        )
    return result


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
