"""The types of options: what each text means, and what is rejected."""

from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from tornado_idv import options
from tornado_idv.options import ConfigPath, Duration, Pattern, Size, WholeNumber, compile_pattern

DURATION: TypeAdapter[float] = TypeAdapter(Duration)
SIZE: TypeAdapter[int] = TypeAdapter(Size)
WHOLE: TypeAdapter[int] = TypeAdapter(WholeNumber)
PATH: TypeAdapter[Path] = TypeAdapter(ConfigPath)


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
    ("text", "path"),
    [("users.yaml", "/etc/idv/users.yaml"), ("../a", "/etc/idv/../a"), ("/srv/a", "/srv/a")],
)
def test_a_relative_path_starts_at_the_configuration_file(text: str, path: str) -> None:
    assert PATH.validate_python(text, context={"base_dir": Path("/etc/idv")}) == Path(path)
    for without_file in (text, Path(text)):
        assert PATH.validate_python(without_file) == Path(text)


@pytest.mark.parametrize("text", ["a=b", "a:b@c", "a:/b", "//a:b@c"])
def test_text_like_a_url_is_no_path_unless_it_begins_as_one(text: str) -> None:
    assert options.is_like_url(text)
    assert not any(options.is_like_url(f"{start}/{text.lstrip('/')}") for start in ("", ".", ".."))


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
