"""How log lines look: JSON for machines, text for people."""

import json
import math
from typing import Any

import pytest

from tornado_idv.log_format import format_time, json_lines, text_lines

FIELDS = {
    "timestamp": "2026-11-22T09:30:00.123Z",
    "level": "warning",
    "logger": "tornado_idv.some",
    "event": "it happened",
}


def line(**fields: Any) -> str:
    return text_lines([{**FIELDS, **fields}])


@pytest.mark.parametrize(
    "text",
    ["plain", 'a "b"\n\x1b[31m', "Größe \N{GRINNING FACE}", "not UTF-8: \udcff", "\x9b31m"],
    ids=["plain", "escapes", "non-ASCII", "lone surrogate", "C1 control"],
)
def test_json_line_is_one_ascii_object_with_every_character(text: str) -> None:
    record = {**FIELDS, "event": text, "status": 200}
    lines = json_lines([record, FIELDS])
    assert lines.isascii()
    assert [json.loads(each) for each in lines.splitlines()] == [record, FIELDS]


@pytest.mark.parametrize("ratio", [math.nan, -math.inf])
@pytest.mark.parametrize("event", ["plain", "Größe"])
def test_value_of_any_type_is_in_the_json_line(event: str, ratio: float) -> None:
    """An exception by its type, because its message may hold input."""
    values = {"ports": (1, 2), "error": ValueError("@alice"), "ratio": ratio, "module": pytest}
    logged = json.loads(json_lines([{**FIELDS, "event": event, **values}]))
    assert logged.pop("module").startswith("<module 'pytest'")
    written = {"ports": [1, 2], "error": "ValueError", "ratio": None}
    assert logged == {**FIELDS, "event": event, **written}


def test_text_line_is_time_level_event_and_fields() -> None:
    shown = "2026-11-22T09:30:00.123Z [warning  ] it happened"
    assert line() == f"{shown}\n"
    assert line(status=200, remote="::1", key=None) == f"{shown} status=200 remote=::1 key=null\n"
    assert line(names=["a", "b"]) == f'{shown} names=["a", "b"]\n'


@pytest.mark.parametrize("value", ["a b", "", 'a"b', "a=b", "ä", "a\nb", "\x1b[31m"])
def test_text_value_that_could_be_misread_is_quoted(value: str) -> None:
    shown = line(reason=value)
    assert shown.endswith(f" reason={json.dumps(value)}\n")
    assert shown.rstrip("\n").isprintable()


def test_event_cannot_change_the_terminal_or_forge_a_line() -> None:
    shown = line(event=f"failed\r\x1b[2J\x9b\n{line()}").splitlines()
    assert shown[0].endswith(r"failed\r\x1b[2J\x9b")
    assert shown[1].startswith("    2026")


def test_logger_of_a_library_is_shown_and_our_own_is_not() -> None:
    assert line(logger="tornado.general").endswith("it happened logger=tornado.general\n")
    assert "tornado_idv.some" not in line()


def test_level_is_colored_on_a_terminal() -> None:
    colored = text_lines([FIELDS, {**FIELDS, "level": "trace"}], colored=True).splitlines()
    assert colored[0] == "2026-11-22T09:30:00.123Z [\x1b[33mwarning  \x1b[0m] it happened"
    assert "[\x1b[0mtrace" in colored[1]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(1_800_000_000.0, "2027-01-15T08:00:00.000Z"), (0.9996, "1970-01-01T00:00:00.999Z")],
)
def test_time_is_in_utc_with_milliseconds(seconds: float, shown: str) -> None:
    assert format_time(seconds) == shown
