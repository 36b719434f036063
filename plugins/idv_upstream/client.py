"""One request to an upstream, and its answer or why there is none.

It knows neither credentials nor second attempts; its errors hold our own words alone, for
the library's may hold headers of the request and parts of the answer.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import NamedTuple

import aiohttp
from aiohttp.http import HttpProcessingError
from multidict import MultiMapping

from idv_upstream.bodies import MAX_ANSWER, plain
from idv_upstream.connections import Connections, WantsBody
from idv_upstream.tls import Tls
from tornado_idv import Broken, LookupFailed, Unavailable

HEADERS: Mapping[str, str] = {
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "User-Agent": "tornado-idv",
}
"""What every request carries, unless it says otherwise itself."""

_LINES = {name.lower(): f"{name}: {value}\r\n" for name, value in HEADERS.items()}
_CONNECTIONS = 64


class Reply(NamedTuple):
    """An answer; the body is decompressed, and empty where it was not wanted."""

    status: int
    headers: MultiMapping[str]
    """Found in whatever case they are asked for."""
    body: bytes


class NotAnswered(Unavailable):
    """No answer began, so nothing is known against asking once more."""


# The first that fits counts.
_FAILURES: tuple[tuple[type[Exception], type[LookupFailed], str], ...] = (
    (aiohttp.ConnectionTimeoutError, NotAnswered, "no connection in time"),
    (TimeoutError, Unavailable, "timed out"),
    (aiohttp.ClientConnectorDNSError, NotAnswered, "its host name is not resolved"),
    (aiohttp.ClientSSLError, NotAnswered, "no TLS connection"),
    (aiohttp.ClientConnectorError, NotAnswered, "no connection"),
    (aiohttp.ClientConnectionError, NotAnswered, "the connection was lost"),
    (aiohttp.ClientPayloadError, Unavailable, "the answer was cut short"),
    (aiohttp.ClientError, Broken, "it cannot be asked"),
    (HttpProcessingError, Broken, "an answer that is not HTTP"),
    (OSError, NotAnswered, "the connection was lost"),
    (ValueError, Broken, "it cannot be asked"),
)
# What OpenSSL calls the alerts of a server that does not like our certificate, or misses it;
# with TLS 1.3 they come when the connection seems to be made.
_REFUSAL = re.compile(
    "ALERT_(?:CERTIFICATE_|BAD_CERT|UNSUPPORTED_CERT|UNKNOWN_CA|ACCESS_DENIED|HANDSHAKE_FAILURE)"
)
# OpenSSL's numbers for what is wrong with a certificate.
_FLAWS = {
    10: "it has expired",
    62: "it is for another host",
    64: "it is for another host",
    **dict.fromkeys((18, 19, 20, 21), "nobody we believe vouches for it"),
}


class Client:
    """Asks over connections that are kept for the next request."""

    def __init__(self, tls: Tls, timeout: float, connections: int) -> None:
        self._tls = tls
        self._timeout = timeout
        self._connections = Connections(max(connections, _CONNECTIONS))

    async def open(self) -> None:
        """Makes the pool; no connection is made before the first request."""
        await self._tls.open()
        await self._connections.open()

    async def close(self) -> None:
        await self._connections.close()
        await self._tls.close()

    async def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None,
        wants_body: WantsBody,
        deadline: float | None = None,
    ) -> Reply:
        """Sends one request, once; ``deadline`` is by the loop's clock, and else a timeout away.

        Raises `Unavailable` or `Broken` for whatever is no answer.
        """
        if deadline is None:
            deadline = asyncio.get_running_loop().time() + self._timeout
        try:
            status, answered, received = await self._connections.ask(
                method,
                url,
                headers=_lines(headers),
                body=body,
                tls=self._tls.context(),
                deadline=deadline,
                wants_body=wants_body,
                most=MAX_ANSWER + 1,
            )
        except (aiohttp.ClientError, HttpProcessingError, OSError, ValueError) as error:
            raise _told(error) from None
        return Reply(status, answered, b"" if received is None else plain(received, answered))


def _lines(headers: Mapping[str, str]) -> str:
    """The headers as they are sent, with what every request carries."""
    lines = _LINES | {name.lower(): f"{name}: {value}\r\n" for name, value in headers.items()}
    text = "".join(lines.values())
    if not text.count("\r") == text.count("\n") == len(lines):
        raise ValueError("a header of more than one line")
    return text


def _told(error: Exception) -> LookupFailed:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        flaw = _FLAWS.get(getattr(error.certificate_error, "verify_code", 0))
        return Broken("its TLS certificate is not trusted" + (f": {flaw}" if flaw else ""))
    if isinstance(error, aiohttp.ClientOSError) and _REFUSAL.search(str(error)):
        return Broken("it refuses TLS: our certificate is missing, or not the right one")
    return next(kind(reason) for raised, kind, reason in _FAILURES if isinstance(error, raised))
