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


def test_the_date_follows_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    for now, second in ((784111777.9, 37), (784111778.0, 38)):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        date = b"\r\nDate: Sun, 06 Nov 1994 08:49:%d GMT\r\n" % second
        assert date in build_response(200, "x", b"")
