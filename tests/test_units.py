"""Durations, sizes, rates and percentages: what a text means, and how a value is printed."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import TypeAdapter

from tornado_idv.options import Duration, Percentage, RateLimit, Size
from tornado_idv.units import (
    Rate,
    format_duration,
    format_rate,
    format_size,
    parse_duration,
    parse_percentage,
    parse_rate,
    parse_size,
)

PRINTED = [
    (parse_duration, format_duration, "0s", 0),
    (parse_duration, format_duration, "1ms", 0.001),
    (parse_duration, format_duration, "1s", 1),
    (parse_duration, format_duration, "1.5s", 1.5),
    (parse_duration, format_duration, "90s", 90),
    (parse_duration, format_duration, "5m", 300),
    (parse_duration, format_duration, "1h", 3600),
    (parse_duration, format_duration, "1d", 86400),
    (parse_size, format_size, "0B", 0),
    (parse_size, format_size, "1B", 1),
    (parse_size, format_size, "1536B", 1536),
    (parse_size, format_size, "16KiB", 16384),
    (parse_size, format_size, "1MiB", 1024**2),
    (parse_size, format_size, "3GiB", 3 * 1024**3),
    (parse_rate, format_rate, "100/second", Rate(100, 1)),
    (parse_rate, format_rate, "60/minute", Rate(60, 60)),
    (parse_rate, format_rate, "300/10 minutes", Rate(300, 600)),
    (parse_rate, format_rate, "5/90 seconds", Rate(5, 90)),
    (parse_rate, format_rate, "1/2 hours", Rate(1, 7200)),
    (parse_rate, format_rate, "1000000000/day", Rate(10**9, 86400)),
    (parse_rate, format_rate, "7/3650 days", Rate(7, 3650 * 86400)),
]
OTHER_SPELLINGS = [
    (parse_duration, "007s", 7),
    (parse_duration, "1.5h", 5400),
    (parse_rate, "1/s", Rate(1, 1)),
    (parse_rate, "1/m", Rate(1, 60)),
    (parse_rate, "1/h", Rate(1, 3600)),
    (parse_rate, "1/d", Rate(1, 86400)),
    (parse_rate, "1/10m", Rate(1, 600)),
    (parse_rate, "1/2 day", Rate(1, 172800)),
    (parse_percentage, "100%", 100),
    (parse_percentage, "0.5%", 0.5),
]
INVALID = {
    parse_duration: ["", "5", "s", "5 s", "5s\n", "-5s", "5S", ".5s", "5.s", "1e3s", "1h30m"],
    parse_size: ["", "16", "KiB", "16 KiB", "16kib", "1.5KiB", "-1B", "1B\n", "\u0661B"],
    parse_rate: ["", "100", "1 / second", "1.5/second", "-1/second", "1/ms", "1/second\n"],
    parse_percentage: ["", "5", "%", "5 %", "101%", "100.1%", "-1%", "5%\n"],
}
TYPES: dict[Callable[[str], Any], Any] = {
    parse_duration: Duration,
    parse_size: Size,
    parse_rate: RateLimit,
    parse_percentage: Percentage,
}


@pytest.mark.parametrize(("parse", "format_", "text", "value"), PRINTED)
def test_value_is_printed_with_one_unit(
    parse: Callable[[str], Any], format_: Callable[[Any], str], text: str, value: Any
) -> None:
    assert format_(value) == text
    assert parse(text) == value


@pytest.mark.parametrize(("parse", "text", "value"), OTHER_SPELLINGS)
def test_text_may_have_another_spelling(parse: Callable[[str], Any], text: str, value: Any) -> None:
    assert parse(text) == value


@pytest.mark.parametrize("parse", INVALID, ids=lambda each: each.__name__)
def test_other_text_is_refused_with_an_example(parse: Callable[[str], Any]) -> None:
    """Python itself would refuse thousands of digits, with an advice of its own."""
    examples = {"30s", "16KiB", "100/second", "5%"}
    for text in [*INVALID[parse], "7654321 x", "9" * 5000 + "s", f"0.{'9' * 5000}%", "\u0665s"]:
        with pytest.raises(ValueError, match=r"^not a (duration|size|rate|percentage); ") as caught:
            parse(text)
        assert any(each in str(caught.value) for each in examples)
        assert "7654321" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0/second", "the number of a rate must be from 1 to 1000000000"),
        ("1000000001/second", "the number of a rate must be from 1 to 1000000000"),
        ("1/0 seconds", "the period of a rate must be from 1 second to 3650 days"),
        ("1/3651 days", "the period of a rate must be from 1 second to 3650 days"),
    ],
)
def test_rate_has_a_range(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_rate(text)


@pytest.mark.parametrize("parse", TYPES, ids=lambda each: each.__name__)
def test_type_of_an_option_accepts_the_same_text_as_its_schema(
    parse: Callable[[str], Any],
) -> None:
    """A pattern of JSON Schema is a search; only a last line feed is Python's own affair."""
    adapter: TypeAdapter[Any] = TypeAdapter(TYPES[parse])
    schema = adapter.json_schema()
    spellings = [
        *((each[0], each[-2]) for each in PRINTED),
        *(each[:2] for each in OTHER_SPELLINGS),
    ]
    good = [text for of, text in spellings if of is parse]
    for text in [*good, *schema["examples"]]:
        assert adapter.validate_python(text) == (text if parse is parse_percentage else parse(text))
        assert re.search(schema["pattern"], text)
    for text in INVALID[parse]:
        with pytest.raises(ValueError, match="not a "):
            adapter.validate_python(text)
        assert text.endswith("\n") or not re.search(schema["pattern"], text)
