"""Asynchronous client, on aiohttp."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from types import SimpleNamespace, TracebackType
from typing import Self

import aiohttp
from yarl import URL

from tornado_idv.client.errors import ClientError, NotFound, Undetermined
from tornado_idv.client.protocol import (
    MAX_BODY,
    Lookup,
    Response,
    Service,
    User,
    undetermined,
    unexpected,
)

_STALE = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)
"""Errors of a kept connection that the server has closed in the meantime."""


class _Attempt:
    reuses_connection = False


async def _on_reuse(_session: object, context: SimpleNamespace, _parameters: object) -> None:
    context.trace_request_ctx.reuses_connection = True


class AsyncClient:
    """The client for one event loop; like `Client`, with coroutines.

    ``async with`` opens and closes its connections.
    """

    def __init__(
        self,
        url: str,
        key: str,
        *,
        deadline: float = 2.0,
        traceparent: Callable[[], str | None] | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._service = Service(url, key, traceparent)
        self._deadline = deadline
        self._ssl = ssl_context or True
        self._session: aiohttp.ClientSession | None = None

    async def find(self, identifier: str) -> User | None:
        """Return the user with a nickname, written ``@nickname``, or a profile URL.

        ``None`` means that the user does not exist. Raises `ClientError` for everything else.
        """
        return await self._look_up(self._service.by_input(identifier))

    async def find_card(self, number: str) -> User | None:
        """Return the user with a card number, as `find`."""
        return await self._look_up(self._service.by_card(number))

    async def get(self, identifier: str) -> User:
        """Return the user as `find`; raises `NotFound` if it does not exist."""
        return await self._get(self._service.by_input(identifier))

    async def get_card(self, number: str) -> User:
        """Return the user with a card number, as `get`."""
        return await self._get(self._service.by_card(number))

    async def close(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _get(self, lookup: Lookup) -> User:
        user = await self._look_up(lookup)
        if user is None:
            raise lookup.named(NotFound("the user does not exist", 404))
        return user

    async def _look_up(self, lookup: Lookup) -> User | None:
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
            raise undetermined(error) from None
        except (aiohttp.ClientError, ValueError) as error:
            raise unexpected(error) from None

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
        url = URL(self._service.origin + lookup.path, encoded=True)
        async with self._session.post(
            url,
            data=lookup.body,
            headers=lookup.fields(),
            allow_redirects=False,
            ssl=self._ssl,
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
