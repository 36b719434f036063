"""Asynchronous client, on aiohttp."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Self

import aiohttp
from yarl import URL

from tornado_idv.client.errors import ClientError, Undetermined, Unexpected
from tornado_idv.client.protocol import (
    MAX_BODY,
    BaseClient,
    Lookup,
    Response,
    User,
)

_STALE = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)
"""Errors of a kept connection that the server has closed in the meantime."""


class _Attempt:
    reuses_connection = False


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
        loop = asyncio.get_running_loop()
        until = loop.time() + self._deadline
        try:
            while True:
                try:
                    return lookup.read(await self._request(lookup, until))
                except Undetermined as error:
                    await asyncio.sleep(lookup.pause(error, until - loop.time()))
        except ClientError as error:
            raise lookup.named(error) from None

    async def _request(self, lookup: Lookup, until: float) -> Response:
        try:
            async with asyncio.timeout_at(until):
                attempt = _Attempt()
                try:
                    return await self._exchange(lookup, attempt)
                except _STALE:
                    if not attempt.reuses_connection:
                        raise
                # A lookup changes nothing, so it may be sent again.
                return await self._exchange(lookup, attempt)
        except (aiohttp.ClientConnectionError, OSError) as error:
            raise Undetermined(f"no response: {type(error).__name__}") from None
        except (aiohttp.ClientError, ValueError) as error:
            raise Unexpected(f"not a complete response: {type(error).__name__}") from None

    async def _exchange(self, lookup: Lookup, attempt: _Attempt) -> Response:
        if self._session is None:
            trace = aiohttp.TraceConfig()
            trace.on_connection_reuseconn.append(_on_reuse)
            self._session = aiohttp.ClientSession(
                trace_configs=[trace],
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
            )
        url = URL(f"{self._url.scheme}://{self._url.netloc}{lookup.path}", encoded=True)
        async with self._session.post(
            url,
            data=lookup.body,
            headers=self._fields(lookup),
            allow_redirects=False,
            ssl=self._ssl or True,
            trace_request_ctx=attempt,
        ) as reply:
            body = bytearray()
            async for chunk in reply.content.iter_any():
                body += chunk
                if len(body) > MAX_BODY:
                    reply.close()
                    raise aiohttp.ClientPayloadError
            fields = {name.lower(): value for name, value in reply.headers.items()}
            return Response(reply.status, fields, bytes(body))
