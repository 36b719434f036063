"""Requests as bytes: framing, targets, media types, limits; one request, one answer."""

import pytest

from support.http.raw_requests import (
    BODY,
    CODES,
    HOST,
    LAST,
    LENGTH,
    NO_ROUTES,
    READ,
    REFUSED,
    STALLED_CHUNKS,
    URL,
    request,
)
from support.processes.service import Client


@pytest.mark.parametrize("data", READ.values(), ids=READ)
def test_unusual_valid_request_is_answered(wire: Client, data: bytes) -> None:
    (reply,) = wire.raw(data)
    assert reply.status == 200


@pytest.mark.parametrize("name", READ)
def test_unusual_valid_request_on_tornado_s_server(tornado_client: Client, name: str) -> None:
    """Only the framing and the form of the target, which the server reads, differ."""
    statuses = {"chunks with extensions and trailers": 400, "an absolute target": 404}
    unchecked = Client(tornado_client.port)  # that server's own responses are not in the document
    (reply,) = unchecked.raw(READ[name])
    assert reply.status == statuses.get(name, 200)


@pytest.mark.parametrize(("data", "status"), REFUSED.values(), ids=REFUSED)
def test_ambiguous_request_is_rejected(wire: Client, data: bytes, status: int) -> None:
    """Refused once, and the connection closed: what follows is never run."""
    (reply,) = wire.until_closed(data + request(HOST, LENGTH))
    assert (reply.status, reply.code) == (status, CODES[status])
    assert reply.headers["connection"] == "close"


@pytest.mark.parametrize("data", LAST.values(), ids=LAST)
def test_connection_is_closed_after_a_last_or_ambiguous_request(wire: Client, data: bytes) -> None:
    """What the caller wants to be the last is; so is what two readers could end elsewhere."""
    (reply,) = wire.until_closed(data + request(HOST, LENGTH))
    assert reply.headers["connection"] == "close"
    assert reply.status in (200, 404, 422)


def test_data_after_a_request_is_the_next_request(wire: Client) -> None:
    replies = wire.raw(request(HOST, LENGTH) * 5, expect=5)
    assert [reply.status for reply in replies] == [200] * 5
    good, bad = wire.until_closed(request(HOST, LENGTH) + b"NONSENSE\r\n\r\n")
    assert (good.status, bad.status) == (200, 400)


@pytest.mark.parametrize("value", [b"100-continue", b"100-Continue"])
def test_expect_100_continue_is_answered(wire: Client, value: bytes) -> None:
    replies = wire.raw(request(HOST, LENGTH, b"Expect: " + value), expect=2)
    assert [reply.status for reply in replies] == [100, 200]


def test_stalled_request_gets_408(wire: Client) -> None:
    (reply,) = wire.until_closed(STALLED_CHUNKS)
    assert (reply.status, reply.code) == (408, "request_timeout")
    assert reply.headers["connection"] == "close"


@pytest.mark.parametrize("path", NO_ROUTES)
def test_route_has_exactly_one_path(either: Client, path: str) -> None:
    reply = either.post(path, BODY)
    assert (reply.status, reply.code) == (404, "no_such_route")


@pytest.mark.parametrize(
    ("field", "value", "status", "reason"),
    [
        ("Content-Type", None, 200, None),
        ("Content-Type", "Application/JSON; charset=UTF-8", 200, None),
        ("Content-Type", "application/x-www-form-urlencoded", 415, "content_type"),
        ("Content-Type", "multipart/form-data", 415, "content_type"),
        ("Content-Encoding", "gzip", 415, "content_encoding"),
        ("Accept", "text/html, */*;q=0.1", 200, None),
        ("Accept", "text/html", 406, None),
    ],
)
def test_media_type_is_json(
    either: Client, field: str, value: str | None, status: int, reason: str | None
) -> None:
    reply = either.post(URL, BODY, {field: value})
    assert (reply.status, reply.headers.get("x-error-reason")) == (status, reason)
