"""OAuth 2.0 access tokens, by client credentials (RFC 6749, section 4.4)."""

from __future__ import annotations

import asyncio
import math
import time
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import quote_plus, urlencode

from idv_upstream.request.template import Request
from idv_upstream.response.raw import Response, decode_json, retry_after
from idv_upstream.transport.client import Client
from idv_upstream.transport.credentials import TOKEN, ClientCredentials
from tornado_idv import Broken, LookupFailed, Unavailable

# Seconds.
_RENEW_BEFORE = 30.0
_DEFAULT_LIFETIME = 300.0
_MAX_LIFETIME = 86400.0
_REJECTED_BACKOFF = 5.0
_MAX_BACKOFF = 60.0

_OK = 200
_REFUSED = (400, 401, 403)
_TEMPORARY = (408, 429, *range(500, 1000))


class Tokens:
    """Caches the access token, and fetches one when there is none.

    A token is cached until 30 s before it expires, or for half of a lifetime of less than
    a minute. Concurrent callers share one request to the token server, and a caller that
    is cancelled does not cancel it for the others. After a failure, none is sent for 5 s,
    or for as long as ``Retry-After`` of the token server says. ``timeout`` is in seconds, for
    one request to the token server.
    """

    def __init__(
        self,
        options: ClientCredentials,
        client: Client,
        timeout: float,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._client = client
        self._timeout = timeout
        self._timer = timer
        self._token = ""
        self._expires_at = -math.inf
        self._rejected_until = -math.inf
        self._fetching: asyncio.Task[None] | None = None
        self._failure: LookupFailed | None = None
        self._failed_until = -math.inf

    def cached(self) -> str | None:
        """Return the token, if one is cached."""
        return self._token if self._timer() < self._expires_at else None

    async def get(self) -> str:
        """Return the token, or a new one; raises `Unavailable` or `Broken` if there is none."""
        if (token := self.cached()) is not None:
            return token
        if self._timer() >= self._failed_until:
            if self._fetching is None or self._fetching.done():
                self._fetching = asyncio.create_task(self._fetch(), name="oauth2 token")
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
        try:
            async with asyncio.timeout(self._timeout):
                request = self._request()
                response = await self._client.send(request, lambda s: s == _OK, on_new=True)
            backoff = max(backoff, min(retry_after(response.headers), _MAX_BACKOFF))
            self._token, lifetime = _parse(response)
        except (LookupFailed, TimeoutError) as error:
            kind = Broken if isinstance(error, Broken) else Unavailable
            reason = error.reason if isinstance(error, LookupFailed) else "timed out"
            self._failure = kind(f"token server: {reason}")
            self._failed_until = self._timer() + backoff
        else:
            self._failure = None
            self._expires_at = requested_at + lifetime - min(_RENEW_BEFORE, lifetime / 2)

    def _request(self) -> Request:
        options = self._options
        secret = options.client_secret.get_secret_value()
        form = {"grant_type": "client_credentials"}
        optional = {"scope": options.scope, "audience": options.audience}
        form |= {name: value for name, value in optional.items() if value is not None}
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        if options.style == "form":
            form |= {"client_id": options.client_id, "client_secret": secret}
        else:
            # Encoded before they are joined (RFC 6749, section 2.3.1).
            pair = f"{quote_plus(options.client_id)}:{quote_plus(secret)}"
            headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        body = urlencode(form).encode()
        return Request("POST", options.token_url, headers, body, repeatable=False)


def _parse(response: Response) -> tuple[str, float]:
    """Return the token and its lifetime in seconds; raises `Unavailable` or `Broken`."""
    status = response.status
    if status in _REFUSED:
        raise Broken(f"our credentials are refused (status {status})")
    if status in _TEMPORARY:
        raise Unavailable(f"temporarily unavailable (status {status})")
    if status != _OK:
        raise Broken(f"unexpected status {status}")
    record: Any = None
    with suppress(Broken):
        record = decode_json(response.body)
    if isinstance(record, dict):
        token, kind = record.get("access_token"), record.get("token_type", "bearer")
        is_bearer = isinstance(kind, str) and kind.lower() == "bearer"
        if is_bearer and isinstance(token, str) and TOKEN.fullmatch(token):
            return token, _lifetime(record.get("expires_in"))
    raise Broken("the response has no bearer token")


def _lifetime(expires_in: Any) -> float:
    """Return seconds; some servers send a string, and anything but a number is ignored."""
    try:
        seconds = float(expires_in)
    except (TypeError, ValueError, OverflowError):
        return _DEFAULT_LIFETIME
    return min(max(seconds, 0.0), _MAX_LIFETIME) if math.isfinite(seconds) else _DEFAULT_LIFETIME
