"""Caches the token that is sent to an upstream, and renews it."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from idv_upstream.request.template import Request
from idv_upstream.response.raw import retry_after
from idv_upstream.transport.client import Client
from idv_upstream.transport.issuers import Issuer, has_token
from tornado_idv import Broken, LookupFailed, Unavailable

# Seconds.
_RENEW_BEFORE = 30.0
_REJECTED_BACKOFF = 5.0
_MAX_BACKOFF = 60.0
_REFUSED_FACTOR = 4


class Tokens:
    """Caches the access token, and fetches one when there is none.

    A token is cached until 30 s before it expires, or for half of a lifetime of less than
    a minute. Concurrent callers share one request to the token server, and a caller that
    is cancelled does not cancel it for the others. After a failure, none is sent for 5 s,
    or for as long as ``Retry-After`` of the token server says. After each refusal of the same
    login in a row that is four times as long, up to an hour. ``timeout`` is in seconds, for one
    request to the token server.
    """

    def __init__(
        self,
        issuer: Issuer,
        client: Client,
        timeout: float,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._issuer = issuer
        self._client = client
        self._timeout = timeout
        self._timer = timer
        self._token = ""
        self._expires_at = -math.inf
        self._rejected_until = -math.inf
        self._fetching: asyncio.Task[None] | None = None
        self._failure: LookupFailed | None = None
        self._failed_until = -math.inf
        self._refused: Request | None = None
        self._refused_backoff = _REJECTED_BACKOFF

    def cached(self) -> str | None:
        """Return the token, if one is cached."""
        return self._token if self._timer() < self._expires_at else None

    async def get(self) -> str:
        """Return the token, or a new one; raises `Unavailable` or `Broken` if there is none."""
        if (token := self.cached()) is not None:
            return token
        if self._fetching is None or self._fetching.done():
            is_changed = self._refused is not None and self._issuer.request() != self._refused
            if self._timer() >= self._failed_until or is_changed:
                self._fetching = asyncio.create_task(self._fetch(), name="token of an upstream")
        if self._fetching is not None:
            await asyncio.shield(self._fetching)
        if self._failure is not None:
            failure = self._failure.copy()  # each caller adds to its own
            failure.retry_after = max(failure.retry_after, self._failed_until - self._timer())
            raise failure
        return self._token

    def invalidate(self, token: str) -> bool:
        """Drop a token that the upstream rejected; whether a new one may help.

        An upstream that rejected two tokens in a row gets no third for some seconds: the
        token is not what is wrong.
        """
        if token == self._token:
            if self._timer() < self._rejected_until:
                return False
            self._expires_at = -math.inf
        return True

    def reject(self) -> None:
        """Note that the upstream rejected a new token, too."""
        self._rejected_until = self._timer() + _REJECTED_BACKOFF

    async def close(self) -> None:
        """Cancel a request to the token server."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait([self._fetching])

    async def _fetch(self) -> None:
        # Its lifetime may have begun at any time since the request.
        requested_at, backoff = self._timer(), _REJECTED_BACKOFF
        request, response = self._issuer.request(), None
        if request != self._refused:
            self._refused, self._refused_backoff = None, _REJECTED_BACKOFF
        try:
            async with asyncio.timeout(self._timeout):
                response = await self._client.send(request, has_token, on_new=True)
            backoff = max(backoff, min(retry_after(response.headers), _MAX_BACKOFF))
            self._token, lifetime = self._issuer.read(response)
        except (LookupFailed, TimeoutError) as error:
            kind = Broken if isinstance(error, Broken) else Unavailable
            reason = error.reason if isinstance(error, LookupFailed) else "timed out"
            if response is not None and kind is Broken:
                backoff, self._refused = max(backoff, self._refused_backoff), request
                longer = self._refused_backoff * _REFUSED_FACTOR
                limit = max(self._issuer.max_refused_backoff, _REJECTED_BACKOFF)
                self._refused_backoff = min(longer, limit)
            self._failure = kind(f"{self._issuer.name}: {reason}")
            self._failed_until = self._timer() + backoff
        else:
            self._failure = self._refused = None
            self._expires_at = requested_at + lifetime - min(_RENEW_BEFORE, lifetime / 2)
