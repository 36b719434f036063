"""Bodies, nicknames, profile URLs, card numbers and keys, each with its answer."""

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
from support.processes.service import KEY, Client
from tornado_idv.errors import InvalidFormat


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
