"""One process from start to stop: the loop, the signals, the drain."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import Callable
from functools import partial
from importlib.metadata import version

import pluggy
import uvloop

from tornado_idv.config.settings import Settings
from tornado_idv.server.logs import AUDIT, LogOutput
from tornado_idv.server.service import Service, listening
from tornado_idv.server.signals import Signals
from tornado_idv.server.watchdog import watched_loop

_log = logging.getLogger(__name__)
_audit = logging.getLogger(AUDIT)
_GC_THRESHOLD = 20_000
_KILLED_BY = 128
"""What a shell adds to the number of the signal that ended a process, for its exit code."""


def run(
    settings: Settings,
    manager: pluggy.PluginManager,
    announce: Callable[[Service], None],
    logs: LogOutput,
) -> None:
    """Serve until SIGTERM or SIGINT, then finish the requests in flight.

    ``announce`` is called once the service listens. A signal during the start ends it. A
    second signal exits the process with 128 plus its number, and aborts the connections.
    Raises `StartError`.
    """
    uvloop.run(_serve(settings, manager, announce, logs))


def tune_gc() -> None:
    """Exclude long-lived objects from garbage collection, and make collections less frequent.

    By default the youngest generation is collected every few requests, and at times all
    generations, which delays the request that triggers it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)


def skip_last_collection() -> None:
    """Disable the garbage collection at exit: with 300,000 users it takes 2 s."""
    gc.freeze()


def abort(logs: LogOutput, number: int) -> None:
    """End the process without clean-up: a thread or a backend could hold that up."""
    if logs.access is not None:
        logs.access.flush()
    _log.warning("second signal: exiting now, requests in flight are aborted")
    _audit.info("stopped", extra={"drained": False})
    logs.close()
    os._exit(_KILLED_BY + number)


async def _serve(
    settings: Settings,
    manager: pluggy.PluginManager,
    announce: Callable[[Service], None],
    logs: LogOutput,
) -> None:
    signals = Signals(asyncio.current_task(), partial(abort, logs))
    try:
        async with listening(
            settings, manager, logs.access, lambda: logs.writer.dropped
        ) as service:
            signals.ready()
            tune_gc()
            _audit.info("started", extra=_summary(settings, service))
            announce(service)
            with watched_loop():
                await signals.stop.wait()
                _log.info("stopping: no new connections, finishing the requests in flight")
                drained = await service.drain(settings.server.drain)
            if not drained:
                _log.warning("stopped with requests unanswered after the drain timeout")
    except asyncio.CancelledError:
        if not signals.stop.is_set():
            raise
        _log.info("stopped during the start")
    else:
        if logs.access is not None:
            logs.access.flush()
        _audit.info("stopped", extra={"drained": drained})
    skip_last_collection()


def _summary(settings: Settings, service: Service) -> dict[str, object]:
    """Return what the log says of a service that starts."""
    return {
        "version": version("tornado-idv"),
        "host": service.host,
        "port": service.port,
        "backends": [each.name for each in settings.backends],
        "keys": len(service.keys.ring.ids),
    }
