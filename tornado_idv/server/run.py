"""One process from start to stop: the loop, the signals, the drain."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Callable

import pluggy
import uvloop

from tornado_idv.config.settings import Settings
from tornado_idv.server.logs import open_access_log
from tornado_idv.server.service import Service, listening

_log = logging.getLogger(__name__)
_YOUNG_OBJECTS = 20_000


def run(
    settings: Settings, manager: pluggy.PluginManager, announce: Callable[[Service], None]
) -> None:
    """Serves until SIGTERM or SIGINT, then finishes the requests in flight.

    ``announce`` is called once the service can be asked. Raises `StartError`.
    """
    uvloop.run(_serve(settings, manager, announce))


def settle_memory() -> None:
    """Spares the garbage collector what lives as long as the process, and frequent rounds.

    By default it looks at the young objects every few requests, and now and then, in the
    middle of one of them, at everything there is.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS)


async def _serve(
    settings: Settings, manager: pluggy.PluginManager, announce: Callable[[Service], None]
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    access_log = open_access_log(settings.logging.level, settings.logging.format)
    async with listening(settings, manager, access_log) as service:
        settle_memory()
        announce(service)
        await stop.wait()
        _log.info("stopping: no new connections, finishing the requests in flight")
        if not await service.drain(settings.server.drain):
            _log.warning("stopped with requests unanswered after the drain timeout")
    if access_log is not None:
        access_log.flush()
    _log.info("stopped")
