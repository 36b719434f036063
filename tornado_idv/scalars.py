"""The scalar types of `config.yaml`: numbers, durations, sizes, patterns, paths and secrets.

Every YAML scalar reaches the settings as text; these types say what the text means. Digits
are bounded, since Python refuses, in words of its own, to read thousands of them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationInfo,
    WithJsonSchema,
)

from tornado_idv import yamltext
from tornado_idv.file_signature import FileSignature
from tornado_idv.files import read_text

_DURATION = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)(ms|s|m|h|d)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"([0-9]{1,15})(B|KiB|MiB|GiB)", re.ASCII)
_BYTES = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_WHOLE = re.compile(r"[0-9]{1,15}", re.ASCII)


def _whole(value: object) -> object:
    # Left alone, pydantic would take " 80", "+80", "8_0" and "80.0" too.
    if not isinstance(value, str):
        return value
    if not _WHOLE.fullmatch(value):
        raise ValueError("must be a whole number, written in digits alone")
    return int(value)


def _seconds(value: object) -> object:
    if not isinstance(value, str):
        return value
    match = _DURATION.fullmatch(value)
    if match is None:
        raise ValueError("not a duration; write a number and ms, s, m, h or d, like 30s")
    return float(match[1]) * _SECONDS[match[2]]


def _bytes(value: object) -> object:
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    if match is None:
        raise ValueError("not a size; write a number and B, KiB, MiB or GiB, like 16KiB")
    return int(match[1]) * _BYTES[match[2]]


def _absolute(value: object, info: ValidationInfo) -> object:
    if not isinstance(value, str):
        return value
    if not value:
        raise ValueError("a path is missing")
    if "\0" in value:
        raise ValueError("not a path; it holds a NUL character")
    base: Path = (info.context or {}).get("base_dir", Path())
    return base / value


def _pattern(text: str) -> str:
    try:
        re.compile(text, re.ASCII)
    except re.error as error:
        at = "" if error.pos is None else f"; it fails at character {error.pos + 1}"
        raise ValueError(f"not a regular expression{at}") from None
    except (ValueError, OverflowError, RecursionError):
        raise ValueError("not a regular expression that can be used") from None
    return text


class FileSecret(SecretStr):
    """A secret that stands in a file, and is read again when the file has changed.

    A file that is gone, empty or no text leaves the secret as it was: it may be about to be
    written. It is looked at once a second at most; ``timer`` gives seconds.
    """

    look_every: ClassVar[float] = 1.0

    def __init__(self, text: str, path: Path, timer: Callable[[], float] = time.monotonic) -> None:
        super().__init__(text)
        self._path = path
        self._timer = timer
        self._looked_at = timer()
        self._signature: FileSignature | None = None

    def get_secret_value(self) -> str:
        """The secret as it is now."""
        now = self._timer()
        if now - self._looked_at >= self.look_every:
            self._looked_at = now
            self._look()
        return super().get_secret_value()

    def _look(self) -> None:
        try:
            signature = FileSignature.of(self._path)
            if signature == self._signature:
                return
            text = read_text(self._path)
        except (OSError, ValueError):
            return
        if text:
            self._secret_value, self._signature = text, signature


def _secret(value: object) -> object:
    return FileSecret(value, value.path) if isinstance(value, yamltext.FileText) else value


def _text_schema(pattern: re.Pattern[str], *examples: str) -> WithJsonSchema:
    return WithJsonSchema(
        {"type": "string", "pattern": f"^{pattern.pattern}$", "examples": list(examples)}
    )


Whole = Annotated[int, Field(strict=True), BeforeValidator(_whole)]
"""A whole number, written in digits alone."""

_TEN_YEARS = 10 * 365 * 86400.0

Duration = Annotated[
    float,
    BeforeValidator(_seconds),
    Field(ge=0, le=_TEN_YEARS),
    _text_schema(_DURATION, "250ms", "30s", "5m"),
]
"""Seconds, written ``250ms``, ``30s``, ``5m``, ``1h`` or ``7d``."""

Size = Annotated[int, BeforeValidator(_bytes), Field(ge=0), _text_schema(_SIZE, "16KiB")]
"""Bytes, written ``512B``, ``16KiB``, ``1MiB`` or ``1GiB``."""

ConfigPath = Annotated[
    Path, BeforeValidator(_absolute), WithJsonSchema({"type": "string", "minLength": 1})
]
"""A path; a relative one is relative to the folder of the configuration file."""

Secret = Annotated[SecretStr, BeforeValidator(_secret), WithJsonSchema({"type": "string"})]
"""Text that no repr shows; ``${env:NAME}`` or ``${file:path}`` keep it out of the file, too.

Written as ``${file:path}`` and nothing else, it is read again when that file changes: whoever
uses it asks for its value each time.
"""

Pattern = Annotated[str, AfterValidator(_pattern)]
"""A regular expression, of which only ASCII counts as letters and digits."""
