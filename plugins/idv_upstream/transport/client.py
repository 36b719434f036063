"""The HTTP client for upstreams. It sends a request once, and reads the response.

Credentials and retries are in `sender`. Errors contain no text of aiohttp, since its texts may
quote headers of the request or parts of the response.
"""

import asyncio
import logging
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, ClassVar

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from idv_upstream.request.template import Request
from idv_upstream.response.raw import MAX_BODY, TOO_LONG, Response, decode_body
from idv_upstream.transport.tls import Tls
from tornado_idv import Broken, DaemonThread, LookupFailed, Unavailable

_log = logging.getLogger(__name__)

WantsBody = Callable[[int], bool | None]
"""A function of a status code that returns whether to read the body. ``None`` means optional: a
body that does not arrive within `_OPTIONAL_BODY_TIMEOUT` counts as empty."""

MAX_RESPONSE = 2 * MAX_BODY
"""Maximum size in bytes of a response: body, framing, head and interim responses (1xx)."""

HEADERS: Mapping[str, str] = {
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "User-Agent": "tornado-idv",
}
"""Default headers of every request."""

CONNECT_TIMEOUT = 0.5
"""Maximum seconds to resolve a host name. Connecting, including TLS, has the same limit."""

_OPTIONAL_BODY_TIMEOUT = 0.2
"""Maximum seconds to wait for a body that only contains an error message."""
_MIN_CONNECTIONS = 64
# Many servers close idle connections after 5 s (this service: 10 s). A shorter timeout avoids
# requests on a connection that the server is just closing.
_KEEPALIVE_TIMEOUT = 4.0


class NoResponse(Unavailable):
    """Raised if no part of a response arrives. A repeatable request may then be sent again."""

    status: ClassVar[None] = None
    """The status code: always ``None``, since there is no response."""


# The first row with a matching class counts.
_FAILURES: tuple[tuple[type[Exception], type[LookupFailed], str], ...] = (
    (aiohttp.ConnectionTimeoutError, NoResponse, "connection timed out"),
    (aiohttp.ClientConnectorDNSError, NoResponse, "the host name cannot be resolved"),
    (aiohttp.ClientSSLError, NoResponse, "TLS handshake failed"),
    (aiohttp.ClientConnectorError, NoResponse, "connection failed"),
    (aiohttp.ClientConnectionError, NoResponse, "connection lost"),
    (aiohttp.ClientPayloadError, Unavailable, "the response was cut short"),
    (aiohttp.ClientResponseError, Broken, "a response that is not HTTP"),
    (OSError, NoResponse, "connection lost"),
    (Exception, Broken, "the request cannot be sent"),
)
# OpenSSL's names of the alerts for a rejected or missing client certificate. With TLS 1.3 they
# arrive after the handshake, when the connection seems to be established.
_CERTIFICATE_ALERT = re.compile(
    "ALERT_(?:CERTIFICATE_|BAD_CERT|UNSUPPORTED_CERT|UNKNOWN_CA|ACCESS_DENIED|HANDSHAKE_FAILURE)"
)

_is_reused: ContextVar[bool] = ContextVar("is_reused", default=True)
"""True if the last request of this asyncio task was sent on a reused connection."""


class _Resolver(AbstractResolver):
    """Calls the system's resolver in separate threads, with the timeout `CONNECT_TIMEOUT`.

    The event loop's resolver has a few threads for all backends, and a name server that does not
    respond would block all of them. A call to the resolver cannot be cancelled, and may take a
    minute. Requests for the same name share a call, so a name has at most one thread.
    """

    def __init__(self) -> None:
        self._calls: dict[tuple[object, ...], asyncio.Future[Any]] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of a host. Raises `OSError`, such as `TimeoutError`."""
        name = (host, port, family, socket.SOCK_STREAM, 0, socket.AI_ADDRCONFIG)
        call = self._calls.get(name)
        if call is None or call.done():
            call = self._calls[name] = DaemonThread("resolver")(socket.getaddrinfo, *name)
            # This retrieves the error, which asyncio would log if all requests were cancelled.
            call.add_done_callback(asyncio.Future.exception)
        async with asyncio.timeout(CONNECT_TIMEOUT):
            await asyncio.wait([call])
        try:
            found = call.result()
        except UnicodeError:  # the connector of aiohttp handles only `OSError`
            raise OSError(None, "no host name") from None
        flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        return [
            ResolveResult(
                hostname=host, host=address[0], port=port, family=family, proto=proto, flags=flags
            )
            for family, _, proto, _, address in found
        ]

    async def close(self) -> None:
        """Do nothing: there are no resources to release."""


class _Connector(aiohttp.TCPConnector):
    """A connector that discards pooled connections with unread data, and sets `_is_reused`.

    aiohttp's own connector would take this data for the response to the next request.
    """

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Any],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 aiohttp's signature
    ) -> Any:
        # The loop is limited, because a server may send data on each new connection, too.
        for _ in range(self.limit):
            connection = await super().connect(req, traces, timeout)
            protocol: Any = connection.protocol
            if not protocol.should_close:
                break
            connection.close()
        _is_reused.set(getattr(protocol, "is_used", False))
        protocol.is_used = True
        return connection


class _NoCookies(aiohttp.DummyCookieJar):
    """Does not parse ``Set-Cookie``, because aiohttp 3.13 logs the names of invalid cookies."""

    def update_cookies_from_headers(self, headers: Sequence[str], response_url: URL) -> None:
        """Ignore the headers."""


def _bound_responses(connector: aiohttp.BaseConnector) -> None:
    """Make connections fail with `Broken` after `MAX_RESPONSE` bytes of one response.

    aiohttp has no such limit. Only this function uses private parts of aiohttp. If another version
    of aiohttp changes these parts, lookups still work, but without this limit.
    """
    factory: Any = getattr(connector, "_factory", None)
    protocol: Any = getattr(factory, "func", None)
    if not hasattr(protocol, "set_response_params"):
        text = "aiohttp %s: the size of interim responses (1xx) of upstreams is not limited"
        _log.warning(text, aiohttp.__version__)
        return

    class Bounded(protocol):  # type: ignore[misc]
        _left = MAX_RESPONSE

        def set_response_params(self, **params: Any) -> None:
            """Reset the byte limit: aiohttp calls this method before each request."""
            self._left = MAX_RESPONSE
            super().set_response_params(**params)

        def data_received(self, data: bytes) -> None:
            left, self._left = self._left, self._left - len(data)
            if left < 0:
                return
            super().data_received(data[:left])
            if self._left < 0:
                payload = getattr(self, "_payload", None)
                self.close()
                self.set_exception(Broken(TOO_LONG))
                if payload is not None:
                    payload.set_exception(Broken(TOO_LONG))

    connector._factory = partial(Bounded, *factory.args, **factory.keywords)  # type: ignore[assignment]  # noqa: SLF001


async def _without_retry(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Prevent retries by aiohttp. It retries after its own errors, not after `LookupFailed`."""
    try:
        return await handler(request)
    except aiohttp.ClientError as error:
        raise _failure(error) from None


class Client:
    """An HTTP client with a connection pool.

    Redirects, cookies and proxies of the environment are ignored. Decompression has a size limit.
    Only connecting has a timeout. Callers set timeouts for the rest.
    """

    _session: aiohttp.ClientSession
    _unpooled: aiohttp.ClientSession
    """A session that uses a new connection for each request."""

    def __init__(self, tls: Tls, connections: int) -> None:
        self._tls = tls
        self._limit = max(connections, _MIN_CONNECTIONS)

    async def open(self) -> None:
        """Create the connection pool. The first request connects."""
        await self._tls.open()
        self._session = self._open_session(keepalive_timeout=_KEEPALIVE_TIMEOUT)
        self._unpooled = self._open_session(force_close=True)

    def _open_session(self, **options: Any) -> aiohttp.ClientSession:
        connector = _Connector(limit=self._limit, resolver=_Resolver(), **options)
        _bound_responses(connector)
        return aiohttp.ClientSession(
            connector=connector,
            headers=HEADERS,
            cookie_jar=_NoCookies(),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT),
            middlewares=(_without_retry,),
        )

    async def close(self) -> None:
        await self._session.close()
        await self._unpooled.close()

    async def send(self, request: Request, wants_body: WantsBody, *, on_new: bool) -> Response:
        """Send a request once. Its URL must be complete. With ``on_new``, use a new connection.

        Raises `Unavailable` or `Broken` if no complete response arrives.
        """
        url = request.url
        if not (url.isascii() and url.isprintable() and " " not in url and "#" not in url):
            raise Broken("the request cannot be sent")
        try:
            response = await (self._unpooled if on_new else self._session).request(
                request.method,
                URL(url, encoded=True),
                headers=request.headers,
                data=request.body,
                ssl=self._tls.context(),
                allow_redirects=False,
            )
            try:
                status, received = response.status, response.headers
                wanted = wants_body(status)
                body = b""
                if wanted is not False and status not in (204, 304):  # without a body
                    reading = _read(response.content)
                    if wanted is None:
                        reading = asyncio.wait_for(reading, _OPTIONAL_BODY_TIMEOUT)
                    body = decode_body(await reading, received)
            except (aiohttp.ClientError, OSError, LookupFailed):
                if wanted is not None:  # an optional body may fail
                    raise
            finally:
                response.release()
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _failure(error) from None
        return Response(status, received, body, is_certain=not _is_reused.get())


async def _read(content: aiohttp.StreamReader) -> bytes:
    """Return a body. If it is longer than `MAX_BODY`, return only `MAX_BODY` + 1 bytes of it."""
    body = bytearray()
    while chunk := await content.read(MAX_BODY + 1 - len(body)):
        body += chunk
    return bytes(body)


def _failure(error: Exception) -> LookupFailed:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        reason = getattr(error.certificate_error, "verify_message", "verification failed")
        return Broken(f"the TLS certificate is not trusted: {reason.removesuffix('.')}")
    if isinstance(error, aiohttp.ClientOSError) and _CERTIFICATE_ALERT.search(str(error)):
        return Broken("TLS refused: the client certificate is missing or not accepted")
    return next(kind(reason) for raised, kind, reason in _FAILURES if isinstance(error, raised))
