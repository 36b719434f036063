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

Parse = Callable[[str], Any]
FORMATS: dict[Parse, tuple[Callable[[Any], str], dict[str, Any]]] = {
    parse_duration: (
        format_duration,
        {"0s": 0, "1ms": 0.001, "1.5s": 1.5, "90s": 90, "5m": 300, "1h": 3600, "1d": 86400},
    ),
    parse_size: (
        format_size,
        {"0B": 0, "1536B": 1536, "16KiB": 16384, "1MiB": 1024**2, "3GiB": 3 * 1024**3},
    ),
    parse_rate: (
        format_rate,
        {
            "100/second": Rate(100, 1),
            "300/10 minutes": Rate(300, 600),
            "5/90 seconds": Rate(5, 90),
            "1/2 hours": Rate(1, 7200),
            "1000000000/day": Rate(10**9, 86400),
            "7/3650 days": Rate(7, 3650 * 86400),
        },
    ),
}
OTHER_SPELLINGS: dict[Parse, dict[str, Any]] = {
    parse_duration: {"007s": 7, "1.5h": 5400},
    parse_size: {},
    parse_rate: {
        "1/s": Rate(1, 1),
        "1/m": Rate(1, 60),
        "1/h": Rate(1, 3600),
        "1/d": Rate(1, 86400),
        "1/10m": Rate(1, 600),
        "1/2 day": Rate(1, 172800),
    },
    parse_percentage: {"100%": 100, "0.5%": 0.5},
}
INVALID = {
    parse_duration: ["", "5", "s", "5 s", "5s\n", "-5s", "5S", ".5s", "5.s", "1e3s", "1h30m"],
    parse_size: ["", "16", "KiB", "16 KiB", "16kib", "1.5KiB", "-1B", "1B\n", "\u0661B"],
    parse_rate: ["", "100", "1 / second", "1.5/second", "-1/second", "1/ms", "1/second\n"],
    parse_percentage: ["", "5", "%", "5 %", "101%", "100.1%", "-1%", "5%\n"],
}
TYPES: dict[Parse, Any] = {
    parse_duration: Duration,
    parse_size: Size,
    parse_rate: RateLimit,
    parse_percentage: Percentage,
}


@pytest.mark.parametrize("parse", FORMATS)
def test_value_is_printed_with_one_unit(parse: Parse) -> None:
    format_, values = FORMATS[parse]
    assert {text: parse(text) for text in values} == values
    assert [format_(value) for value in values.values()] == [*values]


@pytest.mark.parametrize("parse", OTHER_SPELLINGS)
def test_text_may_have_another_spelling(parse: Parse) -> None:
    values = OTHER_SPELLINGS[parse]
    assert {text: parse(text) for text in values} == values


@pytest.mark.parametrize("parse", INVALID, ids=lambda each: each.__name__)
def test_other_text_is_refused_with_an_example(parse: Parse) -> None:
    """Python itself would refuse thousands of digits, with an advice of its own."""
    examples = {"30s", "16KiB", "100/second", "5%"}
    for text in [*INVALID[parse], "7654321 x", "9" * 5000 + "s", f"0.{'9' * 5000}%", "\u0665s"]:
        with pytest.raises(ValueError, match=r"^not a (duration|size|rate|percentage); ") as caught:
            parse(text)
        assert any(each in str(caught.value) for each in examples)
        assert "7654321" not in str(caught.value)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (("0/second", "1000000001/second"), "number of a rate must be from 1 to 1000000000"),
        (("1/0 seconds", "1/3651 days"), "period of a rate must be from 1 second to 3650 days"),
    ],
)
def test_rate_has_a_range(texts: tuple[str, ...], message: str) -> None:
    for text in texts:
        with pytest.raises(ValueError, match=message):
            parse_rate(text)


@pytest.mark.parametrize("parse", TYPES, ids=lambda each: each.__name__)
def test_type_of_an_option_accepts_the_same_text_as_its_schema(parse: Parse) -> None:
    """A pattern of JSON Schema is a search; only a last line feed is Python's own affair."""
    adapter: TypeAdapter[Any] = TypeAdapter(TYPES[parse])
    schema = adapter.json_schema()
    printed = FORMATS[parse][1] if parse in FORMATS else ()
    for text in [*printed, *OTHER_SPELLINGS[parse], *schema["examples"]]:
        assert adapter.validate_python(text) == (text if parse is parse_percentage else parse(text))
        assert re.search(schema["pattern"], text)
    for text in INVALID[parse]:
        with pytest.raises(ValueError, match="not a "):
            adapter.validate_python(text)
        assert text.endswith("\n") or not re.search(schema["pattern"], text)
