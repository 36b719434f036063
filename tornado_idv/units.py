"""Durations and sizes, read and printed with a unit as in `config.yaml`.

Digits are bounded: Python refuses to convert thousands of them, with an error of its own.
"""

from __future__ import annotations

import re

DURATION = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)(ms|s|m|h|d)", re.ASCII)
SIZE = re.compile(r"([0-9]{1,15})(B|KiB|MiB|GiB)", re.ASCII)

_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_BYTES = {"GiB": 1024**3, "MiB": 1024**2, "KiB": 1024, "B": 1}


def parse_duration(text: str) -> float:
    """Return the seconds of ``250ms``, ``30s``, ``5m``, ``1.5h`` or ``7d``.

    Raises `ValueError` with a message that does not repeat the text.
    """
    match = DURATION.fullmatch(text)
    if match is None:
        raise ValueError("not a duration; write a number and ms, s, m, h or d, like 30s")
    return float(match[1]) * _SECONDS[match[2]]


def format_duration(seconds: float) -> str:
    """Return the shortest spelling with one unit: ``5m``, ``1.5s``, ``250ms``."""
    for unit, length in _SECONDS.items():
        if length >= 1 and seconds >= length and seconds % length == 0:
            return f"{seconds / length:g}{unit}"
    return f"{seconds:g}s" if seconds > 1 or not seconds else f"{seconds * 1000:g}ms"


def parse_size(text: str) -> int:
    """Return the bytes of ``512B``, ``16KiB``, ``1MiB`` or ``1GiB``.

    Raises `ValueError` with a message that does not repeat the text.
    """
    match = SIZE.fullmatch(text)
    if match is None:
        raise ValueError("not a size; write a number and B, KiB, MiB or GiB, like 16KiB")
    return int(match[1]) * _BYTES[match[2]]


def format_size(count: int) -> str:
    """Return the shortest spelling with one unit: ``16KiB``, ``1000B``."""
    for unit, length in _BYTES.items():
        if count >= length and count % length == 0:
            return f"{count // length}{unit}"
    return f"{count}B"
