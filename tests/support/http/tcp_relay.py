"""A relay in front of a TCP port, which stops passing bytes on, or closes its connections."""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress


class Relay:
    """Relays connections from ``port`` to ``target``."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.accepted = 0
        """Connections accepted up to now."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._passing = asyncio.Event()
        self._passing.set()
        self._barred: Collection[str] = ()

    def bar(self, addresses: Collection[str]) -> None:
        """Refuse these addresses from now on, and no others; close their connections."""
        self._barred = addresses
        for writer in self._writers:
            if writer.get_extra_info("peername")[0] in addresses:
                writer.transport.abort()

    def freeze(self) -> None:
        """Pass nothing on any more on the connections that are open now, and keep them open."""
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()

    @contextmanager
    def blocked(self) -> Iterator[None]:
        """Pass nothing on meanwhile, as if packets were dropped on the way and sent again."""
        self._passing.clear()
        try:
            yield
        finally:
            self._passing.set()

    def cut(self) -> None:
        """Close the connections that are open now."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if writer.get_extra_info("peername")[0] in self._barred:
            writer.transport.abort()
            return
        self._writers.add(writer)
        await self._passing.wait()
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        self._writers.add(far_writer)
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            self._tasks.add(asyncio.create_task(self._pass_on(source, sink)))

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await source.read(65536):
                await self._passing.wait()
                sink.write(data)
                await sink.drain()
            sink.close()


@asynccontextmanager
async def relaying(target: int, kind: type[Relay] = Relay) -> AsyncIterator[Relay]:
    """Relay to a port on this machine."""
    relay = kind(target)
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
    relay.port = server.sockets[0].getsockname()[1]
    try:
        yield relay
    finally:
        server.close()
        relay.freeze()
        relay.cut()
