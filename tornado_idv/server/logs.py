"""Where log lines go and what they look like; what must never be in them is kept out."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog

from tornado_idv.errors import format_traceback
from tornado_idv.web.access import AccessLog

LogFormat = Literal["auto", "console", "json"]

# Tornado logs what it refuses, header values with the key among them.
_TALKATIVE = "tornado.general"
# These log errors that nobody foresaw, with the text of the error.
_LAST_RESORTS = ("tornado.application", "asyncio")
# At DEBUG these log bound parameters and URLs.
_PINNED = ("aiosqlite", "asyncio", "aiohttp")


def configure_logging(level: str, log_format: LogFormat) -> None:
    """Sends all logs to standard error, as lines for people or as JSON for machines.

    ``auto`` is for people on a terminal and for machines elsewhere.
    """
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
        if _is_for_people(log_format)
        else structlog.processors.JSONRenderer()
    )
    handler = logging.StreamHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                structlog.stdlib.add_log_level,
                structlog.stdlib.add_logger_name,
                structlog.stdlib.ExtraAdder(),
                structlog.processors.TimeStamper(fmt="iso"),
            ],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                renderer,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    keep_out_secrets()


def open_access_log(level: str, log_format: LogFormat) -> AccessLog | None:
    """The log of answers on standard error, or none above level ``info``."""
    if level not in ("debug", "info"):
        return None
    return AccessLog(_write_out, for_people=_is_for_people(log_format))


def _write_out(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _is_for_people(log_format: LogFormat) -> bool:
    return log_format == "console" or (log_format == "auto" and sys.stderr.isatty())


def keep_out_secrets() -> None:
    """Silences the libraries' loggers that tell what was sent."""
    logging.getLogger(_TALKATIVE).addFilter(_name_only)
    for name in _LAST_RESORTS:
        logging.getLogger(name).addFilter(_trace_only)
    for name in _PINNED:
        logging.getLogger(name).setLevel(max(logging.INFO, logging.getLogger().level))


def _name_only(record: logging.LogRecord) -> bool:
    """Keeps the fact that Tornado refused a request, and drops its bytes."""
    if record.args:
        record.msg, record.args = "a request could not be read", None
    record.exc_info = None
    return True


def _trace_only(record: logging.LogRecord) -> bool:
    """Keeps where code failed, and drops the values it failed with."""
    if record.exc_info and record.exc_info[1]:
        record.msg = f"failed unforeseen:\n{format_traceback(record.exc_info[1])}"
        record.args = record.exc_info = None
    return True
