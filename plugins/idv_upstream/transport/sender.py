"""The sender of requests to an upstream. It adds the credential, and retries.

No retry library is used: libraries such as stamina limit the retries of a single call, but have no
retry budget for all requests.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import InitVar, dataclass
from functools import partial
from itertools import count
from secrets import token_hex

from msgspec.structs import replace

from idv_upstream.request.template import Request
from idv_upstream.request.url import origin_of
from idv_upstream.response.raw import MAX_RETRY_AFTER, Response, retry_after
from idv_upstream.transport.client import HEADERS, Client, NoResponse, WantsBody
from idv_upstream.transport.credentials import Credential, IssuedToken
from idv_upstream.transport.tls import Tls, TlsOptions
from idv_upstream.transport.tokens import Send, Tokens
from tornado_idv import Broken, Masker, Unavailable

# Seconds before a retry: the fixed part, and the maximum of the random part.
_PAUSE, _JITTER = 0.01, 0.04
# The retry budget. Each request earns 1, and a retry costs 5. Up to ten retries in a row are
# possible. Without a budget, an upstream that fails all requests would get twice the usual load.
_RETRY_PRICE = 5
_MAX_CREDIT = 10 * _RETRY_PRICE
_REPEATED = (NoResponse.status, 502, 503, 504)
_WITH_RETRY_AFTER = (429, 503)


@dataclass(kw_only=True, eq=False, repr=False)
class Sender:
    """Sends the requests of one backend, with shared connections and a shared credential.

    The service cancels a lookup, including a retry and a token request, after ``timeout`` seconds.
    So this class sets no timer.
    """

    base_url: str
    auth: Credential
    tls: InitVar[TlsOptions]
    timeout: float
    name: InitVar[str]
    connections: InitVar[int] = 64
    echo_header: str | None = None
    timer: Callable[[], float] = time.monotonic
    chance: Callable[[], float] = random.random
    pause: Callable[[float], Awaitable[object]] = asyncio.sleep

    def __post_init__(self, tls: TlsOptions, name: str, connections: int) -> None:
        self._retry_after: dict[str, float] = {}
        """For each origin, the time when its longest ``Retry-After`` ends."""
        self._client = Client(Tls(tls, name, self.timer), connections)
        self._tokens = None
        if isinstance(self.auth, IssuedToken):
            self._tokens = Tokens(self.auth, self._client, self.timeout, self.timer)
        self._ids = map(f"{token_hex(8)}-{{}}".format, count())
        self._credit = _MAX_CREDIT

    async def open(self) -> None:
        """Create the connection pool. Raises `StartError` for unusable TLS files."""
        await self._client.open()

    async def close(self) -> None:
        if self._tokens is not None:
            await self._tokens.close()
        await self._client.close()

    def shown(self, request: Request) -> Request:
        """Return the complete request with the credential masked."""
        url = (self.base_url if request.url.startswith("/") else "") + request.url
        headers = {**HEADERS, **request.headers}
        return self.auth.apply(replace(request, url=url, headers=headers), Masker.MASK)

    def secrets(self) -> set[str]:
        """Return the secrets of the credential, as configured and as sent."""
        secrets = {each.get_secret_value() for each in self.auth.secrets()}
        with suppress(Broken):
            secrets.add(self.auth.secret())
        if self._tokens is not None:
            secrets.add(self._tokens.latest)
        return secrets - {""}

    async def send(self, request: Request, wants_body: WantsBody, *, on_new: bool) -> Response:
        """Send a request. Retry it once after a failure, where the retry budget allows it.

        With ``on_new``, use a new connection. Raises `LookupFailed` if no full response arrives.
        """
        origin = origin_of(request.url)  # empty for a path below base_url
        if not origin:
            request = replace(request, url=self.base_url + request.url)
        wait = self._wait(origin)
        if wait > 0:
            text = "no request sent: the Retry-After of the upstream has not passed"
            raise Unavailable(text, counts_against_breaker=False, retry_after=wait)
        self._credit = min(self._credit + 1, _MAX_CREDIT)
        deadline = asyncio.get_running_loop().time() + self.timeout
        send = partial(self._send_once, request, wants_body, origin, on_new=on_new)
        result = await self._attempt(send)
        is_repeated = request.repeatable and result.status in _REPEATED
        if is_repeated and self._credit >= _RETRY_PRICE and self._wait(origin) <= 0:
            pause = _PAUSE + _JITTER * self.chance()  # the upstream may be restarting
            if pause < deadline - asyncio.get_running_loop().time():
                self._credit -= _RETRY_PRICE
                await self.pause(pause)
                result = await self._attempt(send)
        if isinstance(result, NoResponse):
            raise result
        return result

    def _wait(self, origin: str) -> float:
        """Return the seconds until an origin's ``Retry-After`` ends, or <= 0 if it has ended."""
        return self._retry_after[origin] - self.timer() if origin in self._retry_after else 0.0

    async def _attempt(self, send: Send) -> Response | NoResponse:
        if self._tokens is None:
            return await send(self.auth.secret())
        return await self._tokens.attempt(send)

    async def _send_once(
        self, request: Request, wants_body: WantsBody, origin: str, secret: str, *, on_new: bool
    ) -> Response | NoResponse:
        """Send a request once, and record a ``Retry-After`` in the response."""
        name, sent = self.echo_header, ""
        if name is not None:
            request = replace(request, headers={**request.headers, name: (sent := next(self._ids))})
        request = self.auth.apply(request, secret)
        try:
            response = await self._client.send(request, wants_body, on_new=on_new)
        except NoResponse as error:
            return error
        if response.status in _WITH_RETRY_AFTER:
            until = self.timer() + min(retry_after(response.headers), MAX_RETRY_AFTER)
            self._retry_after[origin] = max(until, self._retry_after.get(origin, until))
        is_echoed = name is not None and response.headers.getall(name, []) == [sent]
        return response._replace(is_certain=True) if is_echoed else response
