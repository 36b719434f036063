"""Responses as bytes."""

import re
import time

import pytest

from tornado_idv.web.response import build_response, valid_request_id

DATE = r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT"


def test_a_response_is_a_status_line_header_fields_and_a_body() -> None:
    data = build_response(200, "some-id", b"{}", "X-A: b\r\n").decode()
    assert re.fullmatch(
        "HTTP/1.1 200 OK\r\n"
        "Content-Type: application/json\r\n"
        f"Date: {DATE}\r\n"
        "Cache-Control: no-store\r\n"
        "X-Content-Type-Options: nosniff\r\n"
        "X-Request-ID: some-id\r\n"
        "X-A: b\r\n"
        "Content-Length: 2\r\n\r\n{}",
        data,
    )


def test_only_a_harmless_request_id_is_kept() -> None:
    kept, rejected = ("a", "A-1._", "x" * 64), ("", "x" * 65, "a b", "\xe9", '"')
    assert [each for each in (*kept, *rejected) if valid_request_id(each) == each] == [*kept]


def date_of(response: bytes) -> str:
    return re.search(r"Date: ([^\r]*)", response.decode())[1]  # type: ignore[index]


def test_the_date_follows_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 784111777.9)
    assert date_of(build_response(200, "x", b"")) == "Sun, 06 Nov 1994 08:49:37 GMT"
    monkeypatch.setattr(time, "time", lambda: 784111778.0)
    assert date_of(build_response(200, "x", b"")) == "Sun, 06 Nov 1994 08:49:38 GMT"
