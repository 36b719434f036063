"""Starts a service with several processes."""

import gc
import logging
import socket
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain

from tornado_idv.config.address import Address
from tornado_idv.logs.handlers import AUDIT, configure_direct_logging
from tornado_idv.service.events import Events
from tornado_idv.service.reload import Configuration
from tornado_idv.service.run import log_start
from tornado_idv.service.service import ServiceInfo
from tornado_idv.service.sockets import SocketFiles, addresses_of, bind, public_sockets
from tornado_idv.workers.child import Slot
from tornado_idv.workers.manager import run_manager
from tornado_idv.workers.supervisor import MANAGER, Supervisor
from tornado_idv.workers.worker import run_worker

_audit = logging.getLogger(AUDIT)
Run = Callable[[Configuration, Sequence[socket.socket], socket.socket], int]


def supervise(
    current: Configuration, announce: Callable[[ServiceInfo], None], workers: int
) -> None:
    """Serve with several workers until SIGTERM or SIGINT, then drain them.

    When all workers serve, ``announce`` is called. Raises `StartError` if no worker can start.
    """
    settings = current.settings
    configure_direct_logging(settings.logging.level, settings.logging.format)
    server, admin = settings.server, settings.admin
    with public_sockets(server, current.addresses, workers) as public:
        admin_sockets: list[socket.socket] = []
        if admin:
            admin_sockets = bind("change admin.host or admin.port", Address(admin.host, admin.port))
        current.sockets = SocketFiles(addresses_of(public[0]))

        def on_ready(key_count: int) -> None:
            url = Address.of(admin_sockets[0]).url("http") if admin else None
            summary = ServiceInfo(addresses_of(public[0]), server.scheme, url, key_count)
            log_start(settings, summary, workers=workers)
            announce(summary)

        every_socket = {*chain(*public), *admin_sockets}

        def start(run: Run, own: Sequence[socket.socket], control: socket.socket) -> int:
            _close(every_socket.difference(own))
            return run(current, own, control)

        worker = partial(start, run_worker)
        slots = [Slot(f"worker {i}", partial(worker, own)) for i, own in enumerate(public, start=1)]
        slots.append(Slot(MANAGER, partial(start, run_manager, admin_sockets)))
        gc.collect()
        gc.freeze()  # otherwise a collection in a worker would copy every page it visits
        supervisor = Supervisor(
            slots,
            current,
            Events.of_features(),
            on_ready=on_ready,
            release=partial(_close, {*chain(*public)}),
        )
        _audit.info("stopped", extra={"drained": supervisor.run()})


def _close(sockets: Iterable[socket.socket]) -> None:
    for each in sockets:
        each.close()
