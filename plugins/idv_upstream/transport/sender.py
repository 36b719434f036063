"""Sends a request to one of the endpoints, with the credential, and repeats it where allowed.

stamina and its like repeat a function a number of times; they know neither a budget that all
requests share nor other endpoints.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import count
from secrets import token_hex
from typing import NamedTuple

from msgspec.structs import replace

from idv_upstream.request.template import Request
from idv_upstream.request.url import origin_of
from idv_upstream.response.raw import Response
from idv_upstream.transport.client import HEADERS, Client, NoResponse, WantsBody
from idv_upstream.transport.credentials import Credential, IssuedToken
from idv_upstream.transport.endpoints import GATEWAY_ERRORS, Endpoint, Endpoints
from idv_upstream.transport.tls import Tls, TlsOptions
from idv_upstream.transport.tokens import Tokens
from tornado_idv import Broken, Masker, Unavailable

# Seconds before a second attempt at the same endpoint.
_PAUSE, _JITTER = 0.01, 0.04
# A lookup that is cancelled with less than this part of its time left has timed out; before,
# the client disconnected.
_TIMED_OUT = 0.2
# The price of a retry: each request earns one, up to ten retries after a quiet time. Without
# it, an upstream that fails for every request would get twice the usual load when it can bear
# it least.
_RETRY_PRICE = 5
_MAX_CREDIT = 10 * _RETRY_PRICE
_REPEATED = (NoResponse.status, *GATEWAY_ERRORS)
_REJECTED = (401, 403, 422)
"""Of a token, too: Flask-JWT-Extended responds to a signature of an older key with 422."""


class _Lookup(NamedTuple):
    """One request, the endpoints it may go to, and when it will be cancelled (loop's clock)."""

    request: Request
    wants_body: WantsBody
    endpoints: Endpoints
    deadline: float
    on_new: bool


class Sender:
    """Sends the requests of one backend, which share connections, endpoints and credential.

    After ``timeout`` seconds a lookup, with its second attempt and its token, is cancelled by
    the caller: the service does that for every backend, and a second timer takes 5 µs.
    """

    def __init__(
        self,
        *,
        endpoints: Sequence[str],
        auth: Credential,
        tls: TlsOptions,
        timeout: float,
        name: str,
        connections: int = 64,
        echo_header: str | None = None,
        timer: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._addresses = endpoints
        self._by_origin = {"": Endpoints(endpoints, name, timer)}
        self._auth = auth
        self._client = Client(Tls(tls, name, timer), connections)
        self._tokens = None
        if isinstance(auth, IssuedToken):
            self._tokens = Tokens(auth, self._client, timeout, timer)
        self._echo_header = echo_header
        self._ids = map(f"{token_hex(8)}-{{}}".format, count())
        self._credit = _MAX_CREDIT
        self._timeout = timeout
        self._name = name
        self._timer = timer
        self._chance = chance
        self._pause = pause

    async def open(self) -> None:
        """Create the pool of connections; raises `StartError` for unusable TLS files."""
        await self._client.open()

    async def close(self) -> None:
        """Close all connections."""
        if self._tokens is not None:
            await self._tokens.close()
        await self._client.close()

    def shown(self, request: Request) -> Request:
        """Return the request as it would be sent, with the credential masked."""
        url = (self._addresses[0] if request.url.startswith("/") else "") + request.url
        headers = {**HEADERS, **request.headers}
        return self._auth.apply(replace(request, url=url, headers=headers), Masker.MASK)

    def secrets(self) -> set[str]:
        """Return the secrets of the credential, as they are configured and as they are sent."""
        secrets = {each.get_secret_value() for each in self._auth.secrets()}
        with suppress(Broken):
            secrets.add(self._auth.secret())
        if self._tokens is not None:
            secrets.add(self._tokens.latest)
        return secrets - {""}

    async def send(
        self, request: Request, wants_body: WantsBody, *, on_new: bool = False
    ) -> Response:
        """Send the request, a second time or to another endpoint where that may help.

        With ``on_new`` no connection is used that was used before.
        Raises `Unavailable` or `Broken` if there is no complete response.
        """
        endpoints = self._endpoints_for(request.url)
        first, second = endpoints.pick(), None
        self._credit = min(self._credit + 1, _MAX_CREDIT)
        deadline = asyncio.get_running_loop().time() + self._timeout
        lookup = _Lookup(request, wants_body, endpoints, deadline, on_new)
        result = await self._attempt(lookup, first)
        is_repeated = request.repeatable and result.status in _REPEATED
        if is_repeated and self._credit >= _RETRY_PRICE:
            with suppress(Unavailable):  # none may be used: the first result stands
                second = endpoints.pick()
        if second is not None:
            # Another endpoint is used immediately (this one failed, and is preferred last); the
            # only one may be restarting.
            pause = _PAUSE + _JITTER * self._chance() if second is first else 0.0
            if pause < deadline - asyncio.get_running_loop().time():
                self._credit -= _RETRY_PRICE
                if pause:
                    await self._pause(pause)
                result = await self._attempt(lookup, second)
        if isinstance(result, NoResponse):
            raise result
        return result

    def _endpoints_for(self, url: str) -> Endpoints:
        """The configured endpoints, or the origin of an absolute URL."""
        if url[0] == "/":
            return self._by_origin[""]
        origin = origin_of(url)
        if not origin:
            raise Broken("the request cannot be sent")
        if origin not in self._by_origin:
            self._by_origin[origin] = Endpoints([""], self._name, self._timer)
        return self._by_origin[origin]

    async def _attempt(self, lookup: _Lookup, endpoint: Endpoint) -> Response | NoResponse:
        """Send the request to one endpoint; an access token that is rejected is replaced once."""
        tokens = self._tokens
        if tokens is None:
            return await self._send_once(lookup, endpoint, self._auth.secret())
        token = await tokens.get()
        result = await self._send_once(lookup, endpoint, token)
        if result.status in _REJECTED and tokens.invalidate(token):
            result = await self._send_once(lookup, endpoint, await tokens.get())
            if result.status in _REJECTED:
                tokens.reject()
        return result

    async def _send_once(
        self, lookup: _Lookup, endpoint: Endpoint, secret: str
    ) -> Response | NoResponse:
        """Send the request to one endpoint, and record how it fared."""
        request = replace(lookup.request, url=endpoint.address + lookup.request.url)
        name, sent = self._echo_header, ""
        if name is not None:
            sent = next(self._ids)
            request = replace(request, headers={**request.headers, name: sent})
        request = self._auth.apply(request, secret)
        try:
            response = await self._client.send(request, lookup.wants_body, on_new=lookup.on_new)
        except (Unavailable, asyncio.CancelledError) as error:
            time_left = lookup.deadline - asyncio.get_running_loop().time()
            is_timeout = time_left <= _TIMED_OUT * self._timeout
            if is_timeout or not isinstance(error, asyncio.CancelledError):
                lookup.endpoints.record(endpoint, None)
            if isinstance(error, NoResponse):
                return error
            raise
        lookup.endpoints.record(endpoint, response)
        is_echoed = name is not None and response.headers.getall(name, []) == [sent]
        return response._replace(is_certain=True) if is_echoed else response
