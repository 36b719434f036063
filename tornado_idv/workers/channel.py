"""Messages between processes, and the connection of each process to the supervisor.

A message is a JSON object on one line. The manager connects to workers by Unix sockets in the
abstract namespace. The kernel chooses the address. Such an address needs no folder, and is free
when the process ends.

Other users, and containers in the same network namespace, can connect to such a socket. So both
ends accept a peer only if it has the same user, and a process id in this PID namespace. This gives
the peer no new rights, because the peer could also attach a debugger to this process.
"""

import asyncio
import logging
import os
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, closing, suppress
from typing import Any, Self

import msgspec
from msgspec.structs import replace

from tornado_idv.errors import ConfigError, Problem, StartError, format_traceback

_log = logging.getLogger(__name__)
MAX_LINE = 16 * 1024 * 1024
"""Maximum size of a message, in bytes. A configuration file of the maximum size fits."""
_HEARTBEAT = 1.0
"""Seconds between reports to the supervisor."""
STOPPED, UNANSWERED, NOT_STARTED, CRASHED = 0, 1, 3, 70
"""Exit codes, in this order: all requests answered; some unanswered; `StartError`; a crash."""

Message = dict[str, Any]


def encode(message: Mapping[str, Any]) -> bytes:
    """Return the bytes of a message."""
    return msgspec.json.encode(message) + b"\n"  # JSON escapes line feeds


class MessageStream:
    """One end of a connection, with messages in both directions."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def on(cls, sock: socket.socket) -> Self:
        """Return a stream of messages on a connected socket."""
        return cls(*await asyncio.open_unix_connection(sock=sock, limit=MAX_LINE))

    def send(self, **message: object) -> None:
        """Send a message. If the connection is closed, do nothing."""
        if not self._writer.is_closing():
            self._writer.write(encode(message))

    async def receive(self) -> Message | None:
        """Return the next message, or ``None`` at the end of the connection."""
        try:
            line = await self._reader.readline()
        except OSError:
            return None
        return msgspec.json.decode(line) if line.endswith(b"\n") else None

    async def aclose(self) -> None:
        """Send all pending messages, and close."""
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


@asynccontextmanager
async def control_socket(serve: Callable[[MessageStream], Awaitable[None]]) -> AsyncIterator[str]:
    """Serve connections and yield their address. Raises `StartError` if AF_UNIX is forbidden."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            if _is_own(writer.get_extra_info("socket")):
                await serve(MessageStream(reader, writer))

    try:
        sock = socket.socket(socket.AF_UNIX)
    except OSError as error:
        text = f"server.workers needs Unix sockets: {error.strerror}; allow AF_UNIX"
        raise StartError(text) from None
    sock.bind("")
    with closing(await asyncio.start_unix_server(accept, sock=sock, limit=MAX_LINE)):
        yield str(sock.getsockname(), "latin-1")


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[MessageStream]:
    """Yield a connection to a process. Raises `ConnectionError` if the process has ended."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(0)
        sock.connect(address.encode("latin-1"))
        if not _is_own(sock):
            raise ConnectionRefusedError
        async with aclosing(await MessageStream.on(sock)) as connection:
            yield connection


def _is_own(sock: socket.socket) -> bool:
    """Return whether the peer has the same user, and a process id in this PID namespace."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, user, _ = struct.unpack("3i", credentials)
    return bool(pid > 0 and user == os.geteuid())


class State(msgspec.Struct):
    """State of a process, sent to the supervisor.

    ``keys`` is the number of keys, or ``None`` before the process serves. ``error`` is the reason
    of a failed start, with the ``problems`` of a `ConfigError`. The manager connects to
    ``address``. ``generation`` is the number of the current configuration. ``preparing`` is true
    while the process prepares a new configuration. If ``retiring`` is true, the supervisor starts a
    replacement, and then stops this process. ``report`` has the metrics of this process.
    """

    keys: int | None = None
    error: str | None = None
    problems: list[Problem] = []
    address: str | None = None
    generation: int = 0
    preparing: bool = False
    retiring: bool = False
    report: Message | None = None

    @property
    def start_error(self) -> StartError:
        return ConfigError(*self.problems) if self.problems else StartError(self.error)


class Channel:
    """The connection to the supervisor. It sends the state every second, and after each change.

    ``stop`` is set when the supervisor orders a stop, or has ended. If ``delay`` is true then, the
    drain waits ``server.drain.delay`` first. A stop during the start cancels the task ``starting``.
    ``on_message`` receives all messages except for replies and ``drain``.
    """

    def __init__(
        self, connection: MessageStream, starting: asyncio.Task[Any] | None, generation: int
    ) -> None:
        self.stop = asyncio.Event()
        self.delay = False
        self.send = connection.send
        self.on_message: Callable[[Message], object] = lambda _: None
        self._connection = connection
        self._starting = starting
        self._state = State(generation=generation)
        self._report: Callable[[], Message | None] = lambda: None
        self._replies: deque[asyncio.Future[Message]] = deque()

    def update(self, **changes: Any) -> None:
        """Change the state, and send it."""
        self._state = replace(self._state, report=self._report(), **changes)
        self.send(op="state", state=self._state)

    def serving(self, keys: int, report: Callable[[], Message | None] = lambda: None) -> None:
        """Notify the supervisor that the process serves. ``report`` returns the process report."""
        self._starting, self._report = None, report
        self.update(keys=keys)

    async def ask(self, op: str, **args: Any) -> Message:
        """Send a request to the supervisor, and return its reply. Replies are in request order."""
        reply: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._replies.append(reply)
        self.send(op=op, **args)
        return await reply

    async def send_heartbeats(self) -> None:
        """Send the state every second."""
        while True:
            self.update()
            await asyncio.sleep(_HEARTBEAT)

    async def read(self) -> None:
        """Receive messages until the supervisor ends."""
        while (message := await self._connection.receive()) is not None:
            match message["op"]:
                case "drain":
                    self._on_stop(delay=message["delay"])
                case "reply":
                    reply = self._replies.popleft()
                    if not reply.done():
                        reply.set_result(message)
                case _:
                    self.on_message(message)
        _log.error("the supervisor is gone: stopping")
        self._on_stop(delay=False)

    def _on_stop(self, *, delay: bool) -> None:
        self.delay = delay
        self.stop.set()
        if self._starting is not None:
            self._starting.cancel()


async def supervised(
    control: socket.socket, serve: Callable[[Channel], Awaitable[bool]], generation: int
) -> int:
    """Run ``serve`` under the supervisor at the other end of ``control``. Return the exit code.

    ``serve`` returns whether all requests were answered. ``generation`` is the number of the
    configuration at the start of the process.
    """
    connection = await MessageStream.on(control)
    channel = Channel(connection, asyncio.current_task(), generation)
    tasks = [asyncio.create_task(each) for each in (channel.read(), channel.send_heartbeats())]
    try:
        return STOPPED if await serve(channel) else UNANSWERED
    except StartError as error:
        channel.update(error=str(error), problems=getattr(error, "problems", ()))
        return NOT_STARTED
    except asyncio.CancelledError:
        if not channel.stop.is_set():
            raise
        return STOPPED
    except Exception as error:  # noqa: BLE001 - logged here, before the log is closed
        _log.critical("unhandled exception:\n%s", format_traceback(error))
        return CRASHED
    finally:
        for each in tasks:
            each.cancel()
        channel.update()  # sends the last counts
        await connection.aclose()
