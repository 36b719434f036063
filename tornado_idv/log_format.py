"""The formats of log lines: JSON for machines, and text for people.

A record has ``timestamp``, ``level``, ``logger`` and ``event``, followed by any other fields.
"""

import json
import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.json import Encoder

Record = Struct | Mapping[str, Any]
FormatLines = Callable[[Sequence[Record]], str]
"""A function that returns the lines for log records, each with its line break."""


def _as_text(value: object) -> str:
    """Return a text for a value without a JSON form. For an exception, return only its type."""
    return type(value).__name__ if isinstance(value, BaseException) else str(value)


_encoder = Encoder(enc_hook=_as_text)
_PLAIN = re.compile(r"[!#-<>-~]+")
"""Values printed without quotes: visible ASCII except ``"`` and ``=``."""
_PRIORITIES = {"debug": 7, "warning": 4, "error": 3, "critical": 2}
"""Syslog priorities by level. For other levels, journald uses its default, 6 (informational)."""
_COLORS = {"debug": 34, "info": 32, "warning": 33, "error": 31, "critical": 31}


def json_lines(records: Sequence[Record]) -> str:
    """Return each record as one JSON object, in ASCII."""
    with suppress(UnicodeEncodeError):  # a lone surrogate, such as in a file name outside of UTF-8
        lines = _encoder.encode_lines(records)
        if lines.isascii():
            return lines.decode()
    return "".join(map(_ascii_json, records))


def _ascii_json(record: Record) -> str:
    fields = {
        name: (None if isinstance(value, float) and not math.isfinite(value) else value)
        for name, value in to_builtins(record, enc_hook=_as_text).items()
    }
    return f"{json.dumps(fields, separators=(',', ':'))}\n"


def text_lines(records: Sequence[Record], *, colored: bool = False) -> str:
    """Return each record as a line with the time, the level, the event and the other fields.

    If an event has several lines, all but the first are indented, so none looks like a separate
    record. The names of this service's loggers are omitted. With ``colored``, levels have colors
    for a terminal.
    """
    level_format = "\x1b[{color}m{:<9}\x1b[0m" if colored else "{:<9}"
    return "".join(_text_line(record, level_format) for record in records)


def for_journal(text: str, level: str) -> str:
    """Return the text to write to standard error.

    If journald reads standard error, a prefix of each line gives its priority (sd-daemon(3)).
    """
    priority, stream = _PRIORITIES.get(level), os.environ.get("JOURNAL_STREAM")
    if priority and stream and stream == "{0.st_dev}:{0.st_ino}".format(os.fstat(2)):
        return re.sub(r"^(?=.)", f"<{priority}>", text, flags=re.MULTILINE)
    return text


def _text_line(record: Record, level_format: str) -> str:
    fields = dict(to_builtins(record, enc_hook=_as_text))
    level = fields.pop("level")
    shown = level_format.format(level, color=_COLORS.get(level, 0))
    event = _printable(fields.pop("event")).replace("\n", "\n    ")
    parts = [fields.pop("timestamp"), f"[{shown}]", event]
    if fields["logger"].startswith("tornado_idv."):
        del fields["logger"]
    for name, value in fields.items():
        plain = isinstance(value, str) and _PLAIN.fullmatch(value)
        parts.append(f"{name}={value if plain else json.dumps(value)}")
    return f"{' '.join(parts)}\n"


def _printable(text: str) -> str:
    """Return the text with control characters escaped, because a terminal would obey them."""
    return "".join(
        each if each.isprintable() or each == "\n" else repr(each)[1:-1] for each in text
    )


def format_time(seconds: float) -> str:
    """Return a Unix time in ISO 8601 format, in UTC with milliseconds."""
    milliseconds = int(seconds * 1000)
    second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(milliseconds // 1000))
    return f"{second}.{milliseconds % 1000:03}Z"
