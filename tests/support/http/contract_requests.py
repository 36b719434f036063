"""The accepted and rejected requests of the contract, as bytes."""

from support.http.contract_values import (
    ABSENT,
    BAD_KEYS,
    FOUND,
    GOOD_BODIES,
    GOOD_KEYS,
    INVALID,
    URL,
)
from support.http.raw_requests import READ, REFUSED
from support.processes.service import KEY


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
