"""Destination and format of log lines."""

import logging
import os
import select
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from select import PIPE_BUF
from typing import Any, Literal

from tornado_idv.errors import format_traceback
from tornado_idv.log_format import FormatLines, for_journal, format_time, json_lines, text_lines
from tornado_idv.logs.writer import LogWriter
from tornado_idv.web.access_log import AccessLog, Ids

LogFormat = Literal["auto", "console", "json"]
_Fields = dict[str, Any]

AUDIT = "tornado_idv.audit"
"""The logger of operators' actions. Its lines are written at every log level."""
_MAX_DIRECT = 600
"""Maximum characters of a value in direct logging: 3,600 bytes of JSON, less than `PIPE_BUF`."""
_RELOAD = "tornado_idv.service.reload"
"""The logger of reload results. Its lines are never folded."""
_STDERR = 2
_FOLD_INTERVAL = 10.0
_MAX_FOLDS = 256
_STANDARD_ATTRIBUTES = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
"""Standard attributes of a `logging.LogRecord`. All others are ``extra`` fields."""


def keep_out_secrets() -> None:
    """Remove request data from the log lines of libraries."""
    logging.getLogger("tornado.general").addFilter(_without_request_bytes)
    for name in ("tornado.application", "asyncio"):
        logging.getLogger(name).addFilter(_without_message)
    for name in ("aiosqlite", "asyncio", "aiohttp"):  # DEBUG lines have bound parameters and URLs
        logging.getLogger(name).setLevel(max(logging.INFO, logging.getLogger().level))


def _without_request_bytes(record: logging.LogRecord) -> bool:
    """Remove the bytes of a rejected request from Tornado's log line: they may contain the key."""
    if record.args:
        record.msg, record.args = "a request could not be read", None
    record.exc_info = None
    return True


def _without_message(record: logging.LogRecord) -> bool:
    """Log the stack trace of an unhandled exception. Its message may contain input, so omit it."""
    if record.exc_info and record.exc_info[1]:
        record.msg = f"unhandled exception:\n{format_traceback(record.exc_info[1])}"
        record.args = record.exc_info = None
    return True


@dataclass(frozen=True)
class LogOutput:
    """The destination of log lines. ``access`` is ``None`` without an access log."""

    writer: LogWriter
    access: AccessLog | None
    handler: "FoldingHandler"

    def close(self) -> None:
        """Write all pending lines. If the reader of standard error stalls, drop them."""
        if self.access is not None:
            self.access.flush()
        self.handler.end_folds()
        self.writer.close()


def configure_logging(
    level: str, log_format: LogFormat, ids: Ids = "none", *, shared: bool = False
) -> LogOutput:
    """Send all logs to standard error, as lines of text or JSON.

    ``auto`` is text on a terminal, and JSON otherwise. Above level ``info`` there is no access log.
    ``ids`` selects how the access log names users. With ``shared``, other processes write to
    standard error, too. Close the returned output at the end, to write pending lines.
    """
    format_lines = _select_format(log_format)
    # A single process writes all pending lines together: after each write, the writer's thread
    # waits for the interpreter lock. Writes of 4 KiB cost a tenth more CPU time per response
    # (CPython 3.11).

    def describe_loss(lines: int) -> str:
        text = f"{lines} log lines dropped: standard error could not be written to in time"
        return _format_event(format_lines, _describe("warning", __name__, text))

    writer = LogWriter(_write_whole_lines if shared else _write_to_stderr, describe_loss)
    handler = FoldingHandler(lambda fields: writer.put(_format_event(format_lines, fields)))
    writer.on_tick = handler.expire
    _install(handler, level)
    is_logged = level in ("debug", "info")
    access = AccessLog(writer.put, format_lines, ids) if is_logged else None
    return LogOutput(writer, access, handler)


def configure_direct_logging(level: str, log_format: LogFormat) -> None:
    """Send all logs to standard error without a thread, for a process that forks.

    If the pipe is full, a line is dropped, because no write may block. Long values are truncated.
    """
    format_lines = _select_format(log_format)

    def write(fields: _Fields) -> None:
        for name, value in fields.items():
            if isinstance(value, str) and len(value) > _MAX_DIRECT:
                fields[name] = f"{value[:_MAX_DIRECT]} ... (cut)"
        # A writable pipe has room for `PIPE_BUF` bytes, so the write of a line does not block.
        if select.select([], [_STDERR], [], 0)[1]:
            with suppress(OSError):
                os.write(_STDERR, _format_event(format_lines, fields).encode())

    _install(LineHandler(write), level)


def _install(handler: logging.Handler, level: str) -> None:
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    logging.getLogger(AUDIT).setLevel(logging.INFO)
    keep_out_secrets()


class LineHandler(logging.Handler):
    """Passes the fields of log records to ``write``."""

    def __init__(self, write: Callable[[_Fields], object]) -> None:
        super().__init__()
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._write_record(record, _fields(record))
        except Exception as error:  # noqa: BLE001 - a wrong log call must not fail its caller
            # Without the arguments: they may contain input.
            where = f"{record.pathname}:{record.lineno}"
            event = f"a log call failed with {type(error).__name__}: {where}"
            self._write(_describe("error", __name__, event))

    def _write_record(self, _: logging.LogRecord, fields: _Fields) -> None:
        self._write(fields)


@dataclass(slots=True)
class _Fold:
    """A written event, and the number of its repetitions since it was written."""

    logger: str
    event: str
    level: str
    until: float
    repeated: int = 0


class FoldingHandler(LineHandler):
    """Deduplicates warnings and errors: a repeated event is suppressed and counted.

    In the 10 s after an event is written, its repetitions are only counted. Then `expire` writes
    a repeated event with its count, and counts for another 10 s. At most 256 different events are
    counted: one more ends the 10 s of the oldest event early. ``clock`` returns seconds.
    """

    lock: threading.RLock  # reentrant, as the garbage collector may run code that logs

    def __init__(
        self, write: Callable[[_Fields], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(write)
        self._clock = clock
        self._folds: dict[tuple[str, str], _Fold] = {}  # the oldest first

    def _write_record(self, record: logging.LogRecord, fields: _Fields) -> None:
        # Results of reloads are never folded: each operator must see the result.
        if record.levelno >= logging.WARNING and record.name != _RELOAD:
            self.expire()
            logger, event = fields["logger"], fields["event"]
            if (fold := self._folds.get((logger, event))) is not None:
                fold.repeated += 1
                return
            if len(self._folds) >= _MAX_FOLDS:
                self._remove_oldest()
            until = self._clock() + _FOLD_INTERVAL
            self._folds[logger, event] = _Fold(logger, event, fields["level"], until)
        self._write(fields)

    def expire(self) -> None:
        """End all expired intervals. Begin a new interval for each repeated event."""
        with self.lock:
            now = self._clock()
            while self._folds and next(iter(self._folds.values())).until <= now:
                fold = self._remove_oldest()
                if fold.repeated:
                    fold.repeated, fold.until = 0, now + _FOLD_INTERVAL
                    self._folds[fold.logger, fold.event] = fold

    def end_folds(self) -> None:
        """Write all repeated events."""
        with self.lock:
            while self._folds:
                self._remove_oldest()

    def _remove_oldest(self) -> _Fold:
        fold = self._folds.pop(next(iter(self._folds)))
        if fold.repeated:
            fields = _describe(fold.level, fold.logger, fold.event)
            self._write({**fields, "repeated": fold.repeated})
        return fold


def _format_event(format_lines: FormatLines, fields: _Fields) -> str:
    return for_journal(format_lines([fields]), fields["level"])


def _select_format(log_format: LogFormat) -> FormatLines:
    on_terminal = sys.stderr.isatty()
    if log_format == "json" or (log_format == "auto" and not on_terminal):
        return json_lines
    return partial(text_lines, colored=on_terminal)


def _fields(record: logging.LogRecord) -> _Fields:
    """Return the fields of a line. For an exception, add type and stack, but not its message."""
    event = record.getMessage()
    if record.exc_info and record.exc_info[1]:
        event += f"\n{format_traceback(record.exc_info[1])}"
    fields = _describe(record.levelname.lower(), record.name, event, record.created)
    for name, value in vars(record).items():
        if name not in _STANDARD_ATTRIBUTES:
            fields.setdefault(name, value)  # a plugin's `extra` may use the name of a field
    return fields


def _describe(level: str, logger: str, event: str, created: float | None = None) -> _Fields:
    timestamp = format_time(time.time() if created is None else created)
    return {"timestamp": timestamp, "level": level, "logger": logger, "event": event}


def _write_whole_lines(data: memoryview) -> int:
    """Write as many whole lines as fit in one atomic write, or one longer line.

    Writes of other processes to the same pipe never come between these lines.
    """
    end = len(data)
    if end > PIPE_BUF:
        end = bytes(data[:PIPE_BUF]).rfind(b"\n") + 1 or bytes(data).find(b"\n") + 1 or end
    return _write_to_stderr(data[:end])


def _write_to_stderr(data: memoryview) -> int:
    """Write to the file descriptor, not to `sys.stderr`.

    While a write to `sys.stderr` blocks, the thread holds the lock of the stream. If Python cannot
    get this lock at exit, it aborts the process.
    """
    try:
        return os.write(_STDERR, data)
    except BlockingIOError:  # another process has made the shared pipe non-blocking
        select.select([], [_STDERR], [])
        return 0
