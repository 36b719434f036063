"""The manager process of several workers: reloads, and the admin listener."""

import asyncio
import logging
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack, closing

import uvloop
from msgspec import convert

from tornado_idv.admin.listener import admin_listening
from tornado_idv.admin.operations import OperationFailed, Record
from tornado_idv.admin.report import ProcessReport, ReloadResult, Report, merge
from tornado_idv.config.load import ConfigFile
from tornado_idv.config.settings import AuthSettings, Settings
from tornado_idv.errors import StartError
from tornado_idv.logs.handlers import configure_logging
from tornado_idv.metrics.counters import Counters
from tornado_idv.service.keys import Keys
from tornado_idv.service.part import Prepared, background
from tornado_idv.service.reload import (
    PREPARE_TIMEOUT,
    Configuration,
    Reloader,
    applicable,
    failure,
    prepare_file,
)
from tornado_idv.workers.channel import Channel, Message, MessageStream, connected, supervised

_log = logging.getLogger(__name__)
_TIMEOUT = 5.0
"""Maximum seconds for a reply of a worker or the supervisor, except for the request ``prepare``."""


def run_manager(
    current: Configuration, sockets: Sequence[socket.socket], control: socket.socket
) -> int:
    """Manage the workers until the supervisor orders a stop. Return the exit code."""
    settings, admin = current.settings, current.settings.admin
    logs = configure_logging(settings.logging.level, settings.logging.format, shared=True)

    async def serve(channel: Channel) -> bool:
        keys = Keys(current.kinds)
        async with AsyncExitStack() as stack:
            operations = Manager(channel, current, keys)
            is_enabled = lambda: operations.settings.server.watch_config  # noqa: E731
            if admin is not None:  # first: only one change of the keys may be prepared at a time
                await stack.enter_async_context(keys.opened(settings.auth))
                await stack.enter_async_context(admin_listening(sockets, admin.host, operations))
            watch = operations.reloader.watch(current.sockets, is_enabled)
            await stack.enter_async_context(background(watch))
            logs.writer.flush()  # before the announcement of the service
            channel.serving(0)  # only workers count keys
            await channel.stop.wait()
        return True

    with closing(logs):
        return uvloop.run(supervised(control, serve, current.generation))


class Manager:
    """Executes operations in all workers. Implements `Operations`."""

    def __init__(self, channel: Channel, current: Configuration, keys: Keys) -> None:
        channel.on_message = self._on_message
        self.ring = keys.ring
        self.settings = current.settings
        self.reloader = Reloader(
            current.file,
            self._apply,
            lambda audited: channel.send(op="reloading", audited=audited),
            lambda result, _: channel.send(op="reloaded", result=result),
        )
        self._keys = keys
        self._channel = channel
        self._current = current
        self._max_lag = 0.0

    async def report(self, *, take_lag: bool = False) -> Report:
        overview = await self._overview()
        counters = Counters()  # the sum of running and ended workers
        counters.merge(overview["ended"])
        counters.last_reload_success = overview["loaded_at"]
        reports = [each["report"] for each in overview["workers"] if each["report"] is not None]
        for each in reports:
            counters.merge(each["counters"])
        process = merge([convert(each["process"], ProcessReport) for each in reports])
        if sockets := self._current.sockets.report:
            process.parts["unix sockets"] = sockets
        process.max_lag = max(process.max_lag, self._max_lag)
        self._max_lag = 0.0 if take_lag else process.max_lag
        return convert({**overview, "process": process, "counters": counters}, Report)

    async def purge(self, target: Record) -> bool:
        replies: dict[str, Message] = {}
        # Again for workers started meanwhile: a snapshot may have had purged answers until now.
        while workers := [each for each in await self._workers() if _name(each) not in replies]:
            asked = await asyncio.gather(*(_ask(each, "purge", target) for each in workers))
            replies |= zip(map(_name, workers), asked, strict=True)
            if any("ended" in each for each in asked):  # its snapshot may be newer than the purges
                replies = {name: each for name, each in replies.items() if "ended" in each}
        # The cache of an ended worker is gone. If all workers have ended, their snapshots remain.
        failed = [f"{name}: {each['error']}" for name, each in replies.items() if "error" in each]
        results = [each["result"] for each in replies.values() if "result" in each]
        if reasons := ", ".join(failed) or ("" if results else "no worker runs now"):
            _log.error("the cache was not purged in every worker: %s", reasons)
            raise OperationFailed(f"The cache was not purged in every worker: {reasons}; try again")
        return any(results)

    async def explain(self, query: Record) -> Record:
        for worker in await self._workers():
            if worker["phase"] == "ready":
                reply = await _ask(worker, "explain", query)
                if "result" in reply:
                    return {**reply["result"], "worker": worker["name"]}
        raise OperationFailed("No worker can explain the lookup now; try again")

    async def reload(self, **audited: str | None) -> ReloadResult:
        return await self.reloader.reload("admin", **audited)

    async def _apply(self, file: ConfigFile) -> ReloadResult:
        """Prepare a configuration in every process. If all succeed, commit it in all.

        A worker may begin to serve during the reload, with the old configuration. So the supervisor
        accepts the new configuration only if every serving worker has prepared it. If not, prepare
        it in the new workers, and ask the supervisor again.
        """
        async with AsyncExitStack() as connections:
            async with AsyncExitStack() as undo:
                own = await prepare_file(file, self._current.kinds, self._prepare)
                undo.push_async_callback(own.abort)
                asked: set[int] = set()
                prepared: list[MessageStream] = []
                reply: Message = {}
                while "result" not in reply:
                    # Starting workers need not prepare: the supervisor replaces them.
                    ready = [each for each in await self._workers() if each["phase"] == "ready"]
                    new = [each for each in ready if each["pid"] not in asked]
                    asked |= {each["pid"] for each in new}
                    preparing = (_prepare_in(each, file.content, connections) for each in new)
                    async with asyncio.timeout(PREPARE_TIMEOUT):
                        outcomes = await asyncio.gather(*preparing)
                    for outcome in outcomes:
                        if isinstance(outcome, ReloadResult):
                            return outcome
                        if outcome is not None:
                            prepared.append(outcome)
                    # After "use", new processes start with this configuration. The supervisor
                    # sends no result if an unprepared worker has started to serve.
                    reply = await self._channel.ask(
                        "use", content=file.content.decode(), prepared=sorted(asked)
                    )
                result = convert(reply["result"], ReloadResult)
                if result.code is not None:
                    return result
                undo.pop_all()
            own.commit()
            for each in prepared:
                each.send(generation=reply["generation"])
            # A worker without a reply needs no handling: the supervisor replaces it because of its
            # old generation.
            await asyncio.gather(*map(_reply, prepared))
        self._channel.update(generation=reply["generation"])
        return result

    async def _prepare(self, settings: Settings) -> Prepared:
        """Open the key store of these settings, unless it is already open. Raises `StartError`."""
        settings, _ = applicable(self.settings, settings)
        keys = await self._keys.prepare(settings.auth if settings.admin else AuthSettings())

        def commit() -> None:
            keys.commit()
            self.settings = settings

        return Prepared(commit, keys.abort)

    def _on_message(self, message: Message) -> None:
        if message["op"] == "hangup":
            self.reloader.start("signal")
        else:
            self.reloader.stop()

    async def _workers(self) -> list[Message]:
        """Return all workers that may have cached answers. Raises `OperationFailed`."""
        return [each for each in (await self._overview())["workers"] if each["address"]]

    async def _overview(self) -> Message:
        try:
            async with asyncio.timeout(_TIMEOUT):
                return await self._channel.ask("overview")
        except TimeoutError:
            raise OperationFailed("The supervisor does not respond") from None


def _name(worker: Message) -> str:
    return f"{worker['name']} (pid {worker['pid']})"


async def _ask(worker: Message, op: str, args: Record) -> Message:
    """Return the reply of a worker, or ``ended: true`` if the worker has ended."""
    try:
        async with connected(worker["address"]) as connection:
            connection.send(op=op, args=args)
            return await _reply(connection)
    except ConnectionError:
        return {"ended": True}
    except OSError as error:
        return {"error": error.strerror}


async def _reply(connection: MessageStream) -> Message:
    try:
        async with asyncio.timeout(_TIMEOUT):
            return await connection.receive() or {"ended": True}
    except TimeoutError:
        return {"error": f"no reply within {_TIMEOUT:g} s"}


async def _prepare_in(
    worker: Message, content: bytes, stack: AsyncExitStack
) -> MessageStream | ReloadResult | None:
    """Prepare a configuration in a worker. Return the connection for the commit.

    If this fails, return the `ReloadResult`. If the worker drains or has ended, return ``None``.
    """
    try:
        connection = await stack.enter_async_context(connected(worker["address"]))
    except ConnectionError:
        return None
    connection.send(op="prepare", args=content.decode())
    if await connection.receive() is None:
        return None
    reply = await connection.receive() or {"error": "ended while preparing the configuration"}
    if "error" in reply:
        return failure(StartError(f"{_name(worker)}: {reply['error']}"))
    return convert(reply["result"], ReloadResult | None) or connection
