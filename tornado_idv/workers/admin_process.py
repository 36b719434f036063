"""The process with the admin listener of a service with several workers."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import closing

import pluggy
import uvloop
from msgspec import convert

from tornado_idv.admin.listener import admin_listening
from tornado_idv.admin.operations import OperationFailed, Record
from tornado_idv.admin.report import ProcessReport, Report, merge
from tornado_idv.config.parts import AdminSettings
from tornado_idv.config.settings import Settings
from tornado_idv.logs.handlers import configure_logging
from tornado_idv.metrics.counters import Counters
from tornado_idv.registry import installed_kinds
from tornado_idv.reload_result import ReloadResult
from tornado_idv.service.keys import Keys
from tornado_idv.service.reload import Prepared
from tornado_idv.service.service import Inherited
from tornado_idv.workers.channel import STOPPED, Channel, Message, supervised
from tornado_idv.workers.reload_all import Configuration, PreparedReload

_log = logging.getLogger(__name__)
_RELOAD_TIMEOUT = 145.0
_TIMEOUT = 8.0
"""Seconds: longer than the supervisor waits for the workers, shorter than a command for us."""


def run_admin(
    current: Configuration,
    manager: pluggy.PluginManager,
    admin: AdminSettings,
    inherited: Inherited,
    control: socket.socket,
) -> int:
    """Serve the admin listener until asked to stop; return the exit code."""
    settings = current.settings
    logs = configure_logging(settings.logging.level, settings.logging.format, shared=True)

    async def serve(channel: Channel) -> int:
        keys = Keys(installed_kinds(manager))
        async with keys.opened(settings.auth):
            operations = WorkerOperations(channel, settings, keys)
            kinds = installed_kinds(manager)
            reload = PreparedReload(current.file, kinds, operations.prepare, channel.send)
            async with admin_listening(inherited.sockets, admin.host, operations):
                channel.serving(len(keys.ring.ids), reload.execute)
                await channel.stop.wait()
        return STOPPED

    with closing(logs):
        return uvloop.run(supervised(control, serve))


class WorkerOperations:
    """Has the workers do what the operator asks for; implements `Operations`."""

    def __init__(self, channel: Channel, settings: Settings, keys: Keys) -> None:
        self.keys = keys.ring
        self._keys = keys
        self._channel = channel
        self._has_shared_cache = settings.shared_cache is not None  # a reload does not change it
        self._adopt(settings)

    async def report(self, *, take_lag: bool = False) -> Report:
        overview = (await self._ask("report", {"take_lag": take_lag}))["overview"]
        counters = Counters()  # the sum of what workers report, and have counted until they ended
        counters.merge(overview["ended"])
        counters.last_reload_success = overview["loaded_at"]
        reports = [each["report"] for each in overview["workers"] if each["report"] is not None]
        for each in reports:
            counters.merge(each["counters"])
        process = merge([convert(each["process"], ProcessReport) for each in reports])
        return convert({**overview, "process": process, "counters": counters}, Report)

    async def purge(self, target: Record) -> bool:
        reply = await self._ask("purge", target)
        # The cache of a worker that has ended is gone, too.
        failed = [each for each in reply["replies"] if "error" in each]
        if failed:
            reasons = ", ".join(
                f"{each['name']} (pid {each['pid']}): {each['error']}" for each in failed
            )
            _log.error("the cache was not purged in every worker: %s", reasons)
            raise OperationFailed(f"The cache was not purged in every worker: {reasons}; try again")
        delivered = any(each.get("result", False) for each in reply["replies"])
        return delivered or not self._has_shared_cache

    async def explain(self, query: Record) -> Record:
        reply = await self._ask("explain", query)
        for each in reply["replies"]:
            if "result" in each:
                return {**each["result"], "worker": each["name"]}
        raise OperationFailed("No worker can explain the lookup now; try again")

    async def reload(self, **audited: str | None) -> ReloadResult:
        reply = await self._ask("reload", audited, wait=_RELOAD_TIMEOUT)
        return convert(reply["result"], ReloadResult)

    def _adopt(self, settings: Settings) -> None:
        self.identifiers = settings.make_identifiers()
        self.backends = [each.name for each in settings.backends]

    async def prepare(self, settings: Settings) -> Prepared:
        """Open the key store of these settings, if it is another one; raises `StartError`."""
        keys = await self._keys.prepare(settings.auth)

        def commit() -> None:
            keys.commit()
            self._adopt(settings)

        return Prepared(commit, keys.abort)

    async def _ask(self, command: str, args: Record, *, wait: float = _TIMEOUT) -> Message:
        try:
            return await asyncio.wait_for(self._channel.ask(command, args), wait)
        except TimeoutError:
            raise OperationFailed("The supervisor does not respond") from None
