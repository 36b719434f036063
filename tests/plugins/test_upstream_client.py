"""One request as it is sent, and what cannot be sent."""

from __future__ import annotations

import aiohttp
import pytest

from idv_upstream.request.template import Request
from support.http.scripted_server import http, serving
from support.http.upstream_transport import ask, opened
from tornado_idv import Broken

ANSWER = http(200, b"{}")


@pytest.mark.parametrize(
    ("method", "body", "length"),
    [
        ("GET", None, None),
        ("HEAD", None, None),
        ("GET", b"{}", "2"),
        ("POST", None, "0"),
        ("POST", b"", "0"),
        ("DELETE", None, "0"),
        ("PUT", b"{}", "2"),
    ],
)
async def test_length_of_a_body_is_sent_where_it_is_needed(
    method: str, body: bytes | None, length: str | None
) -> None:
    async with serving(http(200)) as upstream:
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, upstream.address, data=body),
        ):
            pass
        async with opened(upstream.address) as made:
            await ask(made, Request(method, "/", {}, body, repeatable=True))
    sent = [
        [line for line in request.split(b"\r\n") if line.lower().startswith(b"content-length")]
        for request in upstream.requests
    ]
    ours = [] if length is None else [f"Content-Length: {length}".encode()]
    assert sent[0] == sent[1] == ours


@pytest.mark.parametrize("status", [b"099", b"000"])
async def test_status_below_100_is_a_final_response(status: bytes) -> None:
    """Not an interim one, behind which another would follow."""
    answer = b"HTTP/1.1 " + status + b" Canary\r\nContent-Length: 0\r\n\r\n"
    async with serving(answer) as upstream, opened(upstream.address) as made:
        reply = await ask(made)
    assert reply.status == int(status)


async def test_invalid_method_is_not_sent() -> None:
    async with serving(ANSWER) as upstream, opened(upstream.address) as made:
        for method in ("GÉT", "G T", "GET /"):
            with pytest.raises(Broken, match="the request cannot be sent"):
                await ask(made, Request(method, "/", {}, None, repeatable=True))
    assert upstream.requests == []


@pytest.mark.parametrize(
    "url", ["/a b", "/a#b", "/\r\nX-Evil: 1", "/\x00", "/é", "http://host/a b"], ids=repr
)
async def test_invalid_url_is_not_sent(url: str) -> None:
    async with serving(ANSWER) as upstream, opened(upstream.address) as made:
        with pytest.raises(Broken, match="the request cannot be sent"):
            await ask(made, Request("GET", url, {}, None, repeatable=True))
    assert upstream.requests == []
