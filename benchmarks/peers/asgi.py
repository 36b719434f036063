"""A bare ASGI function: the least Python code for uvicorn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from benchmarks.peers.contract import FORMAT, PATH, TOKEN, find, is_key
from benchmarks.peers.on_uvicorn import serve

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
_JSON = (b"content-type", b"application/json")
_CHALLENGE = (b"www-authenticate", b"Bearer")
_PLAIN_404 = (404, {"status": "error", "code": "no_such_route", "message": "No such route"})


async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    status, record = await _respond(scope, receive)
    body = orjson.dumps(record)
    headers = [_JSON, (b"content-length", str(len(body)).encode())]
    if record is TOKEN:
        headers.append(_CHALLENGE)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _respond(scope: dict[str, Any], receive: Receive) -> tuple[int, dict[str, str]]:
    if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] != PATH:
        return _PLAIN_404
    authorization = next(
        (value for name, value in scope["headers"] if name == b"authorization"), b""
    )
    if not is_key(authorization.decode("latin-1")):
        return 401, TOKEN
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    try:
        return find(orjson.loads(body))
    except orjson.JSONDecodeError:
        return 422, FORMAT


if __name__ == "__main__":
    serve(app)
