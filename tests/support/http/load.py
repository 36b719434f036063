"""Bounded load on a service: a few clients, each of which uses a connection for one request."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

_TIMEOUT = 20.0


class Load:
    """What became of the requests: ``ok``, ``refused``, ``lost`` or another status."""

    def __init__(self, port: int, request: bytes, pause: float) -> None:
        self.results: Counter[str] = Counter()
        self._port = port
        self._request = request
        self._pause = pause
        self.stop = threading.Event()

    def wait_for(self, count: int) -> None:
        """Wait until so many further requests have ended."""
        target = self.results.total() + count
        while self.results.total() < target:
            assert not self.stop.wait(0.01)

    async def run(self, clients: int) -> None:
        await asyncio.gather(*(self._client() for _ in range(clients)))

    async def _client(self) -> None:
        while not self.stop.is_set():
            self.results[await self._send()] += 1
            await asyncio.sleep(self._pause)

    async def _send(self) -> str:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            return "refused"
        try:
            async with asyncio.timeout(_TIMEOUT):
                writer.write(self._request)
                line = await reader.readline()
        except OSError:
            return "lost"
        finally:
            writer.close()
        if not line:
            return "lost"
        return "ok" if b" 200 " in line else line.decode()


@contextmanager
def loaded(port: int, request: bytes, clients: int = 4, *, pause: float = 0.005) -> Iterator[Load]:
    """Send requests from a thread of its own within; each client waits ``pause`` s in between."""
    load = Load(port, request, pause)
    thread = threading.Thread(target=lambda: asyncio.run(load.run(clients)))
    thread.start()
    try:
        yield load
    finally:
        load.stop.set()
        thread.join(_TIMEOUT)
