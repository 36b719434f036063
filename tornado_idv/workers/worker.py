"""A worker process: serves until its supervisor asks it to stop, or is gone."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from contextlib import closing
from dataclasses import dataclass

import pluggy
import uvloop

from tornado_idv.admin.state import ServiceState
from tornado_idv.logs.handlers import configure_logging
from tornado_idv.registry import installed_kinds
from tornado_idv.service.run import tune_gc
from tornado_idv.service.service import Inherited, serving
from tornado_idv.service.watchdog import watched_loop
from tornado_idv.workers.channel import STOPPED, UNANSWERED, Channel, Message, supervised
from tornado_idv.workers.reload_all import Configuration, PreparedReload

_log = logging.getLogger(__name__)


def run_worker(
    current: Configuration,
    manager: pluggy.PluginManager,
    inherited: Inherited,
    control: socket.socket,
) -> int:
    """Serve until asked to stop; return the exit code."""
    file, settings = current.file, current.settings
    logs = configure_logging(
        settings.logging.level, settings.logging.format, settings.logging.ids, shared=True
    )

    async def serve(channel: Channel) -> int:
        # The supervisor decides: it may be about to stop itself, or starts a successor first.
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, channel.send, {"op": "retire"})
        dropped = lambda: logs.writer.dropped  # noqa: E731
        with file.located():
            async with serving(
                settings, manager, logs.access, dropped, inherited=inherited
            ) as service:
                tune_gc()
                kinds = installed_kinds(manager)
                reload = PreparedReload(file, kinds, service.prepare, channel.send)
                commands = _Commands(channel, service.state, reload)
                channel.serving(service.key_count, commands.execute, commands.report)
                with watched_loop(service.state.counters):
                    await channel.stop.wait()
                    if await service.drain(delay=channel.delay):
                        return STOPPED
                    _log.warning("stopped with requests unanswered after the drain timeout")
                    return UNANSWERED

    with closing(logs):
        return uvloop.run(supervised(control, serve))


@dataclass
class _Commands:
    """Executes the commands of the supervisor."""

    channel: Channel
    state: ServiceState
    reload: PreparedReload

    def report(self, *, take_lag: bool = False) -> Message:
        process, counters = self.state.process_report(take_lag=take_lag), self.state.counters
        requests = sum(each.count for each in counters.responses.values())
        return {"process": process, "counters": counters.to_record(), "requests": requests}

    async def execute(self, command: str, args: Message) -> object:
        match command:
            case "report":
                self.channel.send({"op": "report", "report": self.report(**args)})
            case "purge":
                return await self.state.purge(args)
            case "explain":
                return await self.state.explain(args)
            case _:
                return await self.reload.execute(command, args)
        return None
