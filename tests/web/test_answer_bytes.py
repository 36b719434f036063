"""Answers as bytes."""

from __future__ import annotations

import re
import time
from email.utils import parsedate_to_datetime

import pytest

from tornado_idv.web.answers import answer_bytes, http_date, new_request_id, refusal_bytes
from tornado_idv.web.refusals import Refusal

DATE = r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT"


def test_an_answer_is_a_status_line_headers_and_a_body() -> None:
    data = answer_bytes(200, "some-id", b"{}", 2, "X-A: b\r\n").decode()
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


def test_a_length_is_told_where_no_body_is_sent() -> None:
    assert answer_bytes(405, "x", b"", 7).endswith(b"Content-Length: 7\r\n\r\n")


@pytest.mark.parametrize("refusal", Refusal, ids=lambda refusal: refusal.name)
def test_a_refusal_closes_the_connection(refusal: Refusal) -> None:
    head, _, body = refusal_bytes(refusal, "some-id").partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0].startswith(f"HTTP/1.1 {refusal.status} ")
    assert body == refusal.body
    assert f"Content-Length: {len(body)}" in lines
    assert "Connection: close" in lines
    assert "X-Request-ID: some-id" in lines
    assert {f"{name}: {value}" for name, value in refusal.headers.items()} <= set(lines)


def test_no_two_requests_have_one_id() -> None:
    ids = {new_request_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", each) for each in ids)


def test_the_date_is_now() -> None:
    assert abs(parsedate_to_datetime(http_date()).timestamp() - time.time()) < 5


def test_the_date_goes_with_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 784111777.9)
    assert http_date() == "Sun, 06 Nov 1994 08:49:37 GMT"
    monkeypatch.setattr(time, "time", lambda: 784111778.0)
    assert http_date() == "Sun, 06 Nov 1994 08:49:38 GMT"
