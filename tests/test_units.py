"""Durations and sizes are printed as they can be read again."""

import pytest

from tornado_idv.units import format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.001, "1ms"),
        (0.8, "800ms"),
        (1, "1s"),
        (1.5, "1.5s"),
        (90, "90s"),
        (300, "5m"),
        (3600, "1h"),
        (5400, "90m"),
        (86400, "1d"),
    ],
)
def test_a_duration_is_printed_with_one_unit(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0B"),
        (1, "1B"),
        (1000, "1000B"),
        (16384, "16KiB"),
        (1024**2, "1MiB"),
        (3 * 1024**3, "3GiB"),
    ],
)
def test_a_size_is_printed_with_one_unit(count: int, text: str) -> None:
    assert format_size(count) == text
    assert parse_size(text) == count
