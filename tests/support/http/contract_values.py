"""Values of the contract: bodies, inputs, card numbers and keys, accepted and rejected.

And the requests with them, as bytes.
"""

import hashlib
import json
from codecs import BOM_UTF16_BE, BOM_UTF16_LE

from support.http.raw_requests import READ, REFUSED
from support.processes.service import EXPIRED_KEY, KEY

URL = "/api/v1/identify/url"
CARD = "/api/v1/identify/card"
BATCH = "/api/v1/identify/batch"
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
    "not_json": {
        "nothing": b"",
        "a form": b"input=@alice",
        "an object cut short": b'{"input": "@alice"',
        "a second object": b'{"input": "@alice"} {}',
        "the member twice": b'{"input": "@alice", "input": "@alice"}',
        "the member twice, once escaped": b'{"input": "@alice", "inpu\\u0074": "@bob"}',
        "NaN": b'{"input": "@alice", "x": NaN}',
        "Latin-1": b'{"input": "@\xe9"}',
        "an overlong form": b'{"input": "\xc1\x80alice"}',
        "an encoded surrogate": b'{"input": "@\xed\xa0\x80"}',
        "a raw line feed in text": b'{"input": "@ali\nce"}',
        "nesting of 257": b'{"input": "@alice", "x": ' + b"[" * 256 + b"]" * 256 + b"}",
        "brackets without end": b"[" * 8000,
    },
    "byte_order_mark": {
        "UTF-8": b'\xef\xbb\xbf{"input": "@alice"}',
        "UTF-16": BOM_UTF16_LE + '{"input": "@alice"}'.encode("utf-16-le"),
        "UTF-16, big endian": BOM_UTF16_BE + '{"input": "@alice"}'.encode("utf-16-be"),
    },
    "not_an_object": {
        "a list": b'[{"input": "@alice"}]',
        "bare text": b'"@alice"',
        "null": b"null",
    },
    "member_missing": {
        "no member": b"{}",
        "another member": b'{"Input": "@alice"}',
        "the other operation's member": b'{"card_number": "4000123412341234"}',
    },
    "member_not_a_string": {
        "null": b'{"input": null}',
        "a number": b'{"input": 12}',
        "a list": b'{"input": ["@alice"]}',
    },
    "nickname_invalid": {"a lone surrogate": b'{"input": "@\\ud83d"}'},
}
"""Bodies that are rejected, by the reason."""

FOUND = [
    f"{SITE}/m/alice",
    f"{SITE}/m/alice/",
    f"{SITE}:443/m/alice",
    "HTTPS://Profiles.EXAMPLE/m/alice",
]

ABSENT = ["@a", "@ALICE", "@alic", "@alice.", "@-_.-", "@" + "n" * 64, f"{SITE}/m/Alice"]

BAD_INPUTS = {
    "nickname_without_at": {"a name": "alice", "a card number": "4000123412341234"},
    "nickname_invalid": {
        "the sign alone": "@",
        "two signs": "@@alice",
        "a blank behind": "@alice ",
        "a line feed behind": "@alice\n",
        "a NUL behind": "@alice\x00",
        "three dots": "@...",
        "a slash": "@a/b",
        "markup": "@<b>",
        "an accent": "@alic\u00e9",
        "a zero-width space": "@alice\u200b",
        "65 characters": "@" + "n" * 65,
        "no name": f"{SITE}/m/",
        "two slashes behind": f"{SITE}/m/alice//",
        "two slashes before the name": f"{SITE}/m//alice",
        "a longer path": f"{SITE}/m/alice/edit",
        "the sign in the URL": f"{SITE}/m/@alice",
        "an encoded slash": f"{SITE}/m/alice%2Fbob",
        "dot segments": f"{SITE}/m/../m/alice",
        "dots as name": f"{SITE}/m/..",
    },
    "not_an_identifier": {
        "nothing": "",
        "a blank in front": " @alice",
        "a wide sign": "\uff20alice",
        "a mail address": "alice@example.org",
        "a script scheme": "javascript:alert(1)",
        "no scheme": "//profiles.example/m/alice",
        "the host alone": "profiles.example/m/alice",
        "one slash after the scheme": "https:/profiles.example/m/alice",
        "backslashes": "https:\\\\profiles.example\\m\\alice",
    },
    "other_scheme": {
        "another scheme": "HTTP://Profiles.Example/x",
        "a blank before the URL": f" {SITE}/m/alice",
    },
    "other_site": {
        "another port": f"{SITE}:444/m/alice",
        "an empty port": f"{SITE}:/m/alice",
        "the port with a zero in front": f"{SITE}:0443/m/alice",
        "the port in other digits": f"{SITE}:\u0664\u0664\u0663/m/alice",
        "user info": "https://me@profiles.example/m/alice",
        "the site as user info": f"{SITE}@evil.example/m/alice",
        "the site before a backslash": f"{SITE}\\@evil.example/m/alice",
        "a longer host": f"{SITE}.evil.example/m/alice",
        "a host that ends so": "https://evil-profiles.example/m/alice",
        "a dot after the host": f"{SITE}./m/alice",
        "a host in other letters": "https://pro\u017files.example/m/alice",
        "a tab in the host": "https://profi\tles.example/m/alice",
        "the site inside a path": f"https://evil.example/{SITE}/m/alice",
        "a file": "file:///etc/hosts",
    },
    "url_without_m": {
        "the site alone": SITE,
        "a query alone": f"{SITE}?m",
        "another path": f"{SITE}/users/alice",
        "the path in capitals": f"{SITE}/M/alice",
        "two slashes between": f"{SITE}//m/alice",
    },
    "url_with_query": {"a query": f"{SITE}/m/alice?tab=1", "a fragment": f"{SITE}/m/alice#top"},
}

BAD_CARDS = {
    "card_not_digits": {
        "nothing": "",
        "groups": "4000 1234 1234 1234",
        "a line feed behind": "4000123412341234\n",
        "a sign": "+4000123412341234",
        "a letter": "400012341234123a",
        "Arabic digits": "\u0664\u0660\u0660\u0660",
        "superscripts": "4\u00b2",
        "a nickname": "@alice",
    },
    "card_length": {"33 digits": "4" * 33},
}

INVALID = {
    **{
        f"{reason}: {name}": (URL, body, reason)
        for reason, bodies in BAD_BODIES.items()
        for name, body in bodies.items()
    },
    **{
        f"{reason}: {member} of {name}": (path, json.dumps({member: text}).encode(), reason)
        for path, member, values in ((URL, "input", BAD_INPUTS), (CARD, "card_number", BAD_CARDS))
        for reason, texts in values.items()
        for name, text in texts.items()
    },
    "a number as card number": (CARD, b'{"card_number": 4000123412341234}', "member_not_a_string"),
}
"""Path and body of each request that is rejected, with the reason."""

GOOD_KEYS = {
    "capitals": f"BEARER {KEY}",
    "small letters": f"bearer {KEY}",
    "three blanks": f"Bearer   {KEY}",
}

BAD_KEYS = {
    "no header": None,
    "an empty one": "",
    "the scheme alone": "Bearer",
    "the key alone": KEY,
    "another scheme": f"Token {KEY}",
    "a tab": f"Bearer\t{KEY}",
    "a blank and a tab": f"Bearer \t{KEY}",
    "two keys": f"Bearer {KEY} {KEY}",
    "a list": f"Bearer {KEY}, Bearer {KEY}",
    "another case": f"Bearer {KEY.swapcase()}",
    "a letter more": f"Bearer {KEY}a",
    "the digest": "Bearer " + hashlib.sha256(KEY.encode()).hexdigest(),
    "an expired key": f"Bearer {EXPIRED_KEY}",
    "an unknown key": "Bearer " + "A" * 40,
    "a key without end": "Bearer " + "A" * 600,
    "other letters": "Bearer \u00fcber",
}


def post(path: str, body: bytes, key: str | None = f"Bearer {KEY}") -> bytes:
    """A request as the tests of the contract send it."""
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}"]
    lines += [] if key is None else [f"Authorization: {key}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


TABLE = {
    **{f"good body: {name}": post(URL, body) for name, body in GOOD_BODIES.items()},
    **{f"input: {text}": post(URL, b'{"input": "%b"}' % text.encode()) for text in FOUND + ABSENT},
    **{f"invalid, {name}": post(path, body) for name, (path, body, _) in INVALID.items()},
    **{f"key: {name}": post(URL, b'{"input": "@alice"}', k) for name, k in GOOD_KEYS.items()},
    **{f"key: {name}": post(URL, b'{"input": "@alice"}', k) for name, k in BAD_KEYS.items()},
    **{f"read: {name}": data for name, data in READ.items()},
    **{f"refused: {name}": data for name, (data, *_) in REFUSED.items()},
}
"""The contract's good and bad requests, as bytes."""
