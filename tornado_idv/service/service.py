"""Builds the service from its settings, and applies new settings while it runs."""

import asyncio
import gc
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from pkgutil import resolve_name

from tornado_idv.admin.operations import Record, parse_query
from tornado_idv.admin.report import PartReport, ProcessReport, ReloadResult, Report, guard_report
from tornado_idv.config.address import Address
from tornado_idv.config.load import ConfigFile
from tornado_idv.config.settings import Settings
from tornado_idv.features import FEATURES
from tornado_idv.http.connection_table import HttpLimits
from tornado_idv.http.server import HttpServer
from tornado_idv.http.serving import Serving
from tornado_idv.http.trusted_proxies import TrustedProxies
from tornado_idv.interfaces.shared import Purge
from tornado_idv.keys.ring import KeyRing
from tornado_idv.logs.handlers import LogOutput
from tornado_idv.lookup.directory import Directory
from tornado_idv.metrics.counters import Counters
from tornado_idv.service.directories import Directories, open_directories
from tornado_idv.service.events import Events
from tornado_idv.service.keys import Keys
from tornado_idv.service.part import Part, Prepared, Running, background
from tornado_idv.service.reload import (
    Audited,
    Configuration,
    Limiters,
    Reloader,
    applicable,
    prepare_file,
    record,
)
from tornado_idv.service.sockets import SocketFiles, addresses_of, bind, public_sockets, tls_context
from tornado_idv.web.access_log import RequestLog
from tornado_idv.web.app import OWN_ROUTES, all_routes, make_api, make_reject
from tornado_idv.web.fast_path.known_heads import KnownHeads
from tornado_idv.web.lookups import ApiContext

_MIN_DRAIN = 0.1
"""Minimum seconds for a drain. With 0 s, `wait_for` times out even without requests in flight."""
# The modules of parts are imported before the fork, so that workers share their memory.
_PARTS: list[Callable[[Running], Part | None]]
_PARTS = [resolve_name(each.part) for each in FEATURES if each.part]
_COLLECT_AFTER = 10.0
"""Seconds from a reload to a garbage collection, because old requests use replaced objects."""


@dataclass
class ServiceInfo:
    """A description of a listening service for its operator.

    ``addresses`` have the bound ports in place of port 0; Unix sockets are last. ``admin_url`` is
    the base URL of the admin listener or ``None``. ``key_count`` is the number of keys at the
    start, including invalid keys.
    """

    addresses: Sequence[Address]
    scheme: str
    admin_url: str | None
    key_count: int

    @property
    def url(self) -> str:
        """The base URL for requests from this machine, without a trailing slash."""
        return self.addresses[0].url(self.scheme)

    @property
    def port(self) -> int:
        """The port of the first address; 0 if all addresses are Unix sockets."""
        return self.addresses[0].port


@dataclass(eq=False)
class Service(ServiceInfo):
    """A listening service, with methods for a reload and for a drain. Implements `Operations`.

    A reload replaces ``settings``, except for the values that need a restart (see `applicable`).
    ``parts`` are the parts of features, by name. `drain` sets ``draining``. Only a service in one
    process has a ``reloader`` and ``sockets``.
    """

    settings: Settings
    keys: Keys
    directories: Directories
    limiters: Limiters
    counters: Counters
    parts: Mapping[str, Part]
    access_log: RequestLog | None
    logs: LogOutput
    server: HttpServer = field(init=False)
    reloader: Reloader = field(init=False)
    sockets: PartReport | None = field(default=None, init=False)
    draining: bool = field(default=False, init=False)
    needs_restart: tuple[str, ...] = field(default=(), init=False)
    """The names of settings that the last reload did not change, because they need a restart."""

    def __post_init__(self) -> None:
        self.server = HttpServer(self.make_http(self.settings, self.directories.current))

    @property
    def ring(self) -> KeyRing:
        return self.keys.ring

    async def report(self, *, take_lag: bool = False) -> Report:
        return Report(
            "draining" if self.draining else "ready",
            os.getpid(),
            self.counters.started_at,
            self.process_report(take_lag=take_lag),
            self.counters,
            last_reload=self.reloader.last,
        )

    def process_report(self, *, take_lag: bool = False) -> ProcessReport:
        """Return the state of this process. Also update the counters."""
        counters, directory, store = self.counters, self.directories.current, self.keys.store
        counters.log_dropped = self.logs.writer.dropped
        parts = {"key store": store and PartReport(store.error, store.since)}
        parts |= {name: each.report() for name, each in self.parts.items()}
        parts["unix sockets"] = self.sockets
        return ProcessReport(
            backends=[guard_report(each, counters) for each in directory.guards],
            cache_entries=directory.cache.sizes,
            connections=dict(self.server.connections.states()),
            connections_limit=self.server.connections.limits.max_connections,
            parts={name: part for name, part in parts.items() if part},
            max_lag=counters.take_max_lag() if take_lag else counters.max_lag,
        )

    async def reload(self, **audited: str | None) -> ReloadResult:
        return await self.reloader.reload("admin", **audited)

    async def purge(self, target: Record) -> bool:
        match target:
            case {"all": True}:
                purge = Purge()
            case {"backend": str(name)}:
                purge = Purge(backends=(name,))
            case _:
                purge = Purge(queries=(parse_query(self.settings, target),))
        self.directories.current.purge(purge)
        return all([await each.purged() for each in self.parts.values()])

    async def explain(self, query: Record) -> Record:
        parsed, directory = parse_query(self.settings, query), self.directories.current
        cached = directory.cache.describe(parsed)
        explanation = await directory.explain(parsed)
        calls = [
            {"backend": each.backend, "outcome": each.outcome, "ms": round(each.seconds * 1000, 2)}
            for each in explanation.calls
        ]
        return {"result": explanation.result, "cache": cached, "backends": calls}

    async def prepare(self, settings: Settings) -> Prepared:
        """Open everything that these settings need, and change nothing yet.

        Settings that need a restart keep their values. Backends, key store and directory stay the
        same if their settings do. Open connections stay open. A request in flight completes in the
        configuration that it was dispatched in. Raises `StartError` for a resource that cannot be
        opened.
        """
        has_tls = settings.server.tls is not None
        settings, needs_restart = applicable(self.settings, settings)
        # If `tls` was removed, TLS stays on until a restart, but the certificate may be gone.
        tls = tls_context(settings.server.tls) if settings.server.tls and has_tls else None
        keys = await self.keys.prepare(settings.auth)
        async with AsyncExitStack() as undo:
            undo.push_async_callback(keys.abort)
            directory, change = await self.directories.prepare(settings)
            undo.push_async_callback(change.abort)
            commits = [keys.commit, change.commit]
            commits += [await part.prepare(settings, directory) for part in self.directories.parts]
            http = self.make_http(settings, directory)
            abort = undo.pop_all().aclose

        def commit() -> None:
            self.settings, self.needs_restart = settings, needs_restart
            for each in commits:
                each()
            self.limiters.configure(settings.limits)
            self.server.replace(http, tls)
            # Replaced objects are in reference cycles, and `tune_gc` makes collections rare.
            asyncio.get_running_loop().call_later(_COLLECT_AFTER, gc.collect)

        return Prepared(commit, abort)

    def make_http(self, settings: Settings, directory: Directory) -> Serving:
        """Return the HTTP application for lookups in ``directory``, with its limits.

        During a drain, the health check fails and each connection is closed after a response.
        """
        server, stopping = settings.server, self.draining
        api = ApiContext(
            directory,
            settings.make_identifiers(),
            self.ring,
            self.access_log,
            self.limiters.keys,
            failed_auth=self.limiters.failed_auth,
            counters=self.counters,
            logs_health_checks=settings.logging.health_checks,
            stopping=stopping,
        )
        routes = all_routes(settings)
        # If a feature replaces one of our routes, its handler must see each request.
        is_fast = server.fast_path and not stopping and all(each in routes for each in OWN_ROUTES)
        known_heads = KnownHeads(api, server.max_body) if is_fast else None
        app = make_api(
            api,
            server.base_path,
            server.health_path,
            routes,
            known_heads=known_heads,
            parts=self.parts,
        )
        return Serving(
            app=app,
            reject=make_reject(api.access_log, self.counters),
            limits=HttpLimits(
                max_body=server.max_body,
                idle_timeout=server.idle_timeout,
                body_timeout=server.body_timeout,
                max_connections=server.max_connections,
            ).within_descriptors(),
            fast_path=known_heads.connect if known_heads else None,
            proxies=TrustedProxies(server.trusted_proxies) if server.trusted_proxies else None,
            keep_alive=not stopping,
        )

    async def drain(self, *, delay: bool = True) -> bool:
        """Stop listening and wait for requests in flight; return whether all were answered.

        From now on the readiness check fails. With ``delay`` the service still accepts new
        connections for ``server.drain.delay`` seconds, so that a load balancer can notice the
        stop. Then requests in flight have ``server.drain.timeout`` seconds.
        """
        limits = self.settings.server.drain
        self.draining = True
        if delay:
            self.server.replace(self.make_http(self.settings, self.directories.current))
            await asyncio.sleep(limits.delay)
        try:
            await asyncio.wait_for(self.server.drain(), max(limits.timeout, _MIN_DRAIN))
        except TimeoutError:
            return False
        return True


@asynccontextmanager
async def service_of_one_process(
    current: Configuration, logs: LogOutput, *, events: Events
) -> AsyncIterator[Service]:
    """Run the whole service in one process, from open backends to listening sockets.

    At a reload, ``events`` sends ``reloading`` and ``ready``. Raises `StartError` if the key store,
    a backend or an address cannot be opened.
    """
    sockets = public_sockets(current.settings.server, current.addresses)
    async with AsyncExitStack() as stack:
        if (admin := current.settings.admin) is not None:
            # The import is slow, and most services have no admin listener. Its socket is bound
            # first, so that it accepts connections before the public listener responds.
            from tornado_idv.admin.listener import admin_listening  # noqa: PLC0415

            own = bind("change admin.host or admin.port", Address(admin.host, admin.port))
            for each in own:
                stack.callback(each.close)
        service = await stack.enter_async_context(public_listener(current, logs, sockets))

        async def apply(file: ConfigFile) -> ReloadResult:
            (await prepare_file(file, current.kinds, service.prepare)).commit()
            return ReloadResult(needs_restart=service.needs_restart)

        def end(result: ReloadResult, audited: Audited) -> None:
            events.send("ready")
            record(result, service.counters, audited)

        service.reloader = Reloader(current.file, apply, lambda _: events.send("reloading"), end)
        stack.push_async_callback(service.reloader.close)
        files = SocketFiles(service.addresses)
        service.sockets = files.report
        watch = service.reloader.watch(files, lambda: service.settings.server.watch_config)
        await stack.enter_async_context(background(watch))
        if admin is not None:
            await stack.enter_async_context(
                admin_listening(own, admin.host, service, parts=service.parts)
            )
            service.admin_url = Address.of(own[0]).url("http")
        yield service


@asynccontextmanager
async def public_listener(
    current: Configuration,
    logs: LogOutput,
    sockets: AbstractContextManager[Sequence[Sequence[socket.socket]]],
) -> AsyncIterator[Service]:
    """Run a service without an admin listener; raises as `service_of_one_process`.

    ``sockets`` yields the sockets of one worker. It is entered when the backends and the key
    store are open, so no client connects before.
    """
    settings, limiters, counters = current.settings, current.limiters, Counters()
    running = Running(settings, current.plugins, counters)
    parts = [part for make_part in _PARTS if (part := make_part(running))]
    log: RequestLog | None = logs.access
    for each in parts:
        log = each.log_before(log)
    async with (
        Keys(current.kinds).opened(settings.auth) as keys,
        open_directories(running, parts) as directories,
    ):
        by_name = {each.name: each for each in parts}
        tls = tls_context(settings.server.tls) if settings.server.tls else None
        with sockets as (own,):
            summary = addresses_of(own), settings.server.scheme, None, len(keys.ring.ids)
            service = Service(
                *summary, settings, keys, directories, limiters, counters, by_name, log, logs
            )
            with closing(service.server):
                await service.server.listen(own, tls)
                yield service
