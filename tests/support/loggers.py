"""Logging, put back as it was after a test that configured it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

_TOUCHED = (
    "tornado.general",
    "tornado.application",
    "asyncio",
    "aiosqlite",
    "aiohttp",
)


@contextmanager
def put_back() -> Iterator[None]:
    """Whatever is done to the loggers inside is undone."""
    loggers = [logging.getLogger(), *map(logging.getLogger, _TOUCHED)]
    before = [(each, each.handlers[:], each.filters[:], each.level) for each in loggers]
    try:
        yield
    finally:
        for logger, handlers, filters, level in before:
            logger.handlers, logger.filters = handlers, filters
            logger.setLevel(level)
