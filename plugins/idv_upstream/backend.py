"""The `Backend` that asks another HTTP service, over connections that are kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import aiohttp

from idv_upstream import protocol
from idv_upstream.options import BearerToken, UpstreamOptions
from tornado_idv import Backend, BackendOptions, Broken, CouldNotTell, Query, Unavailable, User

_CONNECT_TIMEOUT = 0.5
_MAX_CONNECTIONS = 64
# Shorter than the 10 s after which this service closes an idle connection: otherwise a
# request may be sent just as the other side closes.
_KEEP_ALIVE = 5.0

# The first that fits counts. Only our own words are told: the client's errors may hold
# headers of the request and parts of the answer.
_FAILURES: tuple[tuple[type[Exception], type[CouldNotTell], str], ...] = (
    (TimeoutError, Unavailable, "timed out"),
    (aiohttp.ClientConnectorDNSError, Unavailable, "its host name is not resolved"),
    (aiohttp.ClientConnectorCertificateError, Broken, "its TLS certificate is not trusted"),
    (aiohttp.ClientSSLError, Unavailable, "no TLS connection"),
    (aiohttp.ClientConnectorError, Unavailable, "no connection"),
    (aiohttp.ClientConnectionError, Unavailable, "the connection was lost"),
    (aiohttp.ClientPayloadError, Unavailable, "the answer was cut short"),
    (aiohttp.ClientResponseError, Broken, "an answer that is not HTTP"),
    (aiohttp.ClientError, Broken, "it cannot be asked"),
)


class UpstreamBackend(Backend[UpstreamOptions]):
    """The users that another service knows.

    Opening does not ask it: it may come up later than we do.
    """

    options_type: ClassVar[type[BackendOptions]] = UpstreamOptions
    _session: aiohttp.ClientSession

    async def open(self) -> None:
        """Makes the pool of connections; none is made before the first lookup."""
        timeout = self.options.timeout
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_MAX_CONNECTIONS, keepalive_timeout=_KEEP_ALIVE),
            headers=self._headers(),
            timeout=aiohttp.ClientTimeout(total=timeout, connect=min(_CONNECT_TIMEOUT, timeout)),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
        )

    async def find(self, query: Query) -> User | None:
        path, members = protocol.question(query)
        url = self.options.base_url + path
        with _failures_told():
            async with self._session.post(url, json=members, allow_redirects=False) as response:
                protocol.check_head(response.status, response.headers)
                body = await _read(response.content)
        return protocol.read(query, response.status, body)

    async def close(self) -> None:
        await self._session.close()

    def _headers(self) -> dict[str, str]:
        headers = {
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": "tornado-idv",
        }
        auth = self.options.auth
        if isinstance(auth, BearerToken):
            headers["Authorization"] = f"Bearer {auth.token.get_secret_value()}"
        return headers


async def _read(content: aiohttp.StreamReader) -> bytes:
    """Reads to the end; raises `Broken` at the first byte too many, however it was framed."""
    body = bytearray()
    while chunk := await content.read(protocol.MAX_ANSWER + 1 - len(body)):
        body += chunk
        if len(body) > protocol.MAX_ANSWER:
            raise Broken(f"an answer of more than {protocol.MAX_ANSWER} bytes")
    return bytes(body)


@contextmanager
def _failures_told() -> Iterator[None]:
    """Turns what the client raises into `Unavailable` or `Broken`."""
    try:
        yield
    except (TimeoutError, aiohttp.ClientError) as error:
        raise _told(error) from None


def _told(error: Exception) -> CouldNotTell:
    return next(outcome(reason) for kind, outcome, reason in _FAILURES if isinstance(error, kind))
