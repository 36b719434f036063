"""Both clients of the service behind one asynchronous interface, and responses for them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any, Literal

from support.http.scripted_server import REQUEST_ID, http
from tornado_idv.client import AsyncClient, Client, User

Kind = Literal["synchronous", "asynchronous"]
KINDS: tuple[Kind, ...] = ("synchronous", "asynchronous")
ALICE = User("Free", "4000123412341234", "@alice", "https://profiles.example/m/alice")
ECHO = f"X-Request-ID: {REQUEST_ID.decode()}"


class Caller:
    """A client; the synchronous one runs in a thread."""

    def __init__(self, client: Client | AsyncClient) -> None:
        self._client = client

    async def __call__(self, method: str, *arguments: str) -> User | None:
        call = getattr(self._client, method)
        result: User | None
        if isinstance(self._client, Client):
            result = await asyncio.to_thread(call, *arguments)
        else:
            result = await call(*arguments)
        return result


@asynccontextmanager
async def calling(kind: Kind, url: str, key: str = "k", **options: Any) -> AsyncIterator[Caller]:
    """Yield a caller with a generous deadline unless ``options`` have another."""
    options = {"deadline": 10.0, **options}
    if kind == "synchronous":
        with Client(url, key, **options) as client:
            yield Caller(client)
    else:
        async with AsyncClient(url, key, **options) as asynchronous:
            yield Caller(asynchronous)


def found(**members: object) -> bytes:
    """Return the response with @alice, but for these members."""
    record = {"status": "ok", **asdict(ALICE), **members}
    return http(200, json.dumps(record).encode(), ECHO)


def error(status: int, code: str, *fields: str) -> bytes:
    record = {"status": "error", "code": code, "message": "Message"}
    return http(status, json.dumps(record).encode(), ECHO, *fields)


NOT_FOUND = error(404, "not_found")
UNAVAILABLE = error(503, "backend_unavailable", "Retry-After: 1")
