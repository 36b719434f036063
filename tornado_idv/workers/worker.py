"""A worker process: serves until its supervisor asks it to stop, or is gone."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, closing

import pluggy
import uvloop

from tornado_idv.config.load import ConfigFile
from tornado_idv.interfaces.backend import AnyBackend
from tornado_idv.logs.handlers import configure_logging
from tornado_idv.registry import backend_kinds
from tornado_idv.service.prepared import Prepared
from tornado_idv.service.service import Inherited, Service, prepare_file, serving
from tornado_idv.service.watchdog import watched_loop
from tornado_idv.workers.channel import STOPPED, UNANSWERED, Channel, heartbeats, supervised
from tornado_idv.workers.control import Message
from tornado_idv.workers.reload_all import Configuration, PreparedReload
from tornado_idv.workers.run import tune_gc

_log = logging.getLogger(__name__)


def run_worker(
    current: Configuration,
    manager: pluggy.PluginManager,
    inherited: Inherited,
    control: socket.socket,
) -> int:
    """Serve until asked to stop; return the exit code."""
    settings = current.settings
    logs = configure_logging(
        settings.logging.level, settings.logging.format, settings.logging.ids, shared=True
    )

    async def serve(channel: Channel) -> int:
        dropped = lambda: logs.writer.dropped  # noqa: E731
        worker = _Worker(channel, current.file, backend_kinds(manager))
        with current.file.located():
            return await worker.serve(
                serving(settings, manager, logs.access, dropped, inherited=inherited)
            )

    with closing(logs):
        return uvloop.run(supervised(control, serve))


class _Worker:
    """Serves public requests, and executes the commands of the supervisor."""

    def __init__(
        self, channel: Channel, file: ConfigFile, kinds: Mapping[str, type[AnyBackend]]
    ) -> None:
        self._channel = channel
        self._kinds = kinds
        self._reload = PreparedReload(file, self._prepare)
        self._service: asyncio.Future[Service] = asyncio.get_running_loop().create_future()
        channel.execute = self._execute

    async def serve(self, opened: AbstractAsyncContextManager[Service]) -> int:
        """Serve until the channel says to stop; return the exit code. Raises `StartError`."""
        channel, loop = self._channel, asyncio.get_running_loop()
        # The supervisor decides: it may be about to stop itself, or starts a successor first.
        loop.add_signal_handler(signal.SIGTERM, channel.send, {"op": "retire"})
        async with heartbeats(channel, self._report), opened as service:
            tune_gc()
            self._service.set_result(service)
            channel.serving(service.key_count)
            with watched_loop(service.state.counters):
                await channel.stop.wait()
                if await service.drain(delay=channel.delay):
                    return STOPPED
                _log.warning("stopped with requests unanswered after the drain timeout")
                return UNANSWERED

    async def _prepare(self, file: ConfigFile) -> Prepared:
        with self._channel.preparing():
            return await prepare_file(self._service.result(), self._kinds, file)

    def _report(self, *, take_lag: bool = False) -> Message | None:
        if not self._service.done():
            return None
        state = self._service.result().state
        process = state.process_report(take_lag=take_lag)
        return {"process": process, "counters": state.counters.to_record()}

    async def _execute(self, command: str, args: Message) -> object:
        """Execute a command, which waits until this worker serves."""
        state = (await asyncio.shield(self._service)).state
        match command:
            case "report":
                report = self._report(take_lag=args["take_lag"])
                self._channel.send({"op": "report", "report": report})
            case "purge":
                return await state.purge(args)
            case "explain":
                return await state.explain(args)
            case _:
                return await self._reload.execute(command, args)
        return None
