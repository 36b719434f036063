"""The service put together from its settings: backends, directory, keys, application."""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import NoReturn, Protocol

import pluggy

from tornado_idv.admin.listener import admin_listening
from tornado_idv.admin.state import ServiceState
from tornado_idv.config.settings import (
    AdminSettings,
    DrainSettings,
    KeySettings,
    ServerSettings,
    Settings,
    TlsSettings,
)
from tornado_idv.errors import StartError
from tornado_idv.files import read_file
from tornado_idv.http.limits import HttpLimits
from tornado_idv.http.server import HttpServer
from tornado_idv.http.trusted_proxies import TrustedProxies
from tornado_idv.keys.api_key import ApiKey
from tornado_idv.lookup.cache import AnswerCache
from tornado_idv.lookup.directory import Directory
from tornado_idv.lookup.guard import BackendCall
from tornado_idv.metrics.counters import Counters
from tornado_idv.metrics.loop_lag import measured_lag
from tornado_idv.registry import backend_kinds, build_backends, open_backends
from tornado_idv.server.keys import Keys, open_keys
from tornado_idv.server.limiters import Limiters, make_limiters
from tornado_idv.server.sockets import bind, port_of, url_of
from tornado_idv.web.access_log import AccessLog
from tornado_idv.web.app import make_api, make_reject
from tornado_idv.web.handler import Services
from tornado_idv.web.json_body import encode_user
from tornado_idv.web.packet_cache import PacketCache


@asynccontextmanager
async def open_directory(
    settings: Settings,
    manager: pluggy.PluginManager,
    on_backend_result: Callable[[BackendCall], None] | None = None,
    counters: Counters | None = None,
) -> AsyncIterator[Directory]:
    """Open the configured backends and yield a directory of them.

    ``on_backend_result`` is called with each call of a backend.
    Raises `StartError` if one cannot be opened.
    """
    backends = build_backends(backend_kinds(manager), settings.backends)
    identifiers = settings.make_identifiers()
    encode = partial(encode_user, identifiers=identifiers)
    cache = AnswerCache(settings.cache, counters=counters)
    directory = Directory(
        manager,
        backends,
        cache,
        encode,
        accepts=identifiers.accepts,
        timeout=settings.server.request_timeout,
        on_backend_result=on_backend_result,
    )
    async with open_backends(backends), directory.refreshing():
        yield directory


class Announced(Protocol):
    """A service that serves, as its operator sees it.

    ``url`` is its base URL for requests from this machine, without a trailing slash, and
    ``admin_url`` that of its admin listener, if it has one.
    """

    @property
    def url(self) -> str: ...

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def admin_url(self) -> str | None: ...

    @property
    def key_count(self) -> int: ...


@dataclass(frozen=True)
class Inherited:
    """What a worker has from its supervisor: bound public sockets, and the limits."""

    sockets: Sequence[socket.socket]
    limiters: Limiters


class Service:
    """A service that listens at ``host`` and ``port``, and can be drained; see `Announced`."""

    def __init__(
        self,
        server: HttpServer,
        keys: Keys,
        state: ServiceState,
        *,
        url: str,
        host: str,
        port: int,
        admin_url: str | None = None,
    ) -> None:
        self.keys = keys
        self.url = url
        self.host = host
        self.port = port
        self.admin_url = admin_url
        self.state = state
        self._server = server

    @property
    def key_count(self) -> int:
        """The number of keys, also of those that are not valid."""
        return len(self.keys.ring.ids)

    async def drain(self, limits: DrainSettings) -> bool:
        """Stop listening and wait for requests in flight; return whether all were answered.

        The service is not ready from now on. For ``limits.delay`` seconds new connections are still
        accepted, so that a load balancer notices the stop; then requests in flight have
        ``limits.timeout`` seconds.
        """
        self.state.draining = True
        await asyncio.sleep(limits.delay)
        try:
            await asyncio.wait_for(self._server.drain(), limits.timeout)
        except TimeoutError:
            return False
        return True


@asynccontextmanager
async def listening(
    settings: Settings,
    manager: pluggy.PluginManager,
    access_log: AccessLog | None = None,
    log_dropped: Callable[[], int] = lambda: 0,
    inherited: Inherited | None = None,
) -> AsyncIterator[Service]:
    """The whole service, from open backends to listening sockets.

    ``log_dropped`` returns the number of lost log lines, for the metrics. With ``inherited``, it is
    a worker, and another process has the admin listener.
    Raises `StartError` if the key store or a backend cannot be opened or an address cannot be
    taken.
    """
    configured = [api_key(entry) for entry in settings.auth.keys]
    counters = Counters()
    async with (
        open_keys(configured, settings.auth.store) as keys,
        open_directory(settings, manager, partial(_count, counters), counters) as directory,
    ):
        limiters = (
            inherited.limiters if inherited else make_limiters(settings.limits, len(keys.ring.ids))
        )
        server = _make_server(settings, directory, keys, access_log, counters, limiters=limiters)
        tls = tls_context(settings.server.tls) if settings.server.tls else None
        host = settings.server.host
        sockets = inherited.sockets if inherited else bind("server", host, settings.server.port)
        state = ServiceState(
            directory,
            settings.make_identifiers(),
            keys.ring,
            keys.store,
            counters,
            server.connection_states,
            log_dropped,
        )
        await server.listen(sockets, tls)
        try:
            port = port_of(sockets)
            url = url_of("https" if tls else "http", host, port)
            admin = None if inherited else settings.admin
            async with _admin(admin, state) as admin_url:
                yield Service(
                    server, keys, state, url=url, host=host, port=port, admin_url=admin_url
                )
        finally:
            server.close()


def _make_server(
    settings: Settings,
    directory: Directory,
    keys: Keys,
    access_log: AccessLog | None,
    counters: Counters,
    *,
    limiters: Limiters,
) -> HttpServer:
    services = Services(
        directory,
        settings.make_identifiers(),
        keys.ring,
        access_log,
        limiters.keys,
        failed_auth=limiters.failed_auth,
        counters=counters,
    )
    packet_cache = PacketCache(directory, keys.ring, access_log, limiters.keys, counters)
    trusted = settings.server.trusted_proxies
    return HttpServer(
        make_api(services, settings.server.base_path, settings.server.health_path),
        make_reject(access_log, counters),
        http_limits(settings.server),
        fast_path=packet_cache.connect if settings.server.packet_cache else None,
        proxies=TrustedProxies(trusted) if trusted else None,
    )


@asynccontextmanager
async def _admin(settings: AdminSettings | None, state: ServiceState) -> AsyncIterator[str | None]:
    """Serve the admin listener, if there is one, and yield its URL."""
    if settings is None:
        yield None
        return
    sockets = bind("admin", settings.host, settings.port)
    with measured_lag(state.counters):
        async with admin_listening(sockets, settings.host, state):
            yield url_of("http", settings.host, port_of(sockets))


def _count(counters: Counters, call: BackendCall) -> None:
    counters.count_backend_call(call.backend, call.result, call.outcome, call.seconds)


def api_key(entry: KeySettings) -> ApiKey:
    """Return a key of ``config.yaml``."""
    misses = entry.limits.misses
    return ApiKey(
        id=entry.id,
        digest=entry.digest,
        owner=entry.owner,
        scopes=frozenset(entry.scopes),
        not_before=entry.not_before.timestamp() if entry.not_before else -math.inf,
        expires=entry.expires.timestamp() if entry.expires else math.inf,
        requests=entry.limits.requests,
        misses=misses.rate if misses else None,
        misses_log_only=misses is not None and misses.log_only,
    )


def http_limits(settings: ServerSettings) -> HttpLimits:
    """Return the limits of the HTTP server, within the process's file descriptors."""
    return HttpLimits(
        max_body=settings.max_body,
        idle_timeout=settings.idle_timeout,
        body_timeout=settings.body_timeout,
        max_connections=settings.max_connections,
    ).within_descriptors()


def tls_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the server's TLS context: TLS 1.2 or newer.

    Raises `StartError` unless the files hold a certificate and its unencrypted key.
    """
    files = settings.cert_file, settings.key_file
    for file in files:
        try:
            read_file(file)
        except OSError as error:  # the TLS library's own error would not name the file
            raise StartError(f"{file}: cannot be read: {error.strerror}") from None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(*files, password=_refuse_password)
    except _EncryptedKey:
        raise StartError(f"{settings.key_file}: the key is encrypted; decrypt it") from None
    except ssl.SSLError as error:
        mismatch = error.reason == "KEY_VALUES_MISMATCH"
        reason = "the key is of another one" if mismatch else "not a certificate and key in PEM"
        raise StartError(f"{files[0]} and {files[1]} cannot be used for TLS: {reason}") from None
    return context


class _EncryptedKey(Exception):
    """The private key is protected by a password."""


def _refuse_password() -> NoReturn:
    """Keep the TLS library from asking for the password on the terminal."""
    raise _EncryptedKey
