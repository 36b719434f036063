"""A worker process. It serves until the supervisor orders a stop, or the supervisor ends."""

import asyncio
import logging
import signal
import socket
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import replace

import uvloop

from tornado_idv.errors import format_traceback
from tornado_idv.logs.handlers import configure_logging
from tornado_idv.service.part import background
from tornado_idv.service.reload import Configuration, failure, prepare_file
from tornado_idv.service.run import measure_lag, tune_gc
from tornado_idv.service.service import Service, public_listener
from tornado_idv.workers.channel import Channel, Message, MessageStream, control_socket, supervised

_log = logging.getLogger(__name__)


def run_worker(
    current: Configuration, sockets: Sequence[socket.socket], control: socket.socket
) -> int:
    """Serve until the supervisor orders a stop. Return the exit code."""
    logging_ = current.settings.logging
    logs = configure_logging(logging_.level, logging_.format, logging_.ids, shared=True)

    async def serve(channel: Channel) -> bool:
        # SIGTERM only requests a replacement. The supervisor decides: it may get SIGTERM itself, or
        # it starts a successor first.
        retire = lambda: channel.update(retiring=True)  # noqa: E731
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, retire)
        requests = _Requests(channel, current)
        with current.file.located():
            # Before it serves, so a purge reaches every worker with cached answers.
            async with control_socket(requests.respond) as address:
                channel.update(address=address)
                async with public_listener(current, logs, nullcontext([sockets])) as service:
                    tune_gc()
                    requests.service.set_result(service)
                    logs.writer.flush()  # before the announcement of the service
                    channel.serving(service.key_count, lambda: _report(service))
                    async with background(measure_lag(service.counters)):
                        await channel.stop.wait()
                        drained = await service.drain(delay=channel.delay)
                    if not drained:
                        _log.warning("stopped with requests unanswered after the drain timeout")
                    return drained

    with closing(logs):
        return uvloop.run(supervised(control, serve, current.generation))


def _report(service: Service) -> Message:
    process, counters = service.process_report(take_lag=True), service.counters
    requests = sum(each.count for each in counters.responses.values())
    return {"process": process, "counters": counters.to_record(), "requests": requests}


class _Requests:
    """Executes requests of the manager process, when the future ``service`` has its result."""

    def __init__(self, channel: Channel, current: Configuration) -> None:
        self.service: asyncio.Future[Service] = asyncio.get_running_loop().create_future()
        self._channel = channel
        self._file, self._kinds = current.file, current.kinds
        self._lock = asyncio.Lock()

    async def respond(self, connection: MessageStream) -> None:
        """Execute the request on a connection. Send its result or error."""
        if (message := await connection.receive()) is None:
            return
        try:
            service = await self.service
            match message:
                case {"op": "purge", "args": target}:
                    connection.send(result=await service.purge(target))
                case {"op": "explain", "args": query}:
                    connection.send(result=await service.explain(query))
                case {"op": "prepare", "args": str(content)}:
                    async with self._lock:
                        await self._prepare(service, connection, content)
        except Exception as error:  # noqa: BLE001 - the other workers still respond
            _log.error("command %s failed:\n%s", message["op"], format_traceback(error))
            connection.send(error=type(error).__name__)

    async def _prepare(self, service: Service, connection: MessageStream, content: str) -> None:
        """Prepare a configuration, and commit it after the next message of the manager.

        If the manager closes the connection without a message, or a stop begins, abort the change.
        """
        if self._channel.stop.is_set():
            return
        # The manager sends the content, so all processes have the same configuration.
        file = replace(self._file, content=content.encode())
        connection.send(begun=True)
        self._channel.update(preparing=True)
        preparing = asyncio.create_task(prepare_file(file, self._kinds, service.prepare))
        decided = asyncio.create_task(connection.receive())
        await asyncio.wait([preparing, decided], return_when=asyncio.FIRST_COMPLETED)
        preparing.cancel()  # no effect if it is done
        await asyncio.wait([preparing])
        self._channel.update(preparing=False)
        try:
            prepared = preparing.result()
        except asyncio.CancelledError:
            return
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            connection.send(result=failure(error))
            return
        connection.send(result=None)
        if (commit := await decided) is None or self._channel.stop.is_set():
            await prepared.abort()
            return
        prepared.commit()
        self._channel.update(generation=commit["generation"])
        connection.send(result=None)
