"""How an upstream is asked: at which endpoint, with which credential, and when once more.

stamina repeats a function a number of times; it knows neither a budget that all requests
share nor another endpoint to turn to, so it is no help here.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeGuard

from pydantic import SecretStr

from idv_upstream.client import HEADERS, Client, NotAnswered, Reply
from idv_upstream.connections import WantsBody
from idv_upstream.credentials import MASK, ClientCredentials, Credential
from idv_upstream.endpoints import Endpoint, Endpoints
from idv_upstream.oauth import Tokens
from idv_upstream.request import Asking
from idv_upstream.retries import RetryBudget, seconds_to_wait
from idv_upstream.tls import Tls, TlsOptions
from tornado_idv import Broken, Unavailable

_PAUSE, _JITTER = 0.01, 0.04
# Who is given up with no more than this part of the time left did not serve; before that, it
# is the caller who left.
_TOO_LITTLE = 0.2

_ORIGIN = re.compile(r"[^/]+//[^/?]+")
_PASSING = (
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)
_ASKS_TO_WAIT = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


@dataclass(slots=True)
class _Lookup:
    """One request, the endpoints it may go to, and until when, by the loop's clock."""

    asking: Asking
    wants_body: WantsBody
    endpoints: Endpoints
    deadline: float

    def left(self) -> float:
        """The seconds that are left for it."""
        return self.deadline - asyncio.get_running_loop().time()


class Transport:
    """Asks one upstream; all its requests share connections, endpoints and the credential."""

    def __init__(
        self,
        *,
        endpoints: Sequence[str],
        auth: Credential,
        tls: TlsOptions,
        timeout: float,
        name: str,
        connections: int = 64,
        timer: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._addresses = endpoints
        self._endpoints = Endpoints(endpoints, name, timer)
        self._elsewhere: dict[str, Endpoints] = {}
        self._auth = auth
        self._client = Client(Tls(tls, name, timer), timeout, connections)
        self._tokens = (
            Tokens(auth, self._client, timer) if isinstance(auth, ClientCredentials) else None
        )
        self._budget = RetryBudget()
        self._timeout = timeout
        self._name = name
        self._timer = timer
        self._chance = chance
        self._pause = pause

    async def open(self) -> None:
        """Makes the pool of connections; raises `StartError` for TLS files that do not serve."""
        await self._client.open()

    async def close(self) -> None:
        if self._tokens is not None:
            await self._tokens.close()
        await self._client.close()

    def shown(self, asking: Asking) -> tuple[str, Mapping[str, str]]:
        """The URL and the headers that would be sent, with the credential masked."""
        address = self._addresses[0] if asking.url.startswith("/") else ""
        return self._auth.placed(address + asking.url, {**HEADERS, **asking.headers}, MASK)

    def secrets(self) -> set[str]:
        """The secrets of the credential, as they are configured and as they are sent."""
        secrets = {each.get_secret_value() for _, each in self._auth if _is_secret(each)}
        with suppress(Broken):
            secrets.add(self._auth.proof())
        if self._tokens is not None:
            secrets.add(self._tokens.at_hand() or "")
        return secrets - {""}

    async def ask(self, asking: Asking, wants_body: WantsBody) -> Reply:
        """Sends the request, and where that may help once more, or to another endpoint.

        Raises `Unavailable` or `Broken` for whatever is no answer.
        """
        endpoints = self._endpoints_for(asking.url)
        endpoint = endpoints.pick()
        self._budget.earn()
        deadline = asyncio.get_running_loop().time() + self._timeout
        lookup = _Lookup(asking, wants_body, endpoints, deadline)
        came = await self._attempt(lookup, endpoint)
        if asking.repeatable and (isinstance(came, NotAnswered) or came.status in _PASSING):
            came = await self._again(lookup, endpoint, came)
        if isinstance(came, NotAnswered):
            raise came
        return came

    def _endpoints_for(self, url: str) -> Endpoints:
        """Those configured, or the place that an absolute URL names."""
        origin = None if url[0] == "/" else _ORIGIN.match(url)
        if origin is None:
            return self._endpoints
        if origin[0] not in self._elsewhere:
            self._elsewhere[origin[0]] = Endpoints([""], self._name, self._timer)
        return self._elsewhere[origin[0]]

    async def _again(
        self, lookup: _Lookup, failed: Endpoint, came: Reply | NotAnswered
    ) -> Reply | NotAnswered:
        """What came of a second attempt, or, where none may be made, of the first."""
        try:
            endpoint = lookup.endpoints.pick(but=failed)
        except Unavailable:
            return came
        pause = _PAUSE + _JITTER * self._chance() if endpoint is failed else 0.0
        if lookup.left() <= pause or not self._budget.spend():
            return came
        if pause:
            await self._pause(pause)
        return await self._attempt(lookup, endpoint)

    def _attempt(self, lookup: _Lookup, endpoint: Endpoint) -> Awaitable[Reply | NotAnswered]:
        """Asks one endpoint."""
        if self._tokens is None:
            return self._send(lookup, endpoint, self._auth.proof())
        return self._with_token(lookup, endpoint, self._tokens)

    async def _with_token(
        self, lookup: _Lookup, endpoint: Endpoint, tokens: Tokens
    ) -> Reply | NotAnswered:
        """Asks one endpoint; a token that it refuses is replaced once."""
        token = tokens.at_hand() or await self._new_token(tokens, lookup)
        came = await self._send(lookup, endpoint, token)
        if _is_refused(came) and tokens.refused(token):
            token = tokens.at_hand() or await self._new_token(tokens, lookup)
            came = await self._send(lookup, endpoint, token)
            if _is_refused(came):
                tokens.refused_again()
        return came

    async def _new_token(self, tokens: Tokens, lookup: _Lookup) -> str:
        try:
            async with asyncio.timeout_at(lookup.deadline):
                return await tokens.fetched()
        except TimeoutError:
            raise Unavailable("the token server: timed out") from None

    async def _send(self, lookup: _Lookup, endpoint: Endpoint, proof: str) -> Reply | NotAnswered:
        """Asks one endpoint once, and notes how it fared."""
        asking = lookup.asking
        url, headers = self._auth.placed(endpoint.address + asking.url, asking.headers, proof)
        try:
            reply = await self._client.send(
                asking.method,
                url,
                headers=headers,
                body=asking.body,
                wants_body=lookup.wants_body,
                deadline=lookup.deadline,
            )
        except NotAnswered as failure:
            lookup.endpoints.failed(endpoint)
            return failure
        except Unavailable:
            lookup.endpoints.failed(endpoint)
            raise
        except asyncio.CancelledError:
            if lookup.left() < _TOO_LITTLE * self._timeout:
                lookup.endpoints.failed(endpoint)
            raise
        _note(lookup.endpoints, endpoint, reply)
        return reply


def _is_secret(option: object) -> TypeGuard[SecretStr]:
    return isinstance(option, SecretStr)


def _note(endpoints: Endpoints, endpoint: Endpoint, reply: Reply) -> None:
    if reply.status in _PASSING:
        endpoints.failed(endpoint)
    else:
        endpoints.answered(endpoint)
    if reply.status in _ASKS_TO_WAIT:
        endpoints.told_to_wait(endpoint, seconds_to_wait(reply.headers))


def _is_refused(came: Reply | NotAnswered) -> bool:
    return isinstance(came, Reply) and came.status == HTTPStatus.UNAUTHORIZED
