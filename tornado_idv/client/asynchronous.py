"""The asynchronous client. It uses aiohttp."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from types import SimpleNamespace
from typing import Any, Self

import aiohttp
from yarl import URL

from tornado_idv.client.errors import Undetermined, Unexpected
from tornado_idv.client.lookup import Found, Lookup, Result, StaleConnection, User
from tornado_idv.client.protocol import MAX_IDLE_TIME, BaseClient

_CLOSED = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)


class _Reply(aiohttp.ClientResponse):
    """A response whose `close` always closes the connection.

    `ClientResponse.close` does not close a connection that aiohttp has returned to its pool.
    """

    _transport: asyncio.BaseTransport | None = None

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        self._transport = connection.transport
        return await super().start(connection)

    def close(self) -> None:
        super().close()
        if self._transport is not None:
            self._transport.close()


async def _on_reuse(_session: object, context: SimpleNamespace, event: object) -> None:
    context.trace_request_ctx.append(event)


class AsyncClient(BaseClient[Awaitable[User | None], Awaitable[User]]):
    """An asynchronous client for one event loop. ``async with`` closes its connections."""

    _session: aiohttp.ClientSession | None = None
    _loop: asyncio.AbstractEventLoop | None = None
    """The event loop in which the current session was opened."""

    async def close(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def find_many(self, identifiers: Iterable[str]) -> AsyncIterator[Result]:
        """Yield the result for each nickname or profile URL, in order. Send batches of 100."""
        for items in self._batches("input", identifiers):
            for each in await self._find_batch(items):
                yield each

    async def find_many_cards(self, numbers: Iterable[str]) -> AsyncIterator[Result]:
        """Yield the result for each card number, in order. Send batches of 100."""
        for items in self._batches("card_number", numbers):
            for each in await self._find_batch(items):
                yield each

    def _run(self, call: Coroutine[Any, Any, Any]) -> Any:
        return call

    async def _pause(self, seconds: float) -> None:
        await (self._sleep or asyncio.sleep)(seconds)

    def _open(self) -> aiohttp.ClientSession:
        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(_on_reuse)
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(keepalive_timeout=MAX_IDLE_TIME, ssl=self._ssl or True),
            response_class=_Reply,
            trace_configs=[trace],
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
        )

    async def _exchange(self, lookup: Lookup, fields: dict[str, str], *, is_new: bool) -> Found:
        if is_new:  # a separate session, so no pooled connection is used
            opened: AbstractAsyncContextManager[aiohttp.ClientSession] = self._open()
        else:
            loop = asyncio.get_running_loop()
            if self._session is None:
                self._session, self._loop = self._open(), loop
            elif self._loop is not loop:
                raise Undetermined("the client belongs to another event loop: create one per loop")
            opened = nullcontext(self._session)
        reuses: list[object] = []
        try:
            async with (
                asyncio.timeout(lookup.remaining()),
                opened as session,
                session.post(
                    URL(self._origin + lookup.path, encoded=True),
                    data=lookup.body,
                    headers=fields,
                    allow_redirects=False,
                    trace_request_ctx=reuses,
                ) as reply,
            ):
                return await self._read(lookup, reply)
        except (aiohttp.ClientConnectionError, OSError, UnicodeError) as error:
            kind = StaleConnection if reuses and isinstance(error, _CLOSED) else Undetermined
            raise kind(f"no response: {type(error).__name__}") from None
        except aiohttp.ClientError as error:
            raise Unexpected(f"not a response: {type(error).__name__}") from None

    async def _read(self, lookup: Lookup, reply: aiohttp.ClientResponse) -> Found:
        fields, body = reply.headers.getall, b""
        length = lookup.body_length(fields)
        if length is not None:
            with suppress(aiohttp.ClientError, asyncio.IncompleteReadError):
                body = await reply.content.readexactly(length)
        if not body:  # further bytes on this connection may belong to another response
            reply.close()
        return lookup.read(reply.status, fields, body)
