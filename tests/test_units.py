"""Durations, sizes and rates are printed as they can be read again."""

import pytest

from tornado_idv.units import (
    Rate,
    format_duration,
    format_rate,
    format_size,
    parse_duration,
    parse_rate,
    parse_size,
)


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


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (Rate(100, 1), "100/second"),
        (Rate(60, 60), "60/minute"),
        (Rate(300, 600), "300/10 minutes"),
        (Rate(5, 90), "5/90 seconds"),
        (Rate(1, 7200), "1/2 hours"),
        (Rate(10**9, 86400), "1000000000/day"),
        (Rate(7, 3650 * 86400), "7/3650 days"),
    ],
)
def test_a_rate_is_printed_with_one_unit(rate: Rate, text: str) -> None:
    assert format_rate(rate) == text
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1/s", 1),
        ("1/m", 60),
        ("1/h", 3600),
        ("1/d", 86400),
        ("1/10m", 600),
        ("1/10 m", 600),
        ("1/1 hours", 3600),
        ("1/2 day", 172800),
    ],
)
def test_a_rate_has_other_spellings(text: str, seconds: float) -> None:
    assert parse_rate(text) == Rate(1, seconds)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a rate"),
        ("100", "not a rate"),
        ("100/", "not a rate"),
        ("100 / second", "not a rate"),
        ("1.5/second", "not a rate"),
        ("-1/second", "not a rate"),
        ("1/ms", "not a rate"),
        ("1/second\n", "not a rate"),
        ("\u0661/second", "not a rate"),
        ("9" * 5000 + "/second", "not a rate"),
        ("0/second", "from 1 to 1000000000"),
        ("1000000001/second", "from 1 to 1000000000"),
        ("1/0 seconds", "from 1 second to 3650 days"),
        ("1/3651 days", "from 1 second to 3650 days"),
    ],
)
def test_other_text_is_no_rate(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_rate(text)


@pytest.mark.parametrize("text", ["7654321/fortnight", "7654321098/second", "1/7654321 hours"])
def test_an_error_does_not_repeat_the_text(text: str) -> None:
    with pytest.raises(ValueError, match="rate") as caught:
        parse_rate(text)
    assert "7654321" not in str(caught.value)
