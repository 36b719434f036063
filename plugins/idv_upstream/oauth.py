"""Tokens of an OAuth 2.0 token server, by client credentials (RFC 6749, section 4.4)."""

from __future__ import annotations

import asyncio
import math
import time
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any
from urllib.parse import quote_plus, urlencode

from idv_upstream.client import Client, Reply
from idv_upstream.credentials import ClientCredentials, is_token
from idv_upstream.documents import decode
from idv_upstream.retries import seconds_to_wait
from tornado_idv import Broken, LookupFailed, Unavailable

_EARLIER = 30.0
_LIFE_UNSAID = 300.0
_LONGEST_LIFE = 86400.0
_POINTLESS = 5.0
_LONGEST_WAIT = 60.0

_REFUSED = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_NOT_NOW = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)


class Tokens:
    """Gives out the token in hand, and fetches one when there is none.

    A token is kept until 30 s before its end, or for half of a life of less than a minute.
    However many want one at once, one is fetched, and whoever leaves meanwhile does not take
    it from the others. One that could not be had is not asked for again for some seconds, or
    for as long as the token server says.
    """

    def __init__(
        self,
        options: ClientCredentials,
        client: Client,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._client = client
        self._timer = timer
        self._token = ""
        self._good_until = -math.inf
        self._pointless_until = -math.inf
        self._flight: asyncio.Task[str] | None = None
        self._failure: LookupFailed | None = None
        self._failed_until = -math.inf

    def at_hand(self) -> str | None:
        """The token, unless it has to be fetched."""
        return self._token if self._timer() < self._good_until else None

    async def fetched(self) -> str:
        """The token that is fetched now; raises `Unavailable` or `Broken` if there is none."""
        if self._failure is not None and self._timer() < self._failed_until:
            raise self._failure.copy()
        if self._flight is None:
            self._flight = asyncio.create_task(self._fetch(), name="oauth2 token")
            self._flight.add_done_callback(self._landed)
        try:
            return await asyncio.shield(self._flight)
        except LookupFailed as failure:
            raise failure.copy() from None  # many wait for it, and each adds to its own

    def refused(self, token: str) -> bool:
        """To be told that a token was; whether a new one may help.

        Whoever refuses a token that was made because the last one was refused gets no third
        for a while: what is wrong is not the token.
        """
        if token == self._token:
            if self._timer() < self._pointless_until:
                return False
            self._good_until = -math.inf
        return True

    def refused_again(self) -> None:
        """To be told that the new token was refused, too."""
        self._pointless_until = self._timer() + _POINTLESS

    async def close(self) -> None:
        if self._flight is not None:
            self._flight.cancel()
            with suppress(asyncio.CancelledError, LookupFailed):
                await self._flight

    def _landed(self, flight: asyncio.Task[str]) -> None:
        self._flight = None
        if not flight.cancelled():
            flight.exception()  # nobody may be left whom it could be raised for

    async def _fetch(self) -> str:
        asked_at, wait = self._timer(), _POINTLESS
        try:
            reply = await self._reply()
            wait = max(wait, min(seconds_to_wait(reply.headers), _LONGEST_WAIT))
            _check(reply.status)
            token, life = _read(reply)
        except LookupFailed as failure:
            self._failure, self._failed_until = failure.copy(), self._timer() + wait
            raise
        self._token, self._good_until = token, asked_at + life - min(_EARLIER, life / 2)
        return token

    async def _reply(self) -> Reply:
        headers, body = self._request()
        try:
            return await self._client.send(
                "POST",
                self._options.token_url,
                headers=headers,
                body=body,
                wants_body=_wants_body,
            )
        except Unavailable as failure:
            raise Unavailable(f"the token server: {failure.reason}") from None
        except Broken as failure:
            raise Broken(f"the token server: {failure.reason}") from None

    def _request(self) -> tuple[dict[str, str], bytes]:
        options = self._options
        secret = options.client_secret.get_secret_value()
        form = {"grant_type": "client_credentials"}
        if options.scope is not None:
            form["scope"] = options.scope
        if options.audience is not None:
            form["audience"] = options.audience
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        if options.style == "form":
            form |= {"client_id": options.client_id, "client_secret": secret}
        else:
            # Encoded before they are joined, as RFC 6749, section 2.3.1 has it.
            pair = f"{quote_plus(options.client_id)}:{quote_plus(secret)}"
            headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        return headers, urlencode(form).encode()


def _wants_body(status: int) -> bool:
    return status == HTTPStatus.OK


def _check(status: int) -> None:
    if status in _REFUSED:
        raise Broken(f"the token server refuses our credentials (status {status})")
    if status in _NOT_NOW or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise Unavailable(f"the token server cannot answer now (status {status})")
    if status != HTTPStatus.OK:
        raise Broken(f"the token server answered with status {status}, which is no token")


def _read(reply: Reply) -> tuple[str, float]:
    """The token, and for how many seconds it is good."""
    try:
        answer = decode(reply.body)
    except Broken:
        answer = None
    if not isinstance(answer, dict) or not _is_bearer(answer):
        raise Broken("the token server answered with something that is no bearer token")
    return answer["access_token"], _life(answer.get("expires_in"))


def _is_bearer(answer: dict[str, Any]) -> bool:
    token, kind = answer.get("access_token"), answer.get("token_type", "bearer")
    return (
        isinstance(token, str)
        and is_token(token)
        and isinstance(kind, str)
        and kind.lower() == "bearer"
    )


def _life(expires_in: Any) -> float:
    """Some write the number as text; what is no number is as good as absent."""
    try:
        seconds = float(expires_in)
    except (TypeError, ValueError, OverflowError):
        return _LIFE_UNSAID
    return min(max(seconds, 0.0), _LONGEST_LIFE) if math.isfinite(seconds) else _LIFE_UNSAID
