"""The answers of the contract, byte for byte, to valid and to invalid values."""

import pytest

from support.http.contract_values import (
    ABSENT,
    BAD_KEYS,
    FOUND,
    GOOD_BODIES,
    GOOD_KEYS,
    INVALID,
    URL,
)
from support.processes.service import CARDS_ONLY_KEY, KEY, Client, Reply
from tornado_idv.errors import InvalidFormat

ALICE = (
    b'{"status":"ok","plan":"Free","card_number":"4000123412341234","nickname":"@alice",'
    b'"profile_url":"https://profiles.example/m/alice"}'
)
NOT_FOUND = b'{"status":"error","code":"not_found","message":"User not found"}'
INVALID_FORMAT = b'{"status":"error","code":"invalid_format","message":"Invalid format"}'
INVALID_KEY = (
    b'{"status":"error","code":"token_invalid_or_expired","message":"Token invalid or expired"}'
)


def check_headers(reply: Reply) -> None:
    """What §2 of the contract promises of every answer."""
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["cache-control"] == "no-store"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert 1 <= len(reply.headers["x-request-id"]) <= 64
    assert "server" not in reply.headers
    assert "etag" not in reply.headers


@pytest.mark.parametrize(
    ("text", "status", "body"),
    [
        ("@alice", 200, ALICE),
        ("https://profiles.example/m/alice", 200, ALICE),
        ("4000123412341234", 200, ALICE),
        ("@nobody", 404, NOT_FOUND),
        ("4999999999999999", 404, NOT_FOUND),
        ("alice", 422, INVALID_FORMAT),
        ("4000-1234", 422, INVALID_FORMAT),
    ],
)
def test_lookup_gives_the_full_record_or_the_error(
    client: Client, text: str, status: int, body: bytes
) -> None:
    reply = client.by_card(text) if text[0] == "4" else client.by_input(text)
    assert (reply.status, reply.body) == (status, body)
    check_headers(reply)


def test_bad_key_is_rejected_before_any_other_check(client: Client) -> None:
    """No stranger learns whether a body or a media type was right."""
    headers = {"Authorization": f"Bearer {KEY[:-1]}x", "Content-Type": "text/plain"}
    reply = client.post(URL, b"{", headers)
    assert (reply.status, reply.body) == (401, INVALID_KEY)
    assert reply.headers["www-authenticate"] == "Bearer"
    check_headers(reply)


def test_key_without_the_scope_is_rejected(either: Client) -> None:
    headers = {"Authorization": f"Bearer {CARDS_ONLY_KEY}"}
    refused = either.post(URL, b"{", headers)
    assert (refused.status, refused.code) == (403, "insufficient_scope")
    allowed = either.post("/api/v1/identify/card", b'{"card_number": "1"}', headers)
    assert allowed.status == 404


def test_valid_request_id_of_the_client_is_returned(either: Client) -> None:
    for asked, echoed in (("Job-1_2.3", True), ("x" * 64, True), ("x" * 65, False), ("a b", False)):
        fields = {"X-Request-ID": asked, "X-IDV-Request-ID": asked}
        reply = either.post(URL, b"{}", fields)
        assert (reply.headers["x-request-id"] == asked) is echoed
        assert reply.headers.get("x-idv-request-id") == (asked if echoed else None)


def test_every_error_on_every_path_is_the_error_record(either: Client) -> None:
    """A wrong path never reads as "no such user"."""
    for method, path, status, code in (
        ("GET", "/", 404, "no_such_route"),
        ("POST", "/api/v1/identify", 404, "no_such_route"),
        ("BREW", "/favicon.ico", 404, "no_such_route"),
        ("GET", "/api/v1/identify/card", 405, "method_not_allowed"),
        ("BREW", "/api/v1/identify/card", 405, "method_not_allowed"),
    ):
        reply = either.send(method, path, {"Host": "x"})
        assert (reply.status, reply.code) == (status, code)
        check_headers(reply)


def test_wrong_method_gets_allow(either: Client) -> None:
    reply = either.send("DELETE", URL, {"Host": "x"})
    assert (reply.status, reply.headers["allow"]) == (405, "POST")
    (head,) = either.raw(
        b"HEAD /api/v1/identify/url HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )
    assert (head.status, head.body, head.headers["content-length"]) == (405, b"", "77")


@pytest.mark.parametrize("body", GOOD_BODIES.values(), ids=GOOD_BODIES)
def test_unusual_valid_body_is_accepted(client: Client, body: bytes) -> None:
    assert client.post(URL, body).status == 200


@pytest.mark.parametrize(("path", "body", "reason"), INVALID.values(), ids=INVALID)
def test_invalid_value_is_rejected_with_its_reason(
    either: Client, path: str, body: bytes, reason: str
) -> None:
    reply = either.post(path, body)
    assert (reply.status, reply.code) == (422, "invalid_format")
    assert reply.headers["x-error-reason"] == reason


def test_every_reason_is_tried() -> None:
    """Those that are missing here are tried by the tests of batch and verify."""
    of_features = {"identifier_header", "item_invalid", "items_number"}
    assert {reason for *_, reason in INVALID.values()} | of_features == {*InvalidFormat.REASONS}


def test_body_over_the_limit_is_rejected(wire: Client) -> None:
    (reply,) = wire.until_closed(
        b"POST /api/v1/identify/url HTTP/1.1\r\nHost: x\r\nContent-Length: 16385\r\n\r\n"
        + b" " * 16385
    )
    assert (reply.status, reply.code) == (413, "body_too_large")


@pytest.mark.parametrize("text", FOUND)
def test_every_spelling_of_a_user_finds_the_user(client: Client, text: str) -> None:
    assert client.by_input(text).status == 200


@pytest.mark.parametrize("text", ABSENT)
def test_similar_name_is_another_user(client: Client, text: str) -> None:
    reply = client.by_input(text)
    assert (reply.status, reply.code) == (404, "not_found")


def test_similar_number_is_another_card(client: Client) -> None:
    for text in ("0", "00", "04000123412341234", "400012341234123", "9" * 32):
        assert client.by_card(text).code == "not_found"


@pytest.mark.parametrize("value", GOOD_KEYS.values(), ids=GOOD_KEYS)
def test_case_and_spaces_of_the_scheme_are_ignored(either: Client, value: str) -> None:
    headers = {"Authorization": value}
    assert either.post(URL, b'{"input": "@alice"}', headers).status == 200


@pytest.mark.parametrize("value", BAD_KEYS.values(), ids=BAD_KEYS)
def test_invalid_keys_get_the_same_response(either: Client, value: str | None) -> None:
    reply = either.post(URL, b'{"input": "@alice"}', {"Authorization": value})
    assert (reply.status, reply.code) == (401, "token_invalid_or_expired")
    assert reply.headers["www-authenticate"] == "Bearer"
    assert "x-error-reason" not in reply.headers


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        (f"{URL}?access_token={KEY}", {}),
        (URL, {"Cookie": f"token={KEY}"}),
        (URL, {"X-API-Key": KEY}),
        (URL, {"Proxy-Authorization": f"Bearer {KEY}"}),
        (URL, {"X-Forwarded-For": "127.0.0.1"}),
    ],
    ids=["query", "cookie", "other header", "proxy header", "forwarded"],
)
def test_key_is_accepted_only_in_the_authorization_header(
    either: Client, path: str, headers: dict[str, str]
) -> None:
    reply = either.send("POST", path, {"Host": "x", **headers}, b'{"input": "@alice"}')
    assert reply.status == 401


def test_two_authorization_headers_are_rejected(either: Client) -> None:
    key = f"Authorization: Bearer {KEY}\r\n".encode()
    head = b"POST /api/v1/identify/url HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n"
    (reply,) = either.raw(head + key + key + b"\r\n{}")
    assert reply.status == 401
