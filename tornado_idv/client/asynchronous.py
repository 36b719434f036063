"""Asynchronous client, on aiohttp."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, Self

import aiohttp
from yarl import URL

from tornado_idv.client.errors import ClientError, Undetermined, Unexpected
from tornado_idv.client.protocol import MAX_IDLE_TIME, BaseClient, Lookup, Response, User

_STALE = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)
"""Errors of a kept connection that the server has closed in the meantime."""


class _Attempt:
    reuses_connection = False


class _Reply(aiohttp.ClientResponse):
    """A response whose `close` ends its connection, also once that is in the pool again."""

    _transport: asyncio.BaseTransport | None = None

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        self._transport = connection.transport
        return await super().start(connection)

    def close(self) -> None:
        super().close()
        if self._transport is not None:
            self._transport.close()


async def _on_reuse(_session: object, context: SimpleNamespace, _parameters: object) -> None:
    context.trace_request_ctx.reuses_connection = True


class AsyncClient(BaseClient[Awaitable[User | None], Awaitable[User]]):
    """The client for one event loop; ``async with`` closes its connections."""

    _session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _get(self, lookup: Lookup) -> User:
        return lookup.require(await self._find(lookup))

    async def _find(self, lookup: Lookup) -> User | None:
        try:
            while True:
                try:
                    return lookup.read(await self._request(lookup))
                except Undetermined as error:
                    pause = lookup.pause(error)
                await (self._sleep or asyncio.sleep)(pause)
        except ClientError as error:
            raise lookup.named(error) from None

    async def _request(self, lookup: Lookup) -> Response:
        fields = self._fields_of(lookup)
        if self._session is None:
            self._session = self._open()
        attempt = _Attempt()
        try:
            async with asyncio.timeout(lookup.remaining()):
                try:
                    return await self._exchange(self._session, lookup, fields, attempt)
                except _STALE:
                    if not attempt.reuses_connection:
                        raise
                # A lookup changes nothing, so it may be sent again.
                async with self._open() as fresh:
                    return await self._exchange(fresh, lookup, fields, attempt)
        except (aiohttp.ClientConnectionError, OSError, UnicodeError) as error:
            raise Undetermined(f"no response: {type(error).__name__}") from None
        except aiohttp.ClientError as error:
            raise Unexpected(f"not a response: {type(error).__name__}") from None

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

    async def _exchange(
        self,
        session: aiohttp.ClientSession,
        lookup: Lookup,
        fields: dict[str, str],
        attempt: _Attempt,
    ) -> Response:
        async with session.post(
            URL(self._origin + lookup.path, encoded=True),
            data=lookup.body,
            headers=fields,
            allow_redirects=False,
            trace_request_ctx=attempt,
        ) as reply:

            def values(name: str) -> list[str]:
                return reply.headers.getall(name, [])

            length, body = lookup.body_length(values), None
            if length is not None:
                with suppress(aiohttp.ClientError, asyncio.IncompleteReadError):
                    body = await reply.content.readexactly(length)
            if body is None:  # what follows on this connection may be of another request
                reply.close()
            return Response(reply.status, values, body)
