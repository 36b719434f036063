"""One process from start to stop: the loop, the signals, the drain."""

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import uvloop

from tornado_idv.config.settings import Settings
from tornado_idv.logs.handlers import AUDIT, LogOutput
from tornado_idv.metrics.counters import Counters
from tornado_idv.service.events import Events
from tornado_idv.service.part import background
from tornado_idv.service.reload import Configuration
from tornado_idv.service.service import ServiceInfo, service_of_one_process

_log = logging.getLogger(__name__)
_audit = logging.getLogger(AUDIT)
_LAG_INTERVAL = 0.1
_MAX_LAG = 1.0
"""Seconds of lag above which the event loop counts as blocked."""
KILLED_BY = 128
"""The exit code after a signal is this number plus the signal's number, as in a shell."""


def run(current: Configuration, announce: Callable[[ServiceInfo], None], logs: LogOutput) -> None:
    """Serve until SIGTERM or SIGINT, then finish the requests in flight; reload on SIGHUP.

    ``announce`` is called when the service listens. SIGTERM or SIGINT during the start ends the
    start. At the second SIGTERM or SIGINT, the process exits immediately, with 128 plus the
    signal's number as exit code. Raises `StartError`.
    """

    async def serve() -> None:
        signals = Signals(asyncio.current_task(), partial(abort, logs))
        events = Events.of_features()
        try:
            async with (
                background(_report_alive(events)),
                service_of_one_process(current, logs, events=events) as service,
            ):
                signals.ready(partial(service.reloader.start, "signal"))
                tune_gc()
                log_start(current.settings, service)
                logs.writer.flush()  # so that all warnings appear before the announcement
                announce(service)
                events.send("ready")
                async with background(measure_lag(service.counters)):
                    await signals.stop.wait()
                    events.send("stopping")
                    _log.info("stopping: no new connections, finishing the requests in flight")
                    service.reloader.stop()  # its commit would end the drain's application
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
        skip_last_collection()

    uvloop.run(serve())


class Signals:
    """Handles SIGTERM, SIGINT and SIGHUP, from creation until the loop is closed.

    The first SIGTERM or SIGINT sets ``stop``. Before the call of `ready` it also cancels ``task``.
    The second of these calls ``abort`` with its number, even during the start or the drain. This
    ``abort`` must not wait for anything that may hang. SIGHUP is blocked until the call of `ready`.
    """

    def __init__(self, task: asyncio.Task[Any] | None, abort: Callable[[int], object]) -> None:
        self.stop = asyncio.Event()
        self._starting = task
        self._abort = abort
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._on_stop, number)

    def ready(self, on_hangup: Callable[[], object]) -> None:
        """End the start: signals no longer cancel ``task``, and SIGHUP calls ``on_hangup``."""
        self._starting = None
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, on_hangup)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])

    def _on_stop(self, number: int) -> None:
        if self.stop.is_set():
            self._abort(number)
            return
        self.stop.set()
        if self._starting is not None:
            self._starting.cancel()


def tune_gc() -> None:
    """Exclude long-lived objects from garbage collection, and make collections less frequent.

    By default the youngest generation is collected every few requests, and sometimes all
    generations. A full collection delays the request that triggers it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


def skip_last_collection() -> None:
    """Disable the garbage collection at exit, because with 300,000 users it takes 2 s."""
    gc.freeze()


def abort(logs: LogOutput, number: int) -> None:
    """Exit without clean-up, because a thread or a backend could block the clean-up."""
    if logs.access is not None:
        logs.access.flush()
    _log.warning("second signal: exiting now, requests in flight are aborted")
    _audit.info("stopped", extra={"drained": False})
    logs.close()
    os._exit(KILLED_BY + number)


async def measure_lag(counters: Counters) -> None:
    """Measure the delay of the event loop's timers. Blocking calls increase it."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + _LAG_INTERVAL
        await asyncio.sleep(_LAG_INTERVAL)
        lag = loop.time() - due
        counters.max_lag = max(counters.max_lag, lag)
        if lag > _MAX_LAG:
            _log.warning("event loop was blocked for %.1f s", lag)


async def _report_alive(events: Events) -> None:
    """Send ``alive`` events, at the shortest interval that a listener needs."""
    while events.interval is not None:
        events.send("alive")
        await asyncio.sleep(events.interval)


def log_start(settings: Settings, service: ServiceInfo, **more: object) -> None:
    """Log the start of a service. Warn if keys cross a network in plain text."""
    shadows = [each.name for each in settings.shadows]
    summary = {
        "version": version("tornado-idv"),
        "listen": [str(each) for each in service.addresses],
        "backends": [each.name for each in settings.served],
        "keys": service.key_count,
        **({"shadows": shadows} if shadows else {}),
    }
    _audit.info("started", extra={**summary, **more})
    if warning := settings.server.warning(service.addresses):
        _log.warning("%s", warning)
