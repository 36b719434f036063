"""A service of several processes, put together: what they share, and what each of them runs."""

from __future__ import annotations

import gc
import logging
import socket
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain

import pluggy

from tornado_idv.config.address import Address
from tornado_idv.config.load import ConfigFile
from tornado_idv.config.settings import Settings
from tornado_idv.logs.handlers import AUDIT, configure_direct_logging
from tornado_idv.registry import installed_kinds
from tornado_idv.service.limiters import make_limiters
from tornado_idv.service.reload import Configuration
from tornado_idv.service.run import start_summary
from tornado_idv.service.service import ListeningService
from tornado_idv.service.sockets import (
    Listener,
    addresses_of,
    bind,
    passed_listeners,
    port_of,
    public_listeners,
)
from tornado_idv.service.systemd import Notifier
from tornado_idv.workers.child import Slot
from tornado_idv.workers.manager import run_manager
from tornado_idv.workers.supervisor import MANAGER, Supervisor
from tornado_idv.workers.worker import run_worker

_audit = logging.getLogger(AUDIT)


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
    passed = passed_listeners()
    with public_listeners(server, file.addresses_for(settings), passed, workers) as public:
        admin_setting = "admin.host or admin.port"
        admin_sockets = bind(admin_setting, admin.host, admin.port) if admin else []
        kinds = installed_kinds(manager)
        limiters = make_limiters(settings.limits)
        current = Configuration(file, settings, manager, kinds, limiters)

        def on_ready(key_count: int) -> None:
            url = Address(admin.host, port_of(admin_sockets)).url("http") if admin else None
            summary = ListeningService(addresses_of(public[0]), server.scheme, url, key_count)
            _audit.info("started", extra={**start_summary(settings, summary), "workers": workers})
            announce(summary)

        public_sockets = {each.sock for each in chain(*public)}

        def worker(own: Sequence[Listener], control: socket.socket) -> int:
            _close(public_sockets.difference(each.sock for each in own))
            _close(admin_sockets)
            return run_worker(current, own, control)

        def manage(control: socket.socket) -> int:
            _close(public_sockets)
            return run_manager(current, admin_sockets, control)

        slots = [Slot(f"worker {i}", partial(worker, own)) for i, own in enumerate(public, start=1)]
        slots.append(Slot(MANAGER, manage))
        gc.collect()
        gc.freeze()  # a collection in a worker would otherwise copy every page it looks at
        supervisor = Supervisor(
            slots,
            current,
            Notifier.from_environ(),
            on_ready=on_ready,
            release=partial(_close, public_sockets),
        )
        _audit.info("stopped", extra={"drained": supervisor.run()})


def _close(sockets: Iterable[socket.socket]) -> None:
    for each in sockets:
        each.close()
