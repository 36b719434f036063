"""Logging, put back as it was after a test that configured it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_TOUCHED = ("tornado.general", "tornado.application", "asyncio", "aiosqlite", "aiohttp")


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


def log_everything(caplog: pytest.LogCaptureFixture) -> None:
    """Set the level debug for every logger, also for those with a level of their own."""
    caplog.set_level(logging.DEBUG)
    for name in list(logging.root.manager.loggerDict):
        # Each change of a level empties a cache of every logger.
        if logging.getLogger(name).level > logging.DEBUG:
            caplog.set_level(logging.DEBUG, logger=name)
