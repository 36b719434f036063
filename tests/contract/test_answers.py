"""The answers of the contract, byte for byte, and what every answer carries."""

import pytest

from support.processes.service import CARDS_ONLY_KEY, KEY, Client, Reply

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
    reply = client.post("/api/v1/identify/url", b"{", headers)
    assert (reply.status, reply.body) == (401, INVALID_KEY)
    assert reply.headers["www-authenticate"] == "Bearer"
    check_headers(reply)


def test_key_without_the_scope_is_rejected(either: Client) -> None:
    headers = {"Authorization": f"Bearer {CARDS_ONLY_KEY}"}
    refused = either.post("/api/v1/identify/url", b"{", headers)
    assert (refused.status, refused.code) == (403, "insufficient_scope")
    allowed = either.post("/api/v1/identify/card", b'{"card_number": "1"}', headers)
    assert allowed.status == 404


def test_valid_request_id_of_the_client_is_returned(either: Client) -> None:
    for asked, echoed in (("Job-1_2.3", True), ("x" * 64, True), ("x" * 65, False), ("a b", False)):
        fields = {"X-Request-ID": asked, "X-IDV-Request-ID": asked}
        reply = either.post("/api/v1/identify/url", b"{}", fields)
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
    reply = either.send("DELETE", "/api/v1/identify/url", {"Host": "x"})
    assert (reply.status, reply.headers["allow"]) == (405, "POST")
    (head,) = either.raw(
        b"HEAD /api/v1/identify/url HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )
    assert (head.status, head.body, head.headers["content-length"]) == (405, b"", "77")
