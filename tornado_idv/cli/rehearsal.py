"""The configured backends opened once, to tell what would keep the service from starting."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tornado_idv.backend import AnyBackend, BackendOptions
from tornado_idv.config.load import locate
from tornado_idv.config.names import dotted
from tornado_idv.config.patterns import slow_patterns
from tornado_idv.config.settings import Settings
from tornado_idv.errors import ConfigError, IdvError, Problem, StartError
from tornado_idv.registry import build_backends, opened
from tornado_idv.server.service import tls_context


class Rehearsal(NamedTuple):
    """What was told while the backends opened, at the places of their entries."""

    problems: list[Problem]
    warnings: list[Problem]


async def rehearse(
    path: Path, settings: Settings, kinds: Mapping[str, type[AnyBackend]]
) -> Rehearsal:
    """Loads the TLS files of the configuration at ``path``, opens and closes each backend."""
    rehearsal = Rehearsal([], [])
    if settings.server.tls is not None:
        try:
            tls_context(settings.server.tls)
        except StartError as error:
            place = (str(path), *locate(path, "server", "tls"), "server.tls")
            rehearsal.problems.append(Problem(*place, str(error)))
    for i, options in enumerate(settings.backends):
        place = (str(path), *locate(path, "backends", i), f"backends[{i}]")
        with _warnings() as warnings:
            problems = await _problems(kinds, options)
        rehearsal.problems.extend(Problem(*place, text) for text in problems)
        rehearsal.warnings.extend(Problem(*place, text) for text in warnings)
    return rehearsal


def pattern_warnings(path: Path, settings: Settings) -> list[Problem]:
    """Warn of regular expressions that a hostile nickname makes slow."""
    message = (
        "some nicknames take this regular expression very long to refuse, and every other "
        "request waits meanwhile; avoid repetitions within repetitions, such as (a+)+"
    )
    return [
        Problem(str(path), *locate(path, *steps), dotted(steps), message)
        for steps in slow_patterns(settings)
    ]


async def _problems(kinds: Mapping[str, type[AnyBackend]], options: BackendOptions) -> list[str]:
    try:
        async with opened(build_backends(kinds, [options])):
            return []
    except ConfigError as error:
        return error.lines(error.problems)
    except IdvError as error:
        return [str(error)]


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """What is logged as a warning or worse meanwhile; nothing else of the log is shown."""
    listener = _Listener()
    root = logging.getLogger()
    before, root.handlers = root.handlers, [listener]
    try:
        yield listener.texts
    finally:
        root.handlers = before


class _Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
