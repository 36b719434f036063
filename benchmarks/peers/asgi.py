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


class Rejected(Exception):
    """A request without a document; the arguments are the status and the record of the response."""


async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    try:
        status, record = find(await read(scope, receive))
    except Rejected as error:
        status, record = error.args
    await respond(send, status, record)


async def read(scope: dict[str, Any], receive: Receive) -> Any:
    """Return the decoded body of a request with a valid key; raises `Rejected`."""
    if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] != PATH:
        raise Rejected(*_PLAIN_404)
    authorization = next(
        (value for name, value in scope["headers"] if name == b"authorization"), b""
    )
    if not is_key(authorization.decode("latin-1")):
        raise Rejected(401, TOKEN)
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        raise Rejected(422, FORMAT) from None


async def respond(send: Send, status: int, record: dict[str, str]) -> None:
    """Send a response."""
    body = orjson.dumps(record)
    headers = [_JSON, (b"content-length", str(len(body)).encode())]
    if record is TOKEN:
        headers.append(_CHALLENGE)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


if __name__ == "__main__":
    serve(app)
