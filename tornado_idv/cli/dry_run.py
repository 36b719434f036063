"""Tries what `serve` needs beside valid settings: TLS files, key store, backends, patterns."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from logging.handlers import BufferingHandler
from pathlib import Path

from pydantic import SecretStr

from tornado_idv import yaml_loader
from tornado_idv.config.load import ConfigFile
from tornado_idv.config.locations import dotted
from tornado_idv.config.settings import Settings
from tornado_idv.errors import ConfigError, IdvError, Problem, SettingError
from tornado_idv.interfaces.backend import AnyBackend
from tornado_idv.keys.store_file import Offered, locate_store
from tornado_idv.registry import build_backends, open_backends
from tornado_idv.service.keys import key_conflicts
from tornado_idv.service.service import api_key
from tornado_idv.service.sockets import tls_context
from tornado_idv.workers.cpus import worker_count


@dataclass
class DryRun:
    """Problems and warnings of the file at ``path``, each at the position of its setting."""

    path: Path
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)

    async def run(
        self, settings: Settings, kinds: Mapping[str, type[AnyBackend]], offered: Offered
    ) -> None:
        """Load the TLS files and the key store, and open each backend."""
        with self._problems_at():
            worker_count(settings.server.workers)
        if settings.server.tls is not None:
            with self._problems_at("server", "tls"):
                tls_context(settings.server.tls)
        if settings.auth.store is not None:
            # In a thread, since a key store may have an event loop of its own.
            await asyncio.to_thread(self._try_key_store, settings, settings.auth.store, offered)
        for i, options in enumerate(settings.backends):
            with _logged_warnings() as warnings, self._problems_at("backends", i):
                async with open_backends(build_backends(kinds, [options])):
                    pass
            for each in warnings:
                self.warn(each.getMessage(), "backends", i)

    def warn(self, message: str, *steps: int | str) -> None:
        """Add a warning about a setting."""
        self.warnings.append(self._problem(message, steps))

    def _try_key_store(
        self, settings: Settings, setting: Path | SecretStr, offered: Offered
    ) -> None:
        with self._problems_at("auth", "store"):
            with (
                closing(locate_store(setting, offered)) as location,
                location.opened(read_only=True) as store,
            ):
                store.check()
                stored = [key for record in store.records() for key in record.api_keys()]
                for each in location.warnings():
                    self.warn(each, "auth", "store")
            configured = [api_key(each) for each in settings.auth.keys]
            for conflict in key_conflicts(configured, stored, location.name):
                self.problems.append(self._problem(str(conflict), conflict.steps))

    @contextmanager
    def _problems_at(self, *steps: int | str) -> Iterator[None]:
        """Add an error of ours, at the setting that it names or else at this one."""
        try:
            yield
        except ConfigError as error:
            self.problems += (self._problem(each, steps) for each in error.lines(error.problems))
        except SettingError as error:
            self.problems.append(self._problem(str(error), error.steps))
        except IdvError as error:
            self.problems.append(self._problem(str(error), steps))

    def _problem(self, message: str, steps: tuple[int | str, ...]) -> Problem:
        mark = yaml_loader.locate(ConfigFile.read(self.path).tree(), steps)
        return Problem(str(self.path), *mark, dotted(steps), message)


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
