"""Parsing and formatting of durations, sizes, rates and percentages, as in `config.yaml`.

The number of digits is limited, because Python refuses to convert thousands of digits. The parsers
raise `ValueError` for any other text. No message repeats the text.
"""

import re
from dataclasses import dataclass
from decimal import Decimal

DURATION = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)(ms|s|m|h|d)", re.ASCII)
SIZE = re.compile(r"([0-9]{1,15})(B|KiB|MiB|GiB)", re.ASCII)
RATE = re.compile(
    r"([0-9]{1,10})/(?:([0-9]{1,9}) ?)?(s|m|h|d|seconds?|minutes?|hours?|days?)", re.ASCII
)
PERCENTAGE = re.compile(r"([0-9]{1,2}(?:\.[0-9]{1,9})?|100)%", re.ASCII)

_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_BYTES = {"GiB": 1024**3, "MiB": 1024**2, "KiB": 1024, "B": 1}
_PERIODS = {"day": 86400, "hour": 3600, "minute": 60, "second": 1}


def _match(pattern: re.Pattern[str], text: str, message: str) -> re.Match[str]:
    if match := pattern.fullmatch(text):
        return match
    raise ValueError(message)


def parse_duration(text: str) -> float:
    """Parse a duration such as ``250ms``, ``30s``, ``5m``, ``1.5h`` or ``7d``. Return seconds."""
    match = _match(DURATION, text, "not a duration; write a number and ms, s, m, h or d, like 30s")
    return float(match[1]) * _SECONDS[match[2]]


def format_duration(seconds: float) -> str:
    """Format a duration with one unit: ``5m``, ``1.5s``, ``250ms``."""
    for unit, length in _SECONDS.items():
        if length >= 1 and seconds >= length and seconds % length == 0:
            return f"{seconds / length:g}{unit}"
    return f"{seconds:g}s" if seconds > 1 or not seconds else f"{seconds * 1000:g}ms"


def parse_size(text: str) -> int:
    """Parse a size such as ``512B``, ``16KiB``, ``1MiB`` or ``1GiB``. Return bytes."""
    match = _match(SIZE, text, "not a size; write a number and B, KiB, MiB or GiB, like 16KiB")
    return int(match[1]) * _BYTES[match[2]]


def format_size(count: int) -> str:
    """Format a number of bytes with one unit: ``16KiB``, ``1000B``."""
    for unit, length in _BYTES.items():
        if count >= length and count % length == 0:
            return f"{count // length}{unit}"
    return f"{count}B"


def parse_percentage(text: str) -> Decimal:
    """Parse a percentage such as ``5%`` or ``0.5%``. Return the number without the sign."""
    advice = "not a percentage; write one from 0% to 100%, such as 5%"
    return Decimal(_match(PERCENTAGE, text, advice)[1])


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate limit: at most ``count`` events in ``seconds``.

    With ``log_only``, further events are logged instead of refused.
    """

    count: int
    seconds: float
    log_only: bool = False


def parse_rate(text: str) -> Rate:
    """Parse a rate such as ``100/second``, ``60/m`` or ``300/10 minutes``."""
    advice = "not a rate; write a number, / and a period, like 100/second or 300/10 minutes"
    match = _match(RATE, text, advice)
    count, periods = int(match[1]), int(match[2] or 1)
    if not 1 <= count <= 10**9:
        raise ValueError("the number of a rate must be from 1 to 1000000000")
    seconds = periods * _SECONDS[match[3][0]]
    if not 1 <= seconds <= 3650 * 86400:
        raise ValueError("the period of a rate must be from 1 second to 3650 days")
    return Rate(count, seconds)


def format_rate(rate: Rate) -> str:
    """Format a rate with one unit: ``100/second``, ``300/10 minutes``."""
    unit, length = next(each for each in _PERIODS.items() if rate.seconds % each[1] == 0)
    periods = int(rate.seconds // length)
    return f"{rate.count}/{unit}" if periods == 1 else f"{rate.count}/{periods} {unit}s"
