"""That aiohttp's connections are used as aiohttp itself uses them, which it documents nowhere."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from scripted import http, serving
from transports import ask, opened

from idv_upstream.request import Asking
from tornado_idv import Broken

ANSWER = http(200, b"{}")
OURS_ALONE = {"auto_decompress": False}
THEIRS_ALONE = {
    "timer",
    "read_timeout",
    "read_bufsize",
    "timeout_ceil_threshold",
    "max_line_size",
    "max_field_size",
    "max_headers",
}
"""What the session passes for settings of its own, and what has the same default without it."""


class Used:
    """Notes what is called of a connection, in its order, and with what answers are read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.parameters: dict[str, Any] = {}
        self._monkeypatch = monkeypatch
        for owner, name in (
            (aiohttp.TCPConnector, "connect"),
            (ResponseHandler, "set_response_params"),
            (ResponseHandler, "read"),
            (Connection, "release"),
            (Connection, "close"),
        ):
            self._note(owner, name)

    def _note(self, owner: type, name: str) -> None:
        original = getattr(owner, name)

        def noted(*given: Any, **named: Any) -> Any:
            self.calls.append(name)
            if name == "set_response_params":
                self.parameters = named
            return original(*given, **named)

        self._monkeypatch.setattr(owner, name, noted)


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
async def test_a_connection_is_used_as_by_the_session(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    async with serving(ANSWER if method != "HEAD" else http(200)) as upstream:
        theirs = Used(monkeypatch)
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, upstream.address) as response,
        ):
            await response.read()
        monkeypatch.undo()
        ours = Used(monkeypatch)
        async with opened(upstream.address) as made:
            await ask(made, Asking(method, "/", {}, None, repeatable=True))
    assert ours.calls == theirs.calls == ["connect", "set_response_params", "read", "release"]
    assert ours.parameters | OURS_ALONE == ours.parameters
    passed = {name: value for name, value in theirs.parameters.items() if name not in THEIRS_ALONE}
    assert passed | OURS_ALONE == ours.parameters


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
async def test_a_body_s_length_is_told_as_by_the_session(
    method: str, body: bytes | None, length: str | None
) -> None:
    async with serving(http(200)) as upstream:
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, upstream.address, data=body),
        ):
            pass
        async with opened(upstream.address) as made:
            await ask(made, Asking(method, "/", {}, body, repeatable=True))
    told = [
        [line for line in request.split(b"\r\n") if line.lower().startswith(b"content-length")]
        for request in upstream.requests
    ]
    ours = [] if length is None else [f"Content-Length: {length}".encode()]
    assert told[0] == told[1] == ours


@pytest.mark.parametrize("status", [b"099", b"000"])
async def test_a_status_that_is_none_is_not_waited_behind(status: bytes) -> None:
    """It is the answer, and not one before the answer."""
    answer = b"HTTP/1.1 " + status + b" Canary\r\nContent-Length: 0\r\n\r\n"
    async with serving(answer) as upstream, opened(upstream.address) as made:
        reply = await ask(made)
    assert reply.status == int(status)


async def test_a_method_is_of_letters() -> None:
    async with serving(ANSWER) as upstream, opened(upstream.address) as made:
        for method in ("GÉT", "G T", "", "GET /"):
            with pytest.raises(Broken, match="it cannot be asked"):
                await ask(made, Asking(method, "/", {}, None, repeatable=True))
    assert upstream.requests == []


@pytest.mark.parametrize(
    "url", ["/a b", "/a#b", "/\r\nX-Evil: 1", "/\x00", "/é", "http://host/a b"], ids=repr
)
async def test_a_url_that_is_no_url_is_not_sent(url: str) -> None:
    async with serving(ANSWER) as upstream, opened(upstream.address) as made:
        with pytest.raises(Broken, match="it cannot be asked"):
            await ask(made, Asking("GET", url, {}, None, repeatable=True))
    assert upstream.requests == []
