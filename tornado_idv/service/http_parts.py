"""Parts of the public listener that depend on the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from tornado_idv.config.settings import Settings
from tornado_idv.double.handlers import HANDLERS
from tornado_idv.double.state import Double
from tornado_idv.http.connection_table import HttpLimits
from tornado_idv.http.serving import Serving
from tornado_idv.http.trusted_proxies import TrustedProxies
from tornado_idv.keys.ring import KeyRing
from tornado_idv.lookup.directory import Directory
from tornado_idv.metrics.counters import Counters
from tornado_idv.service.limiters import Limiters
from tornado_idv.web.access_log import RequestLog
from tornado_idv.web.app import make_api, make_reject
from tornado_idv.web.docs import make_docs
from tornado_idv.web.known_heads import KnownHeads
from tornado_idv.web.lookups import Services


@dataclass(frozen=True, slots=True)
class SharedParts:
    """Parts that outlast a configuration: keys, counts of limits, counters, log, test double."""

    ring: KeyRing
    limiters: Limiters
    counters: Counters
    access_log: RequestLog | None
    double: Double | None = None


def make_http(
    settings: Settings, directory: Directory, shared: SharedParts, *, stopping: bool = False
) -> Serving:
    """Return an application that looks users up in ``directory``, and its limits.

    Each configuration has its own known heads. A service that is ``stopping`` fails its health
    check and closes each connection after a response.
    """
    server = settings.server
    services = Services(
        directory,
        settings.make_identifiers(),
        shared.ring,
        shared.access_log,
        shared.limiters.keys,
        failed_auth=shared.limiters.failed_auth,
        counters=shared.counters,
        logs_health_checks=settings.logging.health_checks,
        stopping=stopping,
    )
    docs = make_docs(settings) if server.docs else {}
    double = shared.double
    handlers = HANDLERS if double else ()
    api = make_api(services, server.base_path, server.health_path, docs, handlers, double=double)
    excludes = partial(double.concerns, directory) if double else None
    fast_paths = KnownHeads(services, server.max_body, excludes)
    return Serving(
        app=api,
        reject=make_reject(services.access_log, shared.counters),
        limits=HttpLimits(
            max_body=server.max_body,
            idle_timeout=server.idle_timeout,
            body_timeout=server.body_timeout,
            max_connections=server.max_connections,
        ).within_descriptors(),
        fast_paths=fast_paths if server.packet_cache and not stopping else None,
        proxies=TrustedProxies(server.trusted_proxies) if server.trusted_proxies else None,
        keep_alive=not stopping,
    )
