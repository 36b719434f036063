"""``X-Error-Reason``: the cause of an error whose code has several."""

from __future__ import annotations

import codecs
import json

import pytest

from support.http.contract_values import BAD_KEYS, CARD, SITE, URL
from support.processes.service import Client
from tornado_idv.errors import InvalidFormat

BODIES = {
    "not_json": [b"", b"input=@alice", b'{"input": "@a", "input": "@a"}', b"{} {}"],
    "byte_order_mark": [
        codecs.BOM_UTF8 + b'{"input": "@alice"}',
        codecs.BOM_UTF8 + b'{"card_number": "4000"}',
        codecs.BOM_UTF16_LE + '{"input": "@alice"}'.encode("utf-16-le"),
        codecs.BOM_UTF16_BE + '{"input": "@alice"}'.encode("utf-16-be"),
    ],
    "not_an_object": [b"[]", b"null", b'"@alice"'],
    "member_missing": [b"{}", b'{"card_number": "4000"}', b'{"Input": "@alice"}'],
    "member_not_a_string": [b'{"input": null}', b'{"input": 12}', b'{"input": ["@alice"]}'],
}
INPUTS = {
    "nickname_without_at": ["alice", "4000123412341234", "A.b_c-9"],
    "nickname_invalid": ["@", "@a b", "@...", f"{SITE}/m/", f"{SITE}/m/a/b", f"{SITE}/m/@alice"],
    "not_an_identifier": ["", " alice", "profiles.example/m/alice", "alice@example.org"],
    "other_site": [
        "https://evil.example/m/alice",
        f"{SITE}@evil.example/m/alice",
        f"{SITE}.evil.example/m/alice",
        f"{SITE}:444/m/alice",
        f"{SITE}\\@evil.example/m/alice",
        "file:///etc/hosts",
    ],
    "other_scheme": ["http://profiles.example/m/alice", "HTTP://Profiles.Example/x"],
    "url_without_m": [SITE, f"{SITE}/alice", f"{SITE}/users/alice", f"{SITE}?m", f"{SITE}//m/a"],
    "url_with_query": [f"{SITE}/m/alice?tab=1", f"{SITE}/m/alice#top"],
}
CARDS = {
    "card_not_digits": ["", "4000 1234", "4000-1234", "+4000", "\u0664\u0660"],
    "card_length": ["4" * 33, "0" * 2000],
}
OF_FEATURES = {"identifier_header", "item_invalid", "items_number"}
"""Reasons that tests of batch and verify try."""
REQUESTS = [
    *((URL, reason, body) for reason, bodies in BODIES.items() for body in bodies),
    *(
        (path, reason, json.dumps({member: value}).encode())
        for path, member, values in ((URL, "input", INPUTS), (CARD, "card_number", CARDS))
        for reason, of_reason in values.items()
        for value in of_reason
    ),
]


@pytest.mark.parametrize(("path", "reason", "body"), REQUESTS)
def test_reason_names_the_mistake(either: Client, path: str, reason: str, body: bytes) -> None:
    reply = either.post(path, body)
    assert (reply.code, reply.headers["x-error-reason"]) == ("invalid_format", reason)


def test_every_reason_is_tried() -> None:
    tried = {reason for _, reason, _ in REQUESTS}
    assert tried | OF_FEATURES == set(InvalidFormat.REASONS)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("Content-Type", "application/x-www-form-urlencoded", "content_type"),
        ("Content-Type", "application/json; charset=latin-1", "content_type"),
        ("Content-Encoding", "gzip", "content_encoding"),
    ],
)
def test_reason_of_a_media_type(either: Client, field: str, value: str, reason: str) -> None:
    reply = either.post(URL, b'{"input": "@alice"}', {field: value})
    assert (reply.code, reply.headers["x-error-reason"]) == ("unsupported_media_type", reason)


@pytest.mark.parametrize("key", BAD_KEYS.values(), ids=BAD_KEYS)
def test_rejected_key_has_no_reason(either: Client, key: str | None) -> None:
    reply = either.post(URL, b"", {"Authorization": key})
    assert reply.status == 401
    assert "x-error-reason" not in reply.headers


def test_found_and_not_found_have_no_reason(either: Client) -> None:
    for text, status in (("@alice", 200), ("@nobody", 404)):
        reply = either.by_input(text)
        assert reply.status == status
        assert "x-error-reason" not in reply.headers
