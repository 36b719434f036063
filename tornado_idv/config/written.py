"""Durations and sizes as people write them in `config.yaml`."""

from __future__ import annotations

_DURATIONS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_SIZES = {"GiB": 1024**3, "MiB": 1024**2, "KiB": 1024}


def duration(seconds: float) -> str:
    """The shortest spelling with one unit: ``5m``, ``1.5s``, ``250ms``."""
    for unit, length in _DURATIONS.items():
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:g}{unit}"
    return f"{seconds:g}s" if seconds > 1 or not seconds else f"{seconds * 1000:g}ms"


def size(count: int) -> str:
    """The shortest spelling with one unit: ``16KiB``, ``1000B``."""
    for unit, length in _SIZES.items():
        if count >= length and count % length == 0:
            return f"{count // length}{unit}"
    return f"{count}B"
