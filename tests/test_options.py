"""The types of options: what each text means, and what is rejected."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from tornado_idv.options import ConfigPath, Duration, Pattern, Size, WholeNumber, compile_pattern

DURATION: TypeAdapter[float] = TypeAdapter(Duration)
SIZE: TypeAdapter[int] = TypeAdapter(Size)
WHOLE: TypeAdapter[int] = TypeAdapter(WholeNumber)
PATH: TypeAdapter[Path] = TypeAdapter(ConfigPath)

GOOD_DURATIONS = {"0s": 0, "250ms": 0.25, "0.5s": 0.5, "30s": 30, "007s": 7, "5m": 300}
GOOD_DURATIONS |= {"1.5h": 5400, "7d": 604800}
BAD_DURATIONS = ["", "5", "s", "5 s", " 5s", "5s\n", "-5s", "+5s", "5S", "5sec", ".5s", "5.s"]
BAD_DURATIONS += ["1e3s", "1h30m", "inf", "nan", "\u0665s"]

GOOD_SIZES = {"0B": 0, "512B": 512, "16KiB": 16384, "1MiB": 1048576, "2GiB": 2147483648}
BAD_SIZES = ["", "16", "KiB", "16 KiB", "16KB", "16kib", "1.5KiB", "-1B", "1B\n", "\u0661B", "0x1B"]


@pytest.mark.parametrize(("text", "seconds"), GOOD_DURATIONS.items(), ids=GOOD_DURATIONS)
def test_a_duration_is_seconds(text: str, seconds: float) -> None:
    assert DURATION.validate_python(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", BAD_DURATIONS, ids=ascii)
def test_an_invalid_duration_is_rejected_with_an_example(text: str) -> None:
    with pytest.raises(ValidationError, match=r"not a duration; .* like 30s"):
        DURATION.validate_python(text)


@pytest.mark.parametrize(("text", "size"), GOOD_SIZES.items(), ids=GOOD_SIZES)
def test_a_size_is_bytes(text: str, size: int) -> None:
    assert SIZE.validate_python(text) == size


@pytest.mark.parametrize("text", BAD_SIZES, ids=ascii)
def test_an_invalid_size_is_rejected_with_an_example(text: str) -> None:
    with pytest.raises(ValidationError, match=r"not a size; .* like 16KiB"):
        SIZE.validate_python(text)


@pytest.mark.parametrize("adapter", [DURATION, SIZE], ids=["duration", "size"])
def test_a_default_is_a_number_and_not_negative(adapter: TypeAdapter[float]) -> None:
    """Defaults in code are numbers; what is written in a file is text."""
    assert adapter.validate_python(3) == 3
    with pytest.raises(ValidationError):
        adapter.validate_python(-1)


def test_a_duration_is_at_most_ten_years() -> None:
    assert DURATION.validate_python("3650d") == 3650 * 86400
    with pytest.raises(ValidationError, match="less than or equal to 315360000"):
        DURATION.validate_python("3651d")


@pytest.mark.parametrize(
    ("adapter", "good", "bad"),
    [(DURATION, GOOD_DURATIONS, BAD_DURATIONS), (SIZE, GOOD_SIZES, BAD_SIZES)],
    ids=["duration", "size"],
)
def test_the_schema_accepts_the_same_text(
    adapter: TypeAdapter[float], good: dict[str, float], bad: list[str]
) -> None:
    """A pattern of JSON Schema is a search; only a last line feed is Python's own affair."""
    schema: dict[str, Any] = adapter.json_schema()
    pattern = re.compile(schema["pattern"])
    assert all(pattern.search(text) for text in [*good, *schema["examples"]])
    assert not any(pattern.search(text) for text in bad if not text.endswith("\n"))


@pytest.mark.parametrize(
    ("text", "path"),
    [("users.yaml", "/etc/idv/users.yaml"), ("../a", "/etc/idv/../a"), ("/srv/a", "/srv/a")],
)
def test_a_relative_path_starts_at_the_configuration_file(text: str, path: str) -> None:
    assert PATH.validate_python(text, context={"base_dir": Path("/etc/idv")}) == Path(path)


def test_a_path_without_a_configuration_file_is_unchanged() -> None:
    assert PATH.validate_python("users.yaml") == Path("users.yaml")
    assert PATH.validate_python(Path("users.yaml")) == Path("users.yaml")


@pytest.mark.parametrize(
    ("adapter", "text"),
    [(SIZE, "9" * 5000 + "B"), (DURATION, "9" * 5000 + "s"), (DURATION, f"0.{'9' * 5000}s")],
    ids=["size", "duration", "fraction"],
)
def test_thousands_of_digits_are_rejected_with_our_message(
    adapter: TypeAdapter[float], text: str
) -> None:
    with pytest.raises(ValidationError, match=r"not a (size|duration); write a number and"):
        adapter.validate_python(text)


@pytest.mark.parametrize(
    ("text", "number"), [("0", 0), ("80", 80), ("0080", 80), ("9" * 15, 10**15 - 1)]
)
def test_a_whole_number_is_read(text: str, number: int) -> None:
    assert WHOLE.validate_python(text) == number


@pytest.mark.parametrize(
    "text",
    ["", " 80", "80 ", "80\n", "+80", "-80", "8_0", "80.0", "8e1", "0x50", "\u0668", "9" * 16],
    ids=lambda text: ascii(text)[:9],
)
def test_anything_but_digits_is_not_a_whole_number(text: str) -> None:
    with pytest.raises(ValidationError, match="must be a whole number, written in digits alone"):
        WHOLE.validate_python(text)


@pytest.mark.parametrize("value", [80.0, True, None, [80]], ids=str)
def test_other_types_are_not_whole_numbers(value: object) -> None:
    with pytest.raises(ValidationError, match="int"):
        WHOLE.validate_python(value)


@pytest.mark.parametrize("text", ["[a-z", "a)|(b", "a{99999999999}", r"(a)\1", "(?<!b)a"])
def test_an_invalid_pattern_is_rejected_with_our_message(text: str) -> None:
    with pytest.raises(ValidationError, match="not a regular expression") as caught:
        TypeAdapter(Pattern).validate_python(text)
    assert text not in str(caught.value.errors(include_input=False))


@pytest.mark.parametrize(
    ("pattern", "matched", "rejected"),
    [
        ("[a-z]+", "alice", "alice\n"),
        ("a|ab", "ab", "abc"),
        ("(?i)alice", "ALICE", "malice"),
        ("", "", "a"),
    ],
)
def test_a_pattern_matches_whole_texts(pattern: str, matched: str, rejected: str) -> None:
    matches = compile_pattern(pattern)
    assert matches(matched)
    assert not matches(rejected)


@pytest.mark.parametrize("pattern", ["([a-z]+)*", "(a|aa)+", "(.*)*b", ".*.*.*.*=.*"])
def test_a_pattern_rejects_text_without_backtracking(pattern: str) -> None:
    """With Python's engine, this test would not end."""
    assert not compile_pattern(pattern)("a" * 250 + "!")
