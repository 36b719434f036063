"""The cache of an issued token, with its request, its lifetime and its renewal."""

import asyncio
import math
from base64 import urlsafe_b64decode
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from idv_upstream.request.template import Request
from idv_upstream.response.raw import MAX_RETRY_AFTER, Response, decode_json, retry_after, sent_at
from idv_upstream.transport.client import Client, NoResponse
from idv_upstream.transport.credentials import TOKEN, IssuedToken
from tornado_idv import Broken, LookupFailed, Unavailable
from tornado_idv.kit.mapping import Expression, json_type

# Seconds.
_RENEW_BEFORE = 30.0
_PAUSE = 5.0
_PAUSE_FACTOR = 4
_DEFAULT_LIFETIME = 300.0
_MAX_LIFETIME = 3600.0
"""Maximum seconds to use a token. An upstream may respond to a revoked token with an empty list
instead of 401, and then users are "not found" until the token is replaced."""
_FIRST_TIMESTAMP, _FIRST_IN_MILLISECONDS = 1e9, 1e11
"""Minimum of a Unix time in seconds, and in milliseconds. A lower ``expires`` is a lifetime."""

_NO_TIME = (TypeError, ValueError, OverflowError)
_ISSUED = (200, 201)
_REFUSED = (400, 401, 403)
_TEMPORARY = (408, 429, *range(500, 1000))
_REJECTED = (401, 403, 422)
"""Status codes that reject a token. Flask-JWT-Extended sends 422 for an invalid signature."""
Send = Callable[[str], Awaitable[Response | NoResponse]]
"""A function that sends a request with a secret."""


@dataclass(eq=False, repr=False)
class Tokens:
    """Caches a token, and requests a new token before the old token expires.

    Concurrent callers share one request to the issuer. The request continues if a caller is
    cancelled. After a failed request, the next one waits for the issuer's ``Retry-After``, but at
    least 5 s. If the issuer refuses an unchanged request repeatedly, the pause grows up to
    ``max_pause``. ``timeout`` is the maximum time of one request to the issuer, in seconds.
    """

    auth: IssuedToken
    client: Client
    timeout: float
    timer: Callable[[], float]

    def __post_init__(self) -> None:
        self.latest = ""
        """The last issued token. It may have expired."""
        self._expires_at = -math.inf
        self._rejected_until = -math.inf
        self._fetching: asyncio.Task[None] | None = None
        self._failure: LookupFailed | None = None
        self._failed_until = -math.inf
        self._refused: Request | None = None
        self._pause = _PAUSE

    async def get(self) -> str:
        """Return a valid token. Raises `Unavailable` or `Broken`."""
        if self.timer() < self._expires_at:
            return self.latest
        is_changed = self._refused is not None and self.auth.token_request() != self._refused
        is_due = is_changed or self.timer() >= self._failed_until
        if self._fetching is None or (self._fetching.done() and is_due):
            self._fetching = asyncio.create_task(self._fetch(), name="token of an upstream")
        await asyncio.shield(self._fetching)
        if self._failure is not None:
            failure = self._failure.copy()  # callers modify the exception
            # The wait is limited, because a new secret may end it.
            wait = min(self._failed_until - self.timer(), MAX_RETRY_AFTER)
            failure.retry_after = max(failure.retry_after, wait)
            raise failure
        return self.latest

    async def attempt(self, send: Send) -> Response | NoResponse:
        """Send a request. If its token is rejected, send it once more with a new token.

        Return the response if a new token was rejected in the last 5 s: the next would be, too.
        """
        token = await self.get()
        result = await send(token)
        if result.status not in _REJECTED:
            return result
        if token == self.latest:
            if self.timer() < self._rejected_until:
                return result
            self._expires_at = -math.inf
        result = await send(await self.get())
        if result.status in _REJECTED:
            self._rejected_until = self.timer() + _PAUSE
        return result

    async def close(self) -> None:
        """Cancel a pending request to the issuer."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait([self._fetching])

    async def _fetch(self) -> None:
        # The lifetime of the token may begin as early as the request.
        requested_at, pause, response = self.timer(), _PAUSE, None
        request = self.auth.token_request()
        if request != self._refused:
            self._refused, self._pause = None, _PAUSE
        try:
            async with asyncio.timeout(self.timeout):
                response = await self.client.send(
                    request, lambda status: status in _ISSUED, on_new=True
                )
            pause = max(pause, min(retry_after(response.headers), MAX_RETRY_AFTER))
            self.latest, lifetime = _read(self.auth, response)
        except (LookupFailed, TimeoutError) as error:
            kind = Broken if isinstance(error, Broken) else Unavailable
            reason = error.reason if isinstance(error, LookupFailed) else "timed out"
            if response is not None and kind is Broken:
                pause, self._refused = max(pause, self._pause), request
                self._pause = min(self._pause * _PAUSE_FACTOR, self.auth.max_pause)
            self._failure = kind(f"{self.auth.issuer}: {reason}")
            self._failed_until = self.timer() + pause
        else:
            self._failure = self._refused = None
            self._expires_at = requested_at + lifetime - min(_RENEW_BEFORE, lifetime / 2)


def _read(auth: IssuedToken, response: Response) -> tuple[str, float]:
    """Return the token and its lifetime in seconds. Raises `Unavailable` or `Broken`."""
    status = response.status
    if status in _REFUSED:
        raise Broken(f"the credentials are refused (status {status})")
    if status in _TEMPORARY:
        raise Unavailable(f"temporarily unavailable (status {status})")
    if status not in _ISSUED:
        raise Broken(f"unexpected status {status}")
    document, (where, until) = decode_json(response.body), auth.where()
    token = Expression(where).evaluate(document)
    if not (isinstance(token, str) and TOKEN.pattern.fullmatch(token)):
        raise Broken(f"token ({where}) gives {json_type(token)}, not a token")
    now = sent_at(response.headers).timestamp()
    times = []
    # A JWT contains its expiry (RFC 7519, 4.1.4). The expiry is read without a signature check.
    with suppress(Broken, LookupError, *_NO_TIME):
        # A JWT has no padding, and surplus padding is ignored.
        claims = decode_json(urlsafe_b64decode(token.split(".")[1] + "=="))
        times.append(_time(claims["exp"], now))
    if until is not None:
        value = Expression(until).evaluate(document)
        try:
            times.append(_time(value, now))
        except _NO_TIME:
            raise Broken(f"expires ({until}) gives {json_type(value)}, not a time") from None
    lifetime = min(times, default=now + _DEFAULT_LIFETIME) - now
    if lifetime < 0:
        raise Broken("the token has expired already; compare the clocks")
    return token, min(lifetime, _MAX_LIFETIME)


def _time(expires: Any, now: float) -> float:
    """Return ``expires`` as a Unix time. Raises an exception of `_NO_TIME` for an invalid value.

    ``expires`` may be an ISO 8601 time, a Unix time or, if it is a small number, a lifetime in
    seconds. Numbers may also be strings, since some servers send strings.
    """
    try:
        number = math.nan if isinstance(expires, bool) else float(expires)
    except ValueError:
        time = datetime.fromisoformat(expires)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    if not math.isfinite(number):
        raise ValueError
    if number >= _FIRST_IN_MILLISECONDS:
        number /= 1000
    return number if number >= _FIRST_TIMESTAMP else now + max(number, 0.0)
