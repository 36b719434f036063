"""Destination and format of log lines."""

from __future__ import annotations

import logging
import os
import select
import sys
from dataclasses import dataclass
from typing import Literal

import structlog

from tornado_idv.server.log_filters import keep_out_secrets
from tornado_idv.server.log_writer import LogWriter
from tornado_idv.web.access_log import AccessLog

LogFormat = Literal["auto", "console", "json"]

_log = logging.getLogger(__name__)
_STDERR = 2


@dataclass(frozen=True)
class LogOutput:
    """The destination of log lines; ``access`` is ``None`` if responses are not logged."""

    writer: LogWriter
    access: AccessLog | None

    def close(self) -> None:
        """Write what is left, unless the reader of standard error stalls."""
        if self.access is not None:
            self.access.flush()
        self.writer.close()


def configure_logging(level: str, log_format: LogFormat) -> LogOutput:
    """Send all logs to standard error, as lines for people or as JSON for machines.

    ``auto`` is for people on a terminal and for machines elsewhere. The access log is left out
    above level ``info``. Close the returned output at the end: until then lines may wait.
    """
    for_people = log_format == "console" or (log_format == "auto" and sys.stderr.isatty())
    formatter = _formatter(for_people=for_people)
    writer = LogWriter(_write_to_stderr, lambda lines: _describe_loss(formatter, lines))
    handler = _BufferedHandler(writer)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    keep_out_secrets()
    has_access_log = level in ("debug", "info")
    return LogOutput(
        writer, AccessLog(writer.put, for_people=for_people) if has_access_log else None
    )


class _BufferedHandler(logging.Handler):
    """Formats records and leaves the writing to a `LogWriter`."""

    def __init__(self, writer: LogWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001 - a wrong log call must not fail its caller
            self.handleError(record)
        else:
            self._writer.put(f"{line}\n")


def _formatter(*, for_people: bool) -> logging.Formatter:
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
        if for_people
        else structlog.processors.JSONRenderer()
    )
    return structlog.stdlib.ProcessorFormatter(
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


def _describe_loss(formatter: logging.Formatter, lines: int) -> str:
    """Return the log line that reports dropped lines."""
    text = "%d log lines dropped: standard error could not be written to in time"
    record = _log.makeRecord(_log.name, logging.WARNING, __file__, 0, text, (lines,), None)
    return f"{formatter.format(record)}\n"


def _write_to_stderr(data: memoryview) -> int:
    """Write to the descriptor itself.

    A thread that is stuck in a write to `sys.stderr` holds its lock, and Python aborts at exit
    when it cannot have that lock.
    """
    try:
        return os.write(_STDERR, data)
    except BlockingIOError:  # another process that shares the pipe made it non-blocking
        select.select([], [_STDERR], [])
        return 0
