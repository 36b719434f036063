"""A service of several processes, put together: what they share, and what each of them runs."""

from __future__ import annotations

import gc
import logging
import socket
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain

import pluggy

from tornado_idv.config.load import ConfigFile
from tornado_idv.config.settings import Settings
from tornado_idv.logs.handlers import AUDIT, configure_direct_logging
from tornado_idv.registry import installed_kinds
from tornado_idv.service.limiters import make_limiters
from tornado_idv.service.reload import Configuration
from tornado_idv.service.run import start_summary
from tornado_idv.service.service import ListeningService
from tornado_idv.service.sockets import bind, bind_each, port_of, url_of
from tornado_idv.service.systemd import Notifier
from tornado_idv.workers.child import Slot
from tornado_idv.workers.manager import run_manager
from tornado_idv.workers.supervisor import MANAGER, Supervisor
from tornado_idv.workers.worker import run_worker

_audit = logging.getLogger(AUDIT)
Run = Callable[[Configuration, Sequence[socket.socket], socket.socket], int]


def supervise(
    file: ConfigFile,
    settings: Settings,
    manager: pluggy.PluginManager,
    announce: Callable[[ListeningService], None],
    workers: int,
) -> None:
    """Serve with several workers until SIGTERM or SIGINT, then drain them.

    ``file`` holds the settings; a reload reads it again. ``announce`` is called once all of them
    serve. Raises `StartError` if none can.
    """
    configure_direct_logging(settings.logging.level, settings.logging.format)
    server, admin = settings.server, settings.admin
    public = bind_each("server", server.host, file.port_for(settings), workers)
    admin_sockets = bind("admin", admin.host, admin.port) if admin else []
    kinds = installed_kinds(manager)
    limiters = make_limiters(settings.limits)
    current = Configuration(file, settings, manager, kinds, limiters)

    def on_ready(key_count: int) -> None:
        port = port_of(public[0])
        url = url_of("https" if server.tls else "http", server.host, port)
        admin_url = url_of("http", admin.host, port_of(admin_sockets)) if admin else None
        summary = ListeningService(url, port, admin_url, key_count)
        _audit.info("started", extra={**start_summary(settings, summary), "workers": workers})
        announce(summary)

    sockets = {*chain(*public), *admin_sockets}

    def start(run: Run, own: Sequence[socket.socket], control: socket.socket) -> int:
        _close(sockets.difference(own))
        return run(current, own, control)

    worker = partial(start, run_worker)
    slots = [Slot(f"worker {i}", partial(worker, own)) for i, own in enumerate(public, start=1)]
    slots.append(Slot(MANAGER, partial(start, run_manager, admin_sockets)))
    gc.collect()
    gc.freeze()  # a collection in a worker would otherwise copy every page it looks at
    supervisor = Supervisor(
        slots,
        current,
        Notifier.from_environ(),
        on_ready=on_ready,
        release=partial(_close, list(chain(*public))),
    )
    _audit.info("stopped", extra={"drained": supervisor.run()})


def _close(sockets: Iterable[socket.socket]) -> None:
    for each in sockets:
        each.close()
