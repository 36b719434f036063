"""One request to an upstream, and its answer or why there is none.

It knows neither credentials nor second attempts; its errors hold our own words alone, for
the library's may hold headers of the request and parts of the answer.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import aiohttp
from multidict import MultiMapping
from yarl import URL

from idv_upstream.resolver import OwnResolver
from idv_upstream.tls import Tls
from tornado_idv import Broken, CouldNotTell, Unavailable

MAX_ANSWER = 64 * 1024
"""The most bytes of an answer, decompressed or not, that are read; a longer one is `Broken`."""

HEADERS: Mapping[str, str] = {
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "User-Agent": "tornado-idv",
}
"""What every request carries, unless it says otherwise itself."""

_TOO_LONG = f"an answer of more than {MAX_ANSWER} bytes"
_DAMAGED = "a compressed answer that is damaged"

_CONNECT_TIMEOUT = 0.5
_CONNECTIONS = 64
# Shorter than the 5 s after which many servers close an idle connection (this service: 10 s):
# otherwise a request may be sent just as the other side closes.
_KEEP_ALIVE = 4.0
_HARDLY_USED = 0.005

WantsBody = Callable[[int], bool]
"""Whether the body of an answer of this status is to be read."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer; the body is decompressed, and empty where it was not wanted."""

    status: int
    headers: MultiMapping[str]
    """Found in whatever case they are asked for."""
    body: bytes


class NotAnswered(Unavailable):
    """No answer began, so nothing is known against asking once more."""


# The first that fits counts.
_FAILURES: tuple[tuple[type[Exception], type[CouldNotTell], str], ...] = (
    (aiohttp.ConnectionTimeoutError, NotAnswered, "no connection in time"),
    (TimeoutError, Unavailable, "timed out"),
    (aiohttp.ClientConnectorDNSError, NotAnswered, "its host name is not resolved"),
    (aiohttp.ClientSSLError, NotAnswered, "no TLS connection"),
    (aiohttp.ClientConnectorError, NotAnswered, "no connection"),
    (aiohttp.ClientConnectionError, NotAnswered, "the connection was lost"),
    (aiohttp.ClientPayloadError, Unavailable, "the answer was cut short"),
    (aiohttp.ClientResponseError, Broken, "an answer that is not HTTP"),
    (aiohttp.ClientError, Broken, "it cannot be asked"),
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
    """The connections of one backend, kept for the next request."""

    _session: aiohttp.ClientSession

    def __init__(self, tls: Tls, timeout: float, connections: int) -> None:
        self._tls = tls
        self._connections = max(connections, _CONNECTIONS)
        self._most = timeout
        self._timeout = _timeout(timeout)

    async def open(self) -> None:
        """Makes the pool; no connection is made before the first request."""
        await self._tls.open()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=self._connections, keepalive_timeout=_KEEP_ALIVE, resolver=OwnResolver()
            ),
            headers=HEADERS,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            middlewares=(_once,),
        )

    async def close(self) -> None:
        await self._session.close()
        await self._tls.close()

    async def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None,
        wants_body: WantsBody,
        within: float = math.inf,
    ) -> Reply:
        """Sends one request, once; ``within`` are the seconds left for it, if not all.

        Raises `Unavailable` or `Broken` for whatever is no answer.
        """
        try:
            async with self._session.request(
                method,
                URL(url, encoded=True),
                headers=headers,
                data=body,
                allow_redirects=False,
                ssl=self._tls.context(),
                timeout=self._within(within),
            ) as response:
                content = await _body(response) if wants_body(response.status) else b""
                return Reply(response.status, response.headers, content)
        except (TimeoutError, aiohttp.ClientError, ValueError) as error:
            raise _told(error) from None

    def _within(self, left: float) -> aiohttp.ClientTimeout:
        """The limits for a request; most have all the time there is, and share them."""
        return self._timeout if left > self._most - _HARDLY_USED else _timeout(max(left, 0.001))


def _timeout(total: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=total, connect=min(_CONNECT_TIMEOUT, total))


async def _once(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Tells of a lost connection at once: the library would send a GET again, uncounted."""
    try:
        return await handler(request)
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _told(error) from None


def _told(error: Exception) -> CouldNotTell:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        flaw = _FLAWS.get(getattr(error.certificate_error, "verify_code", 0))
        return Broken("its TLS certificate is not trusted" + (f": {flaw}" if flaw else ""))
    if isinstance(error, aiohttp.ClientOSError) and _REFUSAL.search(str(error)):
        return Broken("it refuses TLS: our certificate is missing, or not the right one")
    return next(kind(reason) for raised, kind, reason in _FAILURES if isinstance(error, raised))


async def _body(response: aiohttp.ClientResponse) -> bytes:
    content = await _read(response.content)
    if not content and not _has_end(response.headers):
        raise Unavailable("the answer was cut short")
    coding = response.headers.get("Content-Encoding", "identity").strip().lower()
    return content if coding == "identity" else _decompressed(content, coding)


def _has_end(headers: MultiMapping[str]) -> bool:
    """Whether the answer says where it ends; else a lost connection looks like its end."""
    return "Content-Length" in headers or "Transfer-Encoding" in headers


async def _read(content: aiohttp.StreamReader) -> bytes:
    """Reads to the end; raises `Broken` for more than an answer may be, however it was framed."""
    most = MAX_ANSWER + 1
    if content.is_eof():  # a short answer is there as a whole, nearly always
        return _bounded(content.read_nowait(most))
    body = bytearray()
    while chunk := await content.read(most - len(body)):
        body += chunk
    return _bounded(bytes(body))


def _bounded(body: bytes) -> bytes:
    if len(body) > MAX_ANSWER:
        raise Broken(_TOO_LONG)
    return body


def _decompressed(body: bytes, coding: str) -> bytes:
    """Undoes what we had asked not to be done; no bomb comes out larger than an answer may be."""
    if coding not in {"gzip", "x-gzip", "deflate"}:
        raise Broken("a compressed answer of a kind that is not understood")
    stream = zlib.decompressobj(_window(body, coding))
    try:
        plain = stream.decompress(body, MAX_ANSWER + 1)
    except zlib.error:
        raise Broken(_DAMAGED) from None
    _bounded(plain)
    if not stream.eof or stream.unused_data:
        raise Broken(_DAMAGED)
    return plain


def _window(body: bytes, coding: str) -> int:
    """How zlib is to read it: what is called deflate comes with a head, or wrongly without."""
    if coding != "deflate":
        return 16 + zlib.MAX_WBITS
    has_head = body[:1] != b"" and body[0] & 15 == zlib.DEFLATED
    return zlib.MAX_WBITS if has_head and int.from_bytes(body[:2]) % 31 == 0 else -zlib.MAX_WBITS
