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

from tornado_idv.config.load import ConfigFile
from tornado_idv.config.settings import Settings
from tornado_idv.logs.handlers import AUDIT, LogOutput
from tornado_idv.service.service import ListeningService, listening
from tornado_idv.service.signals import KILLED_BY, Signals
from tornado_idv.service.systemd import Notifier
from tornado_idv.service.watchdog import watched_loop

_log = logging.getLogger(__name__)
_audit = logging.getLogger(AUDIT)
_GC_THRESHOLD = 20_000


def run(
    file: ConfigFile,
    settings: Settings,
    manager: pluggy.PluginManager,
    announce: Callable[[ListeningService], None],
    logs: LogOutput,
) -> None:
    """Serve until SIGTERM or SIGINT, then finish the requests in flight; reload on SIGHUP.

    ``file`` holds the settings. ``announce`` is called once the service listens. A signal during
    the start ends it. A second signal exits the process with 128 plus its number, and aborts the
    connections. Raises `StartError`.
    """

    async def serve() -> None:
        signals = Signals(asyncio.current_task(), partial(abort, logs))
        notifier = Notifier.from_environ()
        alive = asyncio.create_task(_report_alive(notifier))
        try:
            async with listening(
                file, settings, manager, logs.access, lambda: logs.writer.dropped, notifier=notifier
            ) as service:
                signals.ready(partial(service.reloader.start, "signal"))
                tune_gc()
                _audit.info("started", extra=start_summary(settings, service))
                announce(service)
                notifier.ready()
                with watched_loop(service.operations.counters):
                    await signals.stop.wait()
                    notifier.stopping()
                    _log.info("stopping: no new connections, finishing the requests in flight")
                    service.reloader.stop()
                    drained = await service.drain()
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
        alive.cancel()
        skip_last_collection()

    uvloop.run(serve())


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
    os._exit(KILLED_BY + number)


async def _report_alive(notifier: Notifier) -> None:
    """Send systemd watchdog keep-alives, if ``WATCHDOG_USEC`` is set."""
    while notifier.watchdog is not None:
        notifier.alive()
        await asyncio.sleep(notifier.watchdog)


def start_summary(settings: Settings, summary: ListeningService) -> dict[str, object]:
    """Return what the log says of a service that starts."""
    return {
        "version": version("tornado-idv"),
        "host": settings.server.host,
        "port": summary.port,
        "backends": [each.name for each in settings.backends],
        "keys": summary.key_count,
    }
