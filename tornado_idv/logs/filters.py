"""Filters that keep secrets out of log lines."""

from __future__ import annotations

import logging

from tornado_idv.errors import format_traceback

# Tornado logs the bytes of requests it rejects, the key among them.
_LOGS_REQUEST_BYTES = "tornado.general"
# These log unhandled exceptions with their messages, which may contain user input.
_LOG_UNHANDLED = ("tornado.application", "asyncio")
# At DEBUG these log bound parameters and URLs.
_PINNED = ("aiosqlite", "asyncio", "aiohttp")


def keep_out_secrets() -> None:
    """Filter the loggers of libraries that log what clients sent."""
    logging.getLogger(_LOGS_REQUEST_BYTES).addFilter(_without_request_bytes)
    for name in _LOG_UNHANDLED:
        logging.getLogger(name).addFilter(_without_message)
    for name in _PINNED:
        logging.getLogger(name).setLevel(max(logging.INFO, logging.getLogger().level))


def _without_request_bytes(record: logging.LogRecord) -> bool:
    """Log that Tornado rejected a request, without its bytes."""
    if record.args:
        record.msg, record.args = "a request could not be read", None
    record.exc_info = None
    return True


def _without_message(record: logging.LogRecord) -> bool:
    """Log the stack trace of an unhandled exception, without its message."""
    if record.exc_info and record.exc_info[1]:
        record.msg = f"unhandled exception:\n{format_traceback(record.exc_info[1])}"
        record.args = record.exc_info = None
    return True
