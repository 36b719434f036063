"""Messages between the supervisor and its processes, and their end of the connection.

A message is one JSON object on a line of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from tornado_idv.errors import ConfigError, Problem, StartError, format_traceback

_log = logging.getLogger(__name__)
_HEARTBEAT = 1.0
"""Seconds between two reports to the supervisor."""
STOPPED, UNANSWERED, NOT_STARTED, CRASHED = 0, 1, 3, 70
"""Exit codes: stopped with all requests answered, or with some not; a `StartError`; a bug."""

Message = dict[str, Any]
Execute = Callable[[str, Message], Awaitable[object]]


def encode(message: Mapping[str, Any]) -> bytes:
    """Return the bytes of a message."""
    return msgspec.json.encode(message) + b"\n"  # JSON escapes line feeds


class Decoder:
    """Splits what one end sends into messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that are complete with ``data``."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [msgspec.json.decode(line, type=Message) for line in lines]


def encode_error(error: StartError) -> Message:
    """Return a `StartError` as a message has it."""
    return {"message": str(error), "problems": getattr(error, "problems", ())}


def decode_error(record: Message) -> StartError:
    """Return the error that `encode_error` described."""
    if record["problems"]:
        return ConfigError(*msgspec.convert(record["problems"], list[Problem]))
    return StartError(record["message"])


class Channel(asyncio.Protocol):
    """The connection to the supervisor.

    ``stop`` is set when the process is to stop, because the supervisor says so or is gone; then
    ``delay`` is whether ``drain.delay`` applies. While the process starts, it cancels ``starting``
    instead.
    """

    def __init__(self, starting: asyncio.Task[Any] | None) -> None:
        self.stop = asyncio.Event()
        self.delay = False
        self._starting = starting
        self._execute: asyncio.Future[Execute] = asyncio.get_running_loop().create_future()
        self._report: Callable[[], Message | None] = lambda: None
        self._decoder = Decoder()
        self._ids = itertools.count(1)
        self._replies: dict[int, asyncio.Future[Message]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._lost = asyncio.Event()
        self._closing = False

    def send(self, message: Message) -> None:
        """Send a message; without a supervisor, do nothing."""
        if not self._transport.is_closing():
            self._transport.write(encode(message))

    async def ask(self, command: str, args: Message) -> Message:
        """Have the supervisor do a command; return its reply."""
        number = next(self._ids)
        reply: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._replies[number] = reply
        self.send({"op": "ask", "id": number, "command": command, "args": args})
        try:
            return await reply
        finally:
            del self._replies[number]

    def serving(
        self,
        key_count: int,
        execute: Execute,
        report: Callable[[], Message | None] = lambda: None,
    ) -> None:
        """Notify the supervisor that the process is ready.

        ``execute`` does commands, also earlier ones; its result or error is the reply. ``report``
        returns the state and counters for heartbeats.
        """
        self._starting = None
        self._execute.set_result(execute)
        self._report = report
        self.send({"op": "ready", "keys": key_count})

    def send_report(self) -> None:
        """Send a heartbeat."""
        self.send({"op": "report", "report": self._report()})

    async def send_heartbeats(self) -> None:
        """Send a heartbeat every second."""
        while True:
            self.send_report()
            await asyncio.sleep(_HEARTBEAT)

    async def close(self) -> None:
        """Send what is left, and close."""
        self._closing = True
        self._transport.close()
        await self._lost.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.WriteTransport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        for message in self._decoder.feed(data):
            match message["op"]:
                case "drain":
                    self._on_stop(delay=message["delay"])
                case "do":
                    task = asyncio.create_task(self._do(message))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                case "reply":
                    reply = self._replies.get(message["id"])
                    if reply is not None and not reply.done():
                        reply.set_result(message)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._lost.set()
        if not self._closing:
            _log.error("the supervisor is gone: stopping")
            self._on_stop(delay=False)

    def _on_stop(self, *, delay: bool) -> None:
        self.delay = delay
        self.stop.set()
        if self._starting is not None:
            self._starting.cancel()

    async def _do(self, message: Message) -> None:
        reply: Message = {"op": "reply", "id": message["id"]}
        try:
            execute = await asyncio.shield(self._execute)
            reply["result"] = await execute(message["command"], message["args"])
        except Exception as error:  # noqa: BLE001 - the other processes still reply
            _log.error("command %s failed:\n%s", message["command"], format_traceback(error))
            reply["error"] = type(error).__name__
        self.send(reply)


async def supervised(control: socket.socket, serve: Callable[[Channel], Awaitable[int]]) -> int:
    """Run ``serve`` under the supervisor at the other end of ``control``; return the exit code."""
    channel = Channel(asyncio.current_task())
    await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=control)
    heartbeats = asyncio.create_task(channel.send_heartbeats())
    try:
        return await serve(channel)
    except StartError as error:
        channel.send({"op": "failed", "error": encode_error(error)})
        return NOT_STARTED
    except asyncio.CancelledError:
        if not channel.stop.is_set():
            raise
        return STOPPED
    except Exception as error:  # noqa: BLE001 - logged here, while there is a log
        _log.critical("unhandled exception:\n%s", format_traceback(error))
        return CRASHED
    finally:
        heartbeats.cancel()
        channel.send_report()
        await channel.close()
