"""Bodies, nicknames, profile URLs, card numbers and keys, each with its answer."""

from __future__ import annotations

import hashlib
import json

import pytest
from serving import EXPIRED_KEY, KEY, Client

URL = "/api/v1/identify/url"
CARD = "/api/v1/identify/card"
SITE = "https://profiles.example"

GOOD_BODIES = {
    "members of no concern": b'{"x": null, "input": "@alice", "y": {"z": [1.5, true]}}',
    "a float without bounds in one": b'{"input": "@alice", "x": -1e400}',
    "an integer without bounds in one": b'{"input": "@alice", "x": ' + b"7" * 5000 + b"}",
    "a lone surrogate in one": b'{"input": "@alice", "x": "\\udc00"}',
    "some nesting in one": b'{"input": "@alice", "x": ' + b"[" * 60 + b"]" * 60 + b"}",
    "many lists beside each other": b'{"input": "@alice", "x": [' + b"[]," * 1000 + b"1]}",
    "brackets in text": b'{"input": "@alice", "x": "\\"' + b"[" * 1000 + b'"}',
    "every character escaped": b'{"\\u0069nput": "\\u0040\\u0061lice"}',
    "slashes escaped": b'{"input": "https:\\/\\/profiles.example\\/m\\/alice"}',
    "white space all around": b'\r\n\t {"input" :\n"@alice" } \n',
    "padding up to the limit": b'{"input": "@alice"}'.ljust(16 * 1024),
}

BAD_BODIES = {
    "nothing": b"",
    "blanks": b" \n",
    "a form": b"input=@alice",
    "an object cut short": b'{"input": "@alice"',
    "a second object": b'{"input": "@alice"} {}',
    "a comma too many": b'{"input": "@alice",}',
    "single quotes": b"{'input': '@alice'}",
    "a comment": b'{"input": "@alice"} // hi',
    "a list": b'[{"input": "@alice"}]',
    "bare text": b'"@alice"',
    "null": b"null",
    "no member": b"{}",
    "another member": b'{"Input": "@alice"}',
    "the other operation's member": b'{"card_number": "4000123412341234"}',
    "null as value": b'{"input": null}',
    "a number as value": b'{"input": 12}',
    "a list as value": b'{"input": ["@alice"]}',
    "an object as value": b'{"input": {"eq": "@alice"}}',
    "the member twice": b'{"input": "@alice", "input": "@alice"}',
    "the member twice, once escaped": b'{"input": "@alice", "inpu\\u0074": "@bob"}',
    "NaN": b'{"input": "@alice", "x": NaN}',
    "Infinity": b'{"input": "@alice", "x": -Infinity}',
    "a byte order mark": b'\xef\xbb\xbf{"input": "@alice"}',
    "UTF-16": '{"input": "@alice"}'.encode("utf-16"),
    "Latin-1": b'{"input": "@\xe9"}',
    "an overlong form": b'{"input": "\xc1\x80alice"}',
    "an encoded surrogate": b'{"input": "@\xed\xa0\x80"}',
    "a lone surrogate as value": b'{"input": "@\\ud83d"}',
    "a raw line feed in text": b'{"input": "@ali\nce"}',
    "a raw NUL in text": b'{"input": "@ali\x00ce"}',
    "nesting without end": b'{"input": "@alice", "x": ' + b"[" * 8000 + b"]" * 8000 + b"}",
    "nesting of 257": b'{"input": "@alice", "x": ' + b"[" * 256 + b"]" * 256 + b"}",
    "brackets without end": b"[" * 8000,
    "XML": b"<input>@alice</input>",
}

FOUND = [
    f"{SITE}/m/alice",
    f"{SITE}/m/alice/",
    f"{SITE}:443/m/alice",
    "HTTPS://Profiles.EXAMPLE/m/alice",
]

ABSENT = ["@a", "@ALICE", "@alic", "@alice.", "@-_.-", "@" + "n" * 64, f"{SITE}/m/Alice"]

BAD_INPUTS = {
    "nothing": "",
    "a bare name": "alice",
    "the sign alone": "@",
    "two signs": "@@alice",
    "a blank in front": " @alice",
    "a blank behind": "@alice ",
    "a line feed behind": "@alice\n",
    "a carriage return behind": "@alice\r",
    "a NUL behind": "@alice\x00",
    "a dot": "@.",
    "three dots": "@...",
    "a slash": "@a/b",
    "a percent sign": "@a%",
    "an encoded letter": "@%61lice",
    "a quote": "@a'--",
    "a semicolon": "@a;b",
    "a brace": "@{alice}",
    "a wild card": "@*",
    "markup": "@<b>",
    "an accent": "@alic\u00e9",
    "a Greek letter": "@\u03b1lice",
    "a wide letter": "@\uff41lice",
    "a wide sign": "\uff20alice",
    "a zero-width space": "@alice\u200b",
    "a bidi override": "@\u202ealice",
    "an emoji": "@\U0001f600",
    "an escape sequence": "@\x1b[31m",
    "65 characters": "@" + "n" * 65,
    "the site alone": SITE,
    "no name": f"{SITE}/m/",
    "two slashes behind": f"{SITE}/m/alice//",
    "two slashes between": f"{SITE}//m/alice",
    "two slashes before the name": f"{SITE}/m//alice",
    "another path": f"{SITE}/users/alice",
    "the path in capitals": f"{SITE}/M/alice",
    "a longer path": f"{SITE}/m/alice/edit",
    "the sign in the URL": f"{SITE}/m/@alice",
    "a query": f"{SITE}/m/alice?tab=1",
    "a fragment": f"{SITE}/m/alice#top",
    "an encoded slash": f"{SITE}/m/alice%2Fbob",
    "dot segments": f"{SITE}/m/../m/alice",
    "dots as name": f"{SITE}/m/..",
    "another scheme": "http://profiles.example/m/alice",
    "no scheme": "//profiles.example/m/alice",
    "a script scheme": "javascript:alert(1)",
    "one slash after the scheme": "https:/profiles.example/m/alice",
    "backslashes": "https:\\\\profiles.example\\m\\alice",
    "another port": f"{SITE}:444/m/alice",
    "an empty port": f"{SITE}:/m/alice",
    "the port with a zero in front": f"{SITE}:0443/m/alice",
    "the port in other digits": f"{SITE}:\u0664\u0664\u0663/m/alice",
    "user info": "https://me@profiles.example/m/alice",
    "the site as user info": f"{SITE}@evil.example/m/alice",
    "the site before a backslash": f"{SITE}\\@evil.example/m/alice",
    "another host": "https://evil.example/m/alice",
    "a longer host": "https://profiles.example.evil.example/m/alice",
    "a host that ends so": "https://evil-profiles.example/m/alice",
    "a dot after the host": "https://profiles.example./m/alice",
    "a host in other letters": "https://pro\u017files.example/m/alice",
    "a tab in the host": "https://profi\tles.example/m/alice",
    "the site inside a path": f"https://evil.example/{SITE}/m/alice",
    "a blank before the URL": f" {SITE}/m/alice",
    "a loopback address": "http://127.0.0.1/m/alice",
    "a file": "file:///etc/hosts",
}

BAD_CARDS = {
    "nothing": "",
    "a blank": " ",
    "groups": "4000 1234 1234 1234",
    "dashes": "4000-1234-1234-1234",
    "a line feed behind": "4000123412341234\n",
    "a sign": "+4000123412341234",
    "a fraction": "4000123412341234.0",
    "an exponent": "4e15",
    "an underscore": "4000_1234",
    "hexadecimal": "0x1f",
    "a letter": "400012341234123a",
    "33 digits": "4" * 33,
    "Arabic digits": "\u0664\u0660\u0660\u0660",
    "wide digits": "\uff14\uff10\uff10\uff10",
    "superscripts": "4\u00b2",
    "a NUL behind": "4000123412341234\x00",
    "two numbers": "4000123412341234,1",
    "a nickname": "@alice",
}

GOOD_KEYS = {
    "capitals": f"BEARER {KEY}",
    "small letters": f"bearer {KEY}",
    "three blanks": f"Bearer   {KEY}",
}

BAD_KEYS = {
    "no header": None,
    "an empty one": "",
    "the scheme alone": "Bearer",
    "the scheme and a blank": "Bearer ",
    "the key alone": KEY,
    "another scheme": f"Token {KEY}",
    "basic": f"Basic {KEY}",
    "a colon": f"Bearer: {KEY}",
    "a tab": f"Bearer\t{KEY}",
    "an equals sign": f"Bearer={KEY}",
    "quotes": f'Bearer "{KEY}"',
    "two keys": f"Bearer {KEY} {KEY}",
    "a list": f"Bearer {KEY}, Bearer {KEY}",
    "another case": f"Bearer {KEY.swapcase()}",
    "a letter less": f"Bearer {KEY[:-1]}",
    "a letter more": f"Bearer {KEY}a",
    "the digest": "Bearer " + hashlib.sha256(KEY.encode()).hexdigest(),
    "an expired key": f"Bearer {EXPIRED_KEY}",
    "an unknown key": "Bearer " + "A" * 40,
    "a key without end": "Bearer " + "A" * 600,
    "a word": "Bearer undefined",
    "other letters": "Bearer \u00fcber",
}


@pytest.mark.parametrize("body", GOOD_BODIES.values(), ids=GOOD_BODIES)
def test_a_body_that_is_odd_but_right_is_read(client: Client, body: bytes) -> None:
    assert client.post(URL, body).status == 200


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES)
def test_a_body_that_is_wrong_is_refused(client: Client, body: bytes) -> None:
    reply = client.post(URL, body)
    assert (reply.status, reply.code) == (422, "invalid_format")


def test_a_body_over_the_limit_is_refused(wire: Client) -> None:
    (reply,) = wire.until_closed(
        b"POST /api/v1/identify/url HTTP/1.1\r\nHost: x\r\nContent-Length: 16385\r\n\r\n"
        + b" " * 16385
    )
    assert (reply.status, reply.code) == (413, "body_too_large")


@pytest.mark.parametrize("text", FOUND)
def test_every_spelling_of_a_user_finds_the_user(client: Client, text: str) -> None:
    assert client.by_input(text).status == 200


@pytest.mark.parametrize("text", ABSENT)
def test_another_name_is_another_user(client: Client, text: str) -> None:
    reply = client.by_input(text)
    assert (reply.status, reply.code) == (404, "not_found")


@pytest.mark.parametrize("text", BAD_INPUTS.values(), ids=BAD_INPUTS)
def test_input_in_no_valid_form_is_refused(client: Client, text: str) -> None:
    reply = client.by_input(text)
    assert (reply.status, reply.code) == (422, "invalid_format")


@pytest.mark.parametrize("text", ["0", "00", "04000123412341234", "400012341234123", "9" * 32])
def test_another_number_is_another_card(client: Client, text: str) -> None:
    reply = client.by_card(text)
    assert (reply.status, reply.code) == (404, "not_found")


@pytest.mark.parametrize("text", BAD_CARDS.values(), ids=BAD_CARDS)
def test_a_card_number_in_no_valid_form_is_refused(client: Client, text: str) -> None:
    reply = client.by_card(text)
    assert (reply.status, reply.code) == (422, "invalid_format")


@pytest.mark.parametrize("value", [4000123412341234, 4.0, True, None, ["1"], {"a": "1"}], ids=repr)
def test_a_card_number_that_is_no_text_is_refused(client: Client, value: object) -> None:
    reply = client.post(CARD, json.dumps({"card_number": value}).encode())
    assert (reply.status, reply.code) == (422, "invalid_format")


@pytest.mark.parametrize("value", GOOD_KEYS.values(), ids=GOOD_KEYS)
def test_the_scheme_s_case_and_blanks_are_free(wire: Client, value: str) -> None:
    headers = {"Authorization": value}
    assert wire.post(URL, b'{"input": "@alice"}', headers).status == 200


@pytest.mark.parametrize("value", BAD_KEYS.values(), ids=BAD_KEYS)
def test_what_is_no_good_key_is_refused_alike(wire: Client, value: str | None) -> None:
    reply = wire.post(URL, b'{"input": "@alice"}', {"Authorization": value})
    assert (reply.status, reply.code) == (401, "token_invalid_or_expired")
    assert reply.headers["www-authenticate"] == "Bearer"


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
def test_a_key_is_read_nowhere_else(wire: Client, path: str, headers: dict[str, str]) -> None:
    reply = wire.send("POST", path, {"Host": "x", **headers}, b'{"input": "@alice"}')
    assert reply.status == 401


def test_two_authorization_headers_are_no_key(wire: Client) -> None:
    key = f"Authorization: Bearer {KEY}\r\n".encode()
    head = b"POST /api/v1/identify/url HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n"
    (reply,) = wire.raw(head + key + key + b"\r\n{}")
    assert reply.status == 401
